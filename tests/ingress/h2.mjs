// HTTP/2 over TLS through cube-proxy: node's http2 client against an HTTP/1.1 service, and @grpc/grpc-js against a gRPC service. Prints the
// port of its gRPC service, reads one line of JSON {host, tls, plain, ca, sandbox} and prints PASS or FAIL per check.
import { createHash } from 'node:crypto';
import http2 from 'node:http2';
import net from 'node:net';
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';
import readline from 'node:readline';

const grpc = createRequire(process.env.CUBE_NODE_MODULES + '/x.js')('@grpc/grpc-js');
let failed = 0;
async function check(name, f) {
  const t = Date.now();
  try {
    await Promise.race([f(), new Promise((_, no) => setTimeout(() => no(new Error('took longer than 60 s')), 60000).unref())]);
    console.log(`PASS ingress h2: ${name} (${((Date.now() - t) / 1000).toFixed(2)} s)`);
  } catch (e) {
    failed++;
    console.log(`FAIL ingress h2: ${name}: ${String(e.stack ?? e).split('\n').slice(0, 3).join(' | ')}`);
  }
}
function equal(got, want, why = 'values differ') {
  if (JSON.stringify(got) !== JSON.stringify(want)) throw new Error(`${why}: got ${JSON.stringify(got)}, want ${JSON.stringify(want)}`);
}
const block = Buffer.concat(Array(1024).fill(createHash('sha512').update('cube').digest()));
function patternSha(n) {
  const h = createHash('sha256');
  for (; n > 0; n -= block.length) h.update(n >= block.length ? block : block.subarray(0, n));
  return h.digest('hex');
}

// ---- gRPC: messages are raw bytes ----
const raw = { requestSerialize: (b) => b, requestDeserialize: (b) => b, responseSerialize: (b) => b, responseDeserialize: (b) => b };
const method = (name, requestStream, responseStream) => ({ path: `/t.T/${name}`, requestStream, responseStream, ...raw });
const service = {
  Echo: method('Echo', false, false), Down: method('Down', false, true), Up: method('Up', true, false), Bidi: method('Bidi', true, true),
  Fail: method('Fail', false, false), Hold: method('Hold', false, false),
  Host: method('Host', false, false),
};
let held = null;
const server = new grpc.Server({ 'grpc.max_receive_message_length': -1 });
server.addService(service, {
  Echo(call, cb) {
    const trailers = new grpc.Metadata();
    trailers.set('x-trailer', call.metadata.get('x-ask')[0] ?? '');
    cb(null, call.request, trailers);
  },
  async Down(call) {
    const n = call.request.readUInt32BE(0);
    for (let i = 0; i < n; i++) if (!call.write(block)) await new Promise((ok) => call.once('drain', ok));
    call.end();
  },
  Up(call, cb) {
    let n = 0;
    const h = createHash('sha256');
    call.on('data', (b) => { n += b.length; h.update(b); });
    call.on('end', () => cb(null, Buffer.from(`${n} ${h.digest('hex')}`)));
  },
  Bidi(call) {
    call.on('data', (b) => call.write(b));
    call.on('end', () => call.end());
  },
  Fail(call, cb) {
    const trailers = new grpc.Metadata();
    trailers.set('x-why', 'because');
    cb({ code: grpc.status.FAILED_PRECONDITION, details: 'not now: 100% "ü"', metadata: trailers });
  },
  Hold(call, cb) {
    held = call;
  },
  Host(call, cb) {
    const m = call.metadata;
    cb(null, Buffer.from(JSON.stringify([call.getHost(), m.get('x-forwarded-for'), m.get('x-forwarded-proto'), m.get('x-forwarded-host')])));
  },
});
const port = await new Promise((ok, no) => server.bindAsync('127.0.0.1:0', grpc.ServerCredentials.createInsecure(), (e, p) => (e ? no(e) : ok(p))));
// A service that refuses the first try of each call, and one that says goodbye behind each answer and stays.
const moody = http2.createServer();
const moodySessions = new Set();
const tried = new Set();
moody.on('session', (q) => { moodySessions.add(q); q.on('error', () => {}); });
moody.on('stream', (st, h) => {
  st.on('error', () => {});
  st.resume();
  const what = h['x-ask'] ?? '';
  if (what.startsWith('refuse') && !tried.has(what)) {
    tried.add(what);
    st.close(http2.constants.NGHTTP2_REFUSED_STREAM);
    return;
  }
  st.respond({ ':status': 200, 'content-type': 'application/grpc' }, { waitForTrailers: true });
  st.on('wantTrailers', () => st.sendTrailers({ 'grpc-status': '0' }));
  st.end(Buffer.from([0, 0, 0, 0, 2, 0x6f, 0x6b]));
  if (what === 'goodbye') st.on('close', () => st.session?.goaway(0, st.id));
});
const moodyPort = await new Promise((ok) => moody.listen(0, '127.0.0.1', () => ok(moody.address().port)));
console.log('PORT', port, moodyPort);

const env = JSON.parse(await new Promise((ok) => readline.createInterface({ input: process.stdin }).once('line', ok)));
const ca = readFileSync(env.ca);
const name = (p) => `${p}-${env.sandbox}.cube.test`;

// ---- node's http2 client ----
function connect() {
  const s = http2.connect(`https://127.0.0.1:${env.tls}`, { ca, servername: 'localhost', checkServerIdentity: () => undefined });
  s.on('error', () => {});
  return s;
}
function ask(s, headers, body) {
  return new Promise((ok, no) => {
    const r = s.request({ ':authority': name(8000), ...headers }, { endStream: body === undefined });
    const answer = { trailers: {}, bytes: 0, sha: createHash('sha256'), head: null, text: '' };
    r.on('response', (h) => (answer.head = h));
    r.on('trailers', (t) => (answer.trailers = t));
    r.on('data', (b) => {
      answer.bytes += b.length;
      answer.sha.update(b);
      if (answer.bytes < 10000) answer.text += b;
    });
    r.on('end', () => ok(answer));
    r.on('error', no);
    if (body) body(r);
  });
}
async function pour(r, n) {
  for (; n > 0; n -= block.length) {
    if (!r.write(n >= block.length ? block : block.subarray(0, n))) await new Promise((ok) => r.once('drain', ok));
  }
}

const s = connect();
await check('requests of several ports and the API on one connection', async () => {
  const all = await Promise.all([ask(s, { ':path': '/a' }), ask(s, { ':path': '/v2/x', ':authority': 'api.cube.test' }),
    ask(s, { ':path': '/b', ':authority': 'localhost', 'e2b-sandbox-id': env.sandbox, 'e2b-sandbox-port': '8000' })]);
  equal(all.map((a) => a.text), ['GET /a\n', 'api /v2/x', 'GET /b\n']);
});
await check('unknown sandbox, internal path, CONNECT', async () => {
  const gone = await ask(s, { ':path': '/', ':authority': name(8000).replace(/i0..../, 'i0xxxx') });
  equal(gone.head[':status'], 502);
  equal(JSON.parse(gone.text).message, 'The sandbox was not found');
  equal((await ask(s, { ':path': '/init', ':authority': name(49983) })).head[':status'], 404);
  const tunnel = s.request({ ':method': 'CONNECT', ':authority': name(8000) });
  equal((await new Promise((ok, no) => tunnel.on('response', ok).on('error', no)))[':status'], 405);
  tunnel.close();
  equal((await ask(s, { ':path': '/after' })).text, 'GET /after\n', 'the connection goes on');
});
const N = (process.env.LONG === "1" ? 128 : 24) << 20;
await check('upload and download, byte-exact, with a trailer', async () => {
  const up = await ask(s, { ':method': 'POST', ':path': '/upload' }, async (r) => { await pour(r, N); r.end(); });
  equal(up.text, `${N} ${patternSha(N)} `);
  const sized = await ask(s, { ':method': 'POST', ':path': '/upload', 'content-length': String(N) }, async (r) => { await pour(r, N); r.end(); });
  equal(sized.text, `${N} ${patternSha(N)} `);
  for (const kind of ['length', 'chunked', 'close']) {
    const down = await ask(s, { ':path': `/download?n=${N}&kind=${kind}` });
    equal([down.bytes, down.sha.digest('hex')], [N, patternSha(N)], kind);
    if (kind === 'chunked') equal(down.trailers['x-sum'], patternSha(N), 'trailer');
  }
});
await check('request trailers reach an HTTP/1.1 service', async () => {
  const a = await new Promise((ok, no) => {
    const r = s.request({ ':authority': name(8000), ':method': 'POST', ':path': '/upload' }, { waitForTrailers: true });
    r.on('wantTrailers', () => r.sendTrailers({ 'x-sum': 'abc' }));
    let text = '';
    r.on('data', (b) => (text += b));
    r.on('end', () => ok(text));
    r.on('error', no);
    r.end('hello');
  });
  equal(a.split(' ')[2], 'abc');
});
await check('a slow upload does not hold other streams', async () => {
  const r = s.request({ ':authority': name(8000), ':method': 'POST', ':path': '/upload?slow=0.2' });
  r.on('error', () => {});
  r.write(Buffer.alloc(8 << 20));
  const t = Date.now();
  const many = await Promise.all(Array.from({ length: 200 }, (_, i) => ask(s, { ':path': `/n${i}` })));
  equal(many.every((a, i) => a.text === `GET /n${i}\n`), true);
  if (Date.now() - t > 30000) throw new Error(`took ${Date.now() - t} ms`);
  r.close(http2.constants.NGHTTP2_CANCEL);
});
await check('SSE flows at once; leaving cancels the service', async () => {
  const whole = await ask(s, { ':path': '/sse?n=40' });
  equal(whole.text, Array.from({ length: 40 }, (_, i) => `data: ${i}\n\n`).join(''));
  const r = s.request({ ':authority': name(8000), ':path': '/sse' });
  let text = '';
  await new Promise((ok) => r.on('data', (b) => ((text += b), text.includes('data: 5') && ok())));
  r.close(http2.constants.NGHTTP2_CANCEL);
});
await check('Connect stream is duplex', async () => {
  const r = s.request({ ':authority': name(8000), ':method': 'POST', ':path': '/duplex', 'content-type': 'application/connect+json' });
  for (let i = 0; i < 20; i++) {
    const got = new Promise((ok) => r.once('data', ok));
    r.write(`piece ${i}`);
    equal(String(await got), `piece ${i}`);
  }
  const end = new Promise((ok) => r.on('end', ok));
  r.end();
  await end;
});
await check('a truncated answer is a reset, not an end', async () => {
  for (const path of ['/truncate', '/truncate-chunked']) {
    const r = s.request({ ':authority': name(8000), ':path': path });
    const how = await new Promise((ok) => { r.on('data', () => {}); r.on('error', () => ok('reset')); r.on('end', () => ok('end')); });
    equal(how, 'reset', path);
  }
});
await check('early answer to an upload', async () => {
  const r = s.request({ ':authority': name(8000), ':method': 'POST', ':path': '/early' });
  r.on('error', () => {});
  const head = await new Promise((ok) => { r.on('response', ok); r.write('x'); });
  equal(head[':status'], 413);
  r.close();
});
await check('204, 304 and HEAD that name a length', async () => {
  for (const [headers, want] of [[{ ':path': '/code?n=204' }, [204, undefined, 0]], [{ ':path': '/code?n=304' }, [304, '5', 0]],
    [{ ':path': '/code?n=200', ':method': 'HEAD' }, [200, '5', 0]], [{ ':path': '/code?n=200' }, [200, '5', 5]], [{ ':path': '/code?n=404' }, [404, '5', 5]]]) {
    const a = await ask(s, headers);
    equal([a.head[':status'], a.head['content-length'], a.bytes], want, JSON.stringify(headers));
  }
});
await check('a browser with 300 cookies', async () => {
  const crumbs = Array.from({ length: 300 }, (_, i) => `c${i}=${i}`);
  const a = await ask(s, { ':path': '/cookies', cookie: crumbs });
  equal(a.head[':status'], 200);
  equal(a.head['x-seen-cookie'], crumbs.join('; '));
});
s.close();

// ---- gRPC ----
const channel = { 'grpc.ssl_target_name_override': 'localhost', 'grpc.default_authority': name(50051), 'grpc.max_receive_message_length': -1 };
const T = grpc.makeGenericClientConstructor(service, 'T');
const client = new T(`127.0.0.1:${env.tls}`, grpc.credentials.createSsl(ca), channel);
const call = (m, arg, metadata = new grpc.Metadata(), options = {}) => new Promise((ok) => {
  let trailers;
  const k = client[m](arg, metadata, options, (e, b) => setImmediate(() => ok({ e, b, trailers })));
  k.on('status', (st) => (trailers = st.metadata));
});
await check('gRPC unary with metadata and trailers, 5 MB message', async () => {
  const md = new grpc.Metadata();
  md.set('x-ask', 'hello');
  const a = await call('Echo', Buffer.from('hi'), md);
  equal([a.e, String(a.b), a.trailers.get('x-trailer')], [null, 'hi', ['hello']]);
  const big = Buffer.alloc(5 << 20, 7);
  equal((await call('Echo', big)).b.equals(big), true);
});
await check('gRPC 500 unary calls one after the other and 200 at once', async () => {
  for (let i = 0; i < 500; i++) equal(String((await call('Echo', Buffer.from(`n${i}`))).b), `n${i}`);
  const all = await Promise.all(Array.from({ length: 200 }, (_, i) => call('Echo', Buffer.from(`p${i}`))));
  equal(all.every((a, i) => String(a.b) === `p${i}`), true);
});
await check('gRPC server stream of 64 MiB', async () => {
  const n = Buffer.alloc(4);
  n.writeUInt32BE(1024);
  const got = await new Promise((ok, no) => {
    let bytes = 0;
    const h = createHash('sha256');
    client.Down(n).on('data', (b) => { bytes += b.length; h.update(b); }).on('end', () => ok([bytes, h.digest('hex')])).on('error', no);
  });
  equal(got, [64 << 20, patternSha(64 << 20)]);
});
await check('gRPC client stream of 128 MiB', async () => {
  const n = await new Promise(async (ok, no) => {
    const k = client.Up((e, b) => (e ? no(e) : ok(String(b))));
    for (let i = 0; i < 2048; i++) if (!k.write(block)) await new Promise((go) => k.once('drain', go));
    k.end();
  });
  equal(n, `${128 << 20} ${patternSha(128 << 20)}`);
});
await check('gRPC bidi', async () => {
  const k = client.Bidi();
  for (let i = 0; i < 50; i++) {
    const got = new Promise((ok) => k.once('data', ok));
    k.write(Buffer.from(`b${i}`));
    equal(String(await got), `b${i}`);
  }
  const end = new Promise((ok) => k.on('end', ok));
  k.end();
  await end;
});
await check('gRPC error with details and metadata', async () => {
  const a = await call('Fail', Buffer.from('x'));
  equal([a.e.code, a.e.details, a.e.metadata.get('x-why')], [grpc.status.FAILED_PRECONDITION, 'not now: 100% "ü"', ['because']]);
});
await check('gRPC deadline and cancel reach the service', async () => {
  held = null;
  for (let ms = 300; !held && ms < 30000; ms *= 3) { // a busy machine may let it pass before the call has reached the service
    const a = await call('Hold', Buffer.from('x'), undefined, { deadline: Date.now() + ms });
    equal(a.e.code, grpc.status.DEADLINE_EXCEEDED);
  }
  if (!held.cancelled) await new Promise((ok) => held.on('cancelled', ok));
});
await check('gRPC to a closed port and to a dead sandbox', async () => {
  const other = new T(`127.0.0.1:${env.tls}`, grpc.credentials.createSsl(ca), { ...channel, 'grpc.default_authority': name(50052) });
  const e = await new Promise((ok) => other.Echo(Buffer.from('x'), (err) => ok(err)));
  equal([e.code, e.details], [grpc.status.UNAVAILABLE, 'The sandbox is running but port is not open']);
  other.close();
});
await check('gRPC: who asks, and under which name, is said as for HTTP/1.1', async () => {
  equal(JSON.parse((await call('Host', Buffer.from('x'))).b), [name(50051), ['127.0.0.1'], ['https'], []]);
  const asked = `50051-${env.masked}.cube.test`;
  const masked = new T(`127.0.0.1:${env.tls}`, grpc.credentials.createSsl(ca), { ...channel, 'grpc.default_authority': asked });
  const md = new grpc.Metadata();
  md.set('x-forwarded-for', '10.1.2.3');
  const b = await new Promise((ok, no) => masked.Host(Buffer.from('x'), md, (e, r) => (e ? no(e) : ok(r))));
  equal(JSON.parse(b), ['inner.test:50051', ['10.1.2.3, 127.0.0.1'], ['https'], [asked]]);
  masked.close();
});
await check('gRPC: a refused stream is said as it is, so the library tries again', async () => {
  const moodyClient = new T(`127.0.0.1:${env.tls}`, grpc.credentials.createSsl(ca), { ...channel, 'grpc.default_authority': name(50053) });
  const ok = (md) => new Promise((yes, no) => moodyClient.Echo(Buffer.from('x'), md, (e, r) => (e ? no(e) : yes(String(r)))));
  for (let i = 0; i < 5; i++) {
    const md = new grpc.Metadata();
    md.set('x-ask', `refuse${i}`);
    equal(await ok(md), 'ok');
  }
  const md = new grpc.Metadata();
  md.set('x-ask', 'goodbye'); // its connection takes no more requests, though it stays open
  for (let i = 0; i < 20; i++) equal(await ok(md), 'ok');
  moodyClient.close();
});
client.close();

await check('plaintext with prior knowledge', async () => {
  const p = http2.connect(`http://127.0.0.1:${env.plain}`);
  equal((await ask(p, { ':path': '/plain' })).text, 'GET /plain\n');
  p.close();
});
// ---- abuse: raw frames ----
const frame = (type, flags, id, payload = Buffer.alloc(0)) => {
  const h = Buffer.alloc(9);
  h.writeUIntBE(payload.length, 0, 3);
  h[3] = type; h[4] = flags; h.writeUInt32BE(id, 5);
  return Buffer.concat([h, payload]);
};
const preface = Buffer.concat([Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'), frame(4, 0, 0)]);
const block8000 = (() => { // a header block without compression
  const lit = (k, v) => Buffer.concat([Buffer.from([0, k.length]), Buffer.from(k), Buffer.from([v.length]), Buffer.from(v)]);
  return Buffer.concat([lit(':method', 'GET'), lit(':scheme', 'http'), lit(':path', '/quiet'), lit(':authority', name(8000))]);
})();
async function flood(make) {
  const c = net.connect(env.plain, '127.0.0.1');
  c.on('error', () => {});
  const closed = new Promise((ok) => c.on('close', () => ok(true)));
  c.resume();
  c.write(preface);
  for (let i = 0; i < 400 && !c.destroyed; i++) {
    if (!c.write(make(i))) await Promise.race([new Promise((ok) => c.once('drain', ok)), closed]);
    await new Promise((ok) => setImmediate(ok));
  }
  const over = await Promise.race([closed, new Promise((ok) => setTimeout(() => ok(false), 20000).unref())]);
  c.destroy();
  return over;
}
const each = (f) => (i) => Buffer.concat(Array.from({ length: 100 }, (_, j) => f(1 + 2 * (i * 100 + j), i * 100 + j)));
await check('rapid reset ends the connection', async () => {
  equal(await flood(each((id) => Buffer.concat([frame(1, 5, id, block8000), frame(3, 0, id, Buffer.from([0, 0, 0, 8]))]))), true);
});
await check('MadeYouReset ends the connection', async () => {
  equal(await flood(each((id) => Buffer.concat([frame(1, 5, id, block8000), frame(8, 0, id, Buffer.alloc(4))]))), true);
});
await check('CONTINUATION floods end the connection (PING, SETTINGS and empty DATA: test_attack.py)', async () => {
  equal(await flood((i) => (i === 0 ? frame(1, 1, 1, block8000) : Buffer.concat(Array(100).fill(frame(9, 0, 1))))), true, 'continuation');
  equal(await flood(() => Buffer.concat(Array(20000).fill(frame(9, 0, 1)))), true, 'stray continuation');
});
await check('garbage after the preface ends the connection', async () => {
  equal(await flood(() => Buffer.alloc(1000, 0xff)), true);
});
await check('the proxy is well after all that', async () => {
  const p = http2.connect(`http://127.0.0.1:${env.plain}`);
  equal((await ask(p, { ':path': '/well' })).text, 'GET /well\n');
  p.close();
});
server.forceShutdown();
for (const q of moodySessions) q.destroy();
moody.close();
process.exit(failed ? 1 : 0);
