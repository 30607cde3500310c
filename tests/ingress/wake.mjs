// Wake on request with nothing between left out: real cube-proxy (three), cube-relay, cube-lifecycle (two), cube-master and Redis; only the node is a
// simulated one, with a connector in the place of each VM.
import { spawn } from 'node:child_process';
import { createRequire } from 'node:module';
import crypto from 'node:crypto';
import fs from 'node:fs';
import http from 'node:http';
import http2 from 'node:http2';
import net from 'node:net';
import path from 'node:path';
import { BUILD, Cluster, freePort, test, assert, equal, until, done, grpc } from '../control/harness.mjs';

const DOMAIN = 'cube.test';
const c = new Cluster();
await c.redis();
const master = await c.master('m1');
const lifecycles = [await c.lifecycle('l1'), await c.lifecycle('l2')];
const run = path.join(c.dir, 'run');
for (const d of ['sb', 'relay']) fs.mkdirSync(path.join(run, d), { recursive: true });
const relayPort = await freePort(), apiPort = await freePort();

const listens = (port) => new Promise((ok) => { const s = net.connect(port, '127.0.0.1', () => { s.destroy(); ok(true); }); s.on('error', () => ok(false)); });
c.spawn('relay', path.join(BUILD, 'node/relay/cube-relay'), ['--config', c.config('relay', { port: relayPort, admin: await freePort(), keys: { run_dir: run } })]);
await until('the relay listens', () => listens(relayPort));
const sim = spawn(path.join(BUILD, 'bench/simnode/cube-simnode'), ['--master', `127.0.0.1:${master}`, '--key-dir', path.join(c.dir, 'keys'), '--template', 'tpl1',
  '--relay', `127.0.0.1:${relayPort}`], { stdio: ['pipe', 'pipe', 'ignore'] });
process.on('exit', () => sim.kill('SIGKILL'));
const order = (line) => new Promise((ok, no) => {
  sim.stdout.once('data', (b) => (String(b).startsWith('ok') ? ok() : no(new Error(`${line}: ${b}`))));
  sim.stdin.write(line + '\n');
});
const proxies = [];
for (let i = 0; i < 3; i++) {
  const port = await freePort(), admin = await freePort(), dir = path.join(c.dir, `p${i}`);
  fs.mkdirSync(path.join(dir, 'proxy'), { recursive: true });
  c.spawn(`p${i}`, path.join(BUILD, 'proxy/cube-proxy'), ['--config', c.config('proxy', { port, admin, keys: { tls_listen: '', domain: DOMAIN, run_dir: dir, threads: 2,
    api: `127.0.0.1:${apiPort}`, lifecycle: `127.0.0.1:${lifecycles[i % 2]}`, max_connections_per_sandbox: 5000 } })]);
  await until(`proxy ${i} is ready`, async () => (await fetch(`http://127.0.0.1:${admin}/readyz`)).status === 200);
  proxies.push(port);
}
const s = await c.seed(master);
await until('the node is ready', async () => (await s.nodes('List', {})).nodes.some((x) => x.status === 'ready'));

// ---- what runs in the sandboxes ----
const seen = [];
const web = http.createServer((q, r) => {
  seen.push(q.url);
  if (q.method === 'POST') {
    const h = crypto.createHash('sha256');
    q.on('data', (b) => h.update(b)).on('end', () => r.end(h.digest('hex')));
  } else r.end(`GET ${q.url}`);
});
web.on('upgrade', (q, sock) => {
  sock.write('HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n');
  sock.on('error', () => {});
  sock.pipe(sock);
});
const webPort = await new Promise((ok) => web.listen({ port: 0, host: '127.0.0.1', backlog: 4096 }, () => ok(web.address().port)));
const raw = { requestSerialize: (b) => b, requestDeserialize: (b) => b, responseSerialize: (b) => b, responseDeserialize: (b) => b };
const service = { Echo: { path: '/t.T/Echo', requestStream: false, responseStream: false, ...raw }, Bidi: { path: '/t.T/Bidi', requestStream: true, responseStream: true, ...raw } };
const rpc = new grpc.Server();
rpc.addService(service, { Echo: (call, cb) => cb(null, call.request), Bidi: (call) => call.on('data', (b) => call.write(b)).on('end', () => call.end()) });
const rpcPort = await new Promise((ok, no) => rpc.bindAsync('127.0.0.1:0', grpc.ServerCredentials.createInsecure(), (e, p) => (e ? no(e) : ok(p))));

const seed = Buffer.from(fs.readFileSync(path.join(c.dir, 'keys', 'seed'), 'utf8').trim(), 'hex');
/** The directory of one generation, as the node makes it, and a connector as its VM. */
async function vm(id, gen) {
  const dir = path.join(run, 'sb', id, String(gen));
  fs.mkdirSync(dir, { recursive: true });
  c.spawn(`vm-${id}-${gen}`, path.join(BUILD, 'tests/ingress/connector'), [path.join(dir, 'in.sock'), `8000=${webPort}`, `50051=${rpcPort}`]);
  await until('the connector listens', () => fs.existsSync(path.join(dir, 'in.sock')));
  fs.writeFileSync(path.join(dir, 'ticket'), crypto.createHmac('sha256', seed).update(`ticket-${id}-${gen}`).digest('hex') + '\n');
}
const get = (id) => s.sandboxes('Get', { sandbox_id: id, team_id: 't1' }).then((r) => r.sandbox || r);
/** A paused sandbox whose next VM already waits: the resume itself takes as long as the node says. */
async function paused(more = {}) {
  const sb = (await s.sandboxes('Create', { spec: { team_id: 't1', template_id: 'base', timeout_ms: 300000, auto_resume: true, ...more } })).sandbox;
  const id = sb.spec.sandbox_id;
  await s.sandboxes('Pause', { sandbox_id: id, team_id: 't1' });
  await until('it is paused', async () => (await c.r('HGET', `{c0}:rt:${id}`, 'state')) === 'paused');
  await vm(id, sb.gen + 1);
  return { id, gen: sb.gen };
}
const host = (id, port = 8000) => `${port}-${id}.${DOMAIN}`;
function ask(port, id, url, { method = 'GET', headers = {}, body, agent = false } = {}) {
  return new Promise((ok, no) => {
    const r = http.request({ host: '127.0.0.1', port, path: url, method, agent, headers: { host: host(id), ...headers } }, (a) => {
      const parts = [];
      a.on('data', (b) => parts.push(b)).on('end', () => ok({ status: a.statusCode, headers: a.headers, body: Buffer.concat(parts) })).on('error', no);
    });
    r.on('error', no);
    r.end(body);
  });
}
const resumes = async (id) => (await s.sandboxes('Timeline', { sandbox_id: id, team_id: 't1' })).events.filter((e) => e.to === 'resuming' || /resum/.test(e.text || '')).length;

await test('wake: 60 requests through three proxies and two lifecycles, one resume, every answer right', async () => {
  const { id, gen } = await paused();
  await order('delay restore 1000');
  const all = await Promise.all(Array.from({ length: 60 }, (_, i) => ask(proxies[i % 3], id, `/n${i}`)));
  all.forEach((a, i) => equal([a.status, String(a.body)], [200, `GET /n${i}`]));
  const timed = all.filter((a) => /^wake;dur=\d+$/.test(a.headers['server-timing'] || ''));
  assert(timed.length >= 3, `answers that name the wake: ${timed.length}`);
  // Each lifecycle tells the time since it was asked, and one of them was asked first.
  assert(timed.some((a) => Number(a.headers['server-timing'].slice(9)) >= 990), `the time of the wake is the true one: ${timed.map((a) => a.headers['server-timing'])}`);
  equal((await get(id)).gen, gen + 1, 'generation after the wake');
  equal(await c.r('HGET', `{c0}:rt:${id}`, 'state'), 'running');
});

await test('wake: what waits goes on in the order in which it came', async () => {
  const { id } = await paused();
  seen.length = 0;
  const sock = net.connect(proxies[0], '127.0.0.1'); // one connection, so that the order of arrival is certain
  await new Promise((ok) => sock.on('connect', ok));
  let text = '';
  sock.on('data', (b) => (text += b));
  for (let i = 0; i < 20; i++) sock.write(`GET /o${i} HTTP/1.1\r\nHost: ${host(id)}\r\n\r\n`);
  await until('20 answers', () => text.split('HTTP/1.1 200').length === 21);
  sock.destroy();
  equal(seen, Array.from({ length: 20 }, (_, i) => `/o${i}`));
});

await test('wake: WebSocket, upload and gRPC wake too', async () => {
  const a = await paused(), b = await paused(), d = await paused();
  const ws = net.connect(proxies[0], '127.0.0.1');
  let text = '';
  ws.on('data', (x) => (text += x));
  ws.write(`GET /ws HTTP/1.1\r\nHost: ${host(a.id)}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n`);
  const up = crypto.randomBytes(3 << 20);
  const post = ask(proxies[1], b.id, '/up', { method: 'POST', body: up });
  const T = grpc.makeGenericClientConstructor(service, 'T');
  const client = new T(`127.0.0.1:${proxies[2]}`, grpc.credentials.createInsecure(), { 'grpc.default_authority': host(d.id, 50051) });
  let waited = '';
  const echo = new Promise((ok, no) => client.Echo(Buffer.from('hi'), (e, x) => (e ? no(e) : ok(String(x)))).on('metadata', (m) => (waited = String(m.get('server-timing')))));
  equal(await echo, 'hi');
  assert(/^wake;dur=\d+$/.test(waited), `the call's metadata say that it waited: '${waited}'`);
  const bidi = client.Bidi(), back = new Promise((ok) => bidi.once('data', (x) => ok(String(x))));
  bidi.write(Buffer.from('both ways'));
  equal(await back, 'both ways');
  bidi.end();
  client.close();
  const answer = await post;
  equal([answer.status, String(answer.body)], [200, crypto.createHash('sha256').update(up).digest('hex')]);
  await until('101', () => text.startsWith('HTTP/1.1 101'));
  assert(/server-timing: wake;dur=/i.test(text), `the upgrade says that it waited: ${text}`);
  ws.write('ping over the tunnel');
  await until('the echo', () => text.endsWith('ping over the tunnel'));
  ws.destroy();
});

await test('wake: a failed resume is an error in the caller\'s protocol, with the reason, and the sandbox stays paused', async () => {
  const { id } = await paused();
  await order('refuse restore sandbox_capacity_unavailable 100');
  const plain = await ask(proxies[0], id, '/x');
  assert(plain.status >= 500 && JSON.parse(plain.body).message.length > 10, `${plain.status} ${plain.body}`);
  const reason = JSON.parse(plain.body).message;
  assert(!/could not be resumed$/.test(reason), `a reason: ${reason}`);
  const stream = await ask(proxies[1], id, '/x', { method: 'POST', headers: { 'content-type': 'application/connect+json' }, body: Buffer.from([0, 0, 0, 0, 2, 123, 125]) });
  equal([stream.status, stream.body[0]], [200, 2], 'an end-of-stream frame');
  assert(JSON.parse(stream.body.subarray(5)).error.message.length > 10, String(stream.body));
  const T = grpc.makeGenericClientConstructor(service, 'T');
  const client = new T(`127.0.0.1:${proxies[2]}`, grpc.credentials.createInsecure(), { 'grpc.default_authority': host(id, 50051) });
  const e = await new Promise((ok) => client.Echo(Buffer.from('hi'), (err) => ok(err)));
  equal(e.code, grpc.status.UNAVAILABLE, e.details);
  assert(e.details.length > 10, e.details);
  await until('it is paused again', async () => (await c.r('HGET', `{c0}:rt:${id}`, 'state')) === 'paused');
  await order('refuse restore ok');
  const now = (await get(id)).gen;
  await vm(id, now + 1);
  const again = await ask(proxies[0], id, '/again');
  equal([again.status, String(again.body)], [200, 'GET /again'], 'the next request wakes it');
  client.close();
});

await test('wake: not without auto-resume', async () => {
  const { id, gen } = await paused({ auto_resume: false });
  const a = await ask(proxies[0], id, '/');
  equal([a.status, JSON.parse(a.body).message], [502, 'The sandbox was not found']);
  equal((await get(id)).gen, gen);
});

await test('wake: the queue is bounded; what does not fit is told at once, the rest is served', async () => {
  const { id } = await paused();
  await order('delay restore 10000');
  const sessions = Array.from({ length: 12 }, () => http2.connect(`http://127.0.0.1:${proxies[0]}`));
  const one = (h, i) => new Promise((ok) => {
    const r = h.request({ ':path': `/q${i}`, ':authority': host(id) });
    let status;
    r.on('response', (x) => (status = x[':status']));
    r.on('error', () => ok(0));
    r.resume().on('close', () => ok(status));
  });
  let refused = 0;
  const all = sessions.flatMap((h, k) => Array.from({ length: 200 }, (_, i) => one(h, k * 200 + i).then((x) => (x === 409 && refused++, x))));
  await until('what does not fit is refused', () => refused >= 2400 - 2048, 30000);
  equal(await c.r('HGET', `{c0}:rt:${id}`, 'state'), 'resuming', 'state while requests are refused');
  const got = await Promise.all(all);
  const served = got.filter((x) => x === 200).length, told = got.filter((x) => x === 409).length;
  equal(served + told, 2400, `statuses ${JSON.stringify([...new Set(got)])}`);
  assert(served >= 1024 && served <= 2048, `two workers hold 1024 each at the most: ${served}`);
  await order('delay restore 0');
  for (const h of sessions) h.close();
});

await test('wake: a killed lifecycle is an error for those who wait, and the next request wakes', async () => {
  const { id } = await paused();
  await order('delay restore 1500');
  const waits = ask(proxies[0], id, '/w');
  await until('it resumes', async () => (await c.r('HGET', `{c0}:rt:${id}`, 'state')) === 'resuming');
  await c.kill('l1');
  const a = await waits;
  assert([200, 409, 503].includes(a.status), `status ${a.status} ${a.body}`);
  await order('delay restore 0');
  await until('the next request is served', async () => (await ask(proxies[1], id, '/later')).status === 200);
});

web.close();
rpc.forceShutdown();
sim.stdin.end();
await c.end();
done();
