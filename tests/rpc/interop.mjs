// Both directions between lib/net/rpc and @grpc/grpc-js: interop.mjs PEER KEYS. Prints PASS or FAIL per check.
import grpc from '@grpc/grpc-js';
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';

const [peer, keys] = process.argv.slice(2);
const key = readFileSync(`${keys}/api.key`, 'utf8').trim();
let failed = 0;
function check(name, ok, seen) {
  console.log(ok ? `PASS rpc: ${name}` : `FAIL rpc: ${name}: saw ${JSON.stringify(seen)}`);
  failed += ok ? 0 : 1;
}

// Messages have one string, field 1.
function encode(text) {
  const body = Buffer.from(text);
  const head = [0x0a];
  let n = body.length;
  for (; n > 127; n = Math.floor(n / 128)) head.push((n % 128) | 128);
  return Buffer.concat([Buffer.from([...head, n]), body]);
}
function decode(bytes) {
  if (bytes.length === 0) return '';
  let at = 1;
  while (bytes[at++] & 128);
  return bytes.subarray(at).toString();
}
const status = { requestSerialize: encode, requestDeserialize: decode, responseSerialize: encode, responseDeserialize: decode };
const method = (service, name, requestStream, responseStream) =>
  ({ path: `/${service}/${name}`, requestStream, responseStream, ...status });
const service = {
  Echo: method('test.Echo', 'Echo', false, false), Fail: method('test.Echo', 'Fail', false, false),
  Hold: method('test.Echo', 'Hold', false, false), Count: method('test.Echo', 'Count', false, true),
  Sum: method('test.Echo', 'Sum', true, false), None: method('test.Echo', 'None', false, false),
};
const health = {
  Check: { ...method('grpc.health.v1.Health', 'Check', false, false), responseDeserialize: (b) => b[1] ?? 0 },
  Watch: { ...method('grpc.health.v1.Health', 'Watch', false, true), responseDeserialize: (b) => b[1] ?? 0 },
};

function metadata(role = 'api', secret = key) {
  const m = new grpc.Metadata();
  m.set('cube-role', role);
  m.set('cube-key', secret);
  return m;
}
const call = (client, name, text, options = {}, meta = metadata()) => new Promise((resolve) =>
  client[name](text, meta, { deadline: Date.now() + 10000, ...options }, (error, reply) => resolve(error ?? reply)));

async function ourServer() {
  const child = spawn(peer, ['serve', keys], { stdio: ['ignore', 'pipe', 'inherit'] });
  const port = await new Promise((resolve) => child.stdout.once('data', (d) => resolve(parseInt(d))));
  const Client = grpc.makeGenericClientConstructor(service, 'Echo');
  const c = new Client(`127.0.0.1:${port}`, grpc.credentials.createInsecure());
  let r = await call(c, 'Echo', 'hello');
  check('grpc-js calls us: unary', r === 'hello', r);
  r = await call(c, 'Echo', 'z'.repeat(3000000));
  check('grpc-js calls us: 3 MB both ways', r.length === 3000000, r.length ?? r);
  r = await call(c, 'Echo', 'z'.repeat(4 * 1024 * 1024 + 1));
  check('grpc-js calls us: above 4 MiB is refused', r.code === grpc.status.RESOURCE_EXHAUSTED, r);
  r = await call(c, 'Fail', 'thing');
  check('grpc-js calls us: error with message and our code', r.code === grpc.status.NOT_FOUND && r.details === 'no thing: 100% öde' &&
    r.metadata.get('cube-error-code')[0] === 'not_found', r);
  r = await call(c, 'Hold', 'x', { deadline: Date.now() + 200 });
  check('grpc-js calls us: deadline', r.code === grpc.status.DEADLINE_EXCEEDED, r);
  r = await call(c, 'None', 'x');
  check('grpc-js calls us: unknown method', r.code === grpc.status.UNIMPLEMENTED, r);
  r = await call(c, 'Echo', 'x', {}, metadata('api', '0'.repeat(64)));
  check('grpc-js calls us: wrong key', r.code === grpc.status.UNAUTHENTICATED, r);
  r = await call(c, 'Echo', 'x', {}, metadata('master'));
  check('grpc-js calls us: another role', r.code === grpc.status.UNAUTHENTICATED, r);
  const got = [];
  r = await new Promise((resolve) => c.Count('5000', metadata()).on('data', (d) => got.push(Number(d)))
    .on('error', resolve).on('end', () => resolve(null)));
  check('grpc-js calls us: server stream in order', !r && got.length === 5000 && got.every((v, i) => v === i), r ?? got.length);
  r = await new Promise((resolve) => {
    const up = c.Sum(metadata(), (error, reply) => resolve(error ?? reply));
    for (let i = 0; i < 20000; i++) up.write('p'.repeat(1000));
    up.end();
  });
  check('grpc-js calls us: client stream of 20 MB', r === '20000000', r);
  const Health = grpc.makeGenericClientConstructor(health, 'Health');
  const h = new Health(`127.0.0.1:${port}`, grpc.credentials.createInsecure());
  r = await call(h, 'Check', '', {}, new grpc.Metadata());
  check('grpc-js asks our health', r === 1, r);
  r = await call(h, 'Check', 'no.Such', {}, new grpc.Metadata());
  check('grpc-js asks our health of an unknown service', r.code === grpc.status.NOT_FOUND, r);
  const many = await Promise.all(Array.from({ length: 2000 }, (_, i) => call(c, 'Echo', `n${i}`)));
  check('grpc-js calls us: 2000 at once', many.every((v, i) => v === `n${i}`), many.find((v, i) => v !== `n${i}`));
  c.close();
  h.close();
  child.kill();
}

async function ourClient() {
  const server = new grpc.Server();
  server.addService({ Echo: service.Echo, Fail: service.Fail, Hold: service.Hold, Count: service.Count, Sum: service.Sum }, {
    Echo: (c, done) => done(null, c.request),
    Fail: (c, done) => done({ code: grpc.status.PERMISSION_DENIED, details: `nicht für ${c.request}\n` }),
    Hold: () => {},
    Count: (c) => { for (let i = 0; i < Number(c.request); i++) c.write(String(i)); c.end(); },
    Sum: (c, done) => { let n = 0; c.on('data', (d) => { n += d.length; }).on('end', () => done(null, String(n))); },
  });
  const port = await new Promise((resolve, reject) => server.bindAsync('127.0.0.1:0', grpc.ServerCredentials.createInsecure(),
    (e, p) => e ? reject(e) : resolve(p)));
  const child = spawn(peer, ['call', keys, `127.0.0.1:${port}`], { stdio: ['ignore', 'pipe', 'inherit'] });
  let text = '';
  child.stdout.on('data', (d) => { text += d; });
  await new Promise((resolve) => child.on('close', resolve));
  const lines = text.trim().split('\n');
  const want = ['echo hello', 'big bytes 3000000', 'fail error forbidden nicht für thing ', /^hold error deadline_exceeded /,
    /^none error not_implemented /, 'count 1000', 'stream end', 'sum 5000000'];
  want.forEach((w, i) => check(`we call grpc-js: ${lines[i]?.slice(0, 40) ?? 'nothing'}`,
    w instanceof RegExp ? w.test(lines[i]) : lines[i] === w, lines[i]));
  server.forceShutdown();
}

await ourServer();
await ourClient();
process.exit(failed ? 1 : 0);
