// Starts real programs of the control plane on free ports in a temporary directory: Redis, masters, lifecycles, simulated nodes.
// Tests print one line each: PASS name, FAIL name: why.
import { spawn } from 'node:child_process';
import { createRequire } from 'node:module';
import crypto from 'node:crypto';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';

const require = createRequire(path.join(process.env.CUBE_NODE_MODULES, 'x.js'));
export const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');
const AREA = process.env.CUBE_TEST_AREA || 'control';
export const ROOT = process.env.CUBE_ROOT;
export const BUILD = process.env.CUBE_BUILD_DIR || path.join(ROOT, 'build');

export const sleep = (ms) => new Promise((r) => setTimeout(r, ms));
const protos = grpc.loadPackageDefinition(loader.loadSync(
  ['proto/master.proto', 'proto/node.proto', 'proto/lifecycle.proto', 'proto/health.proto'].map((p) => path.join(ROOT, p)),
  { includeDirs: [ROOT], keepCase: true, longs: Number, enums: String, defaults: true }));
export const proto = protos;

/** A port below the range from which the kernel takes those of outgoing connections, so that nobody slips in; never the same one twice. */
const given = new Set();
export function freePort() {
  return new Promise((resolve) => {
    const s = net.createServer();
    s.on('error', () => freePort().then(resolve));
    s.listen(15000 + crypto.randomInt(17000), '127.0.0.1', () => {
      const p = s.address().port;
      s.close(() => (given.has(p) ? freePort().then(resolve) : resolve(given.add(p) && p)));
    });
  });
}

const children = new Set();
process.on('exit', () => { for (const p of children) p.kill('SIGKILL'); });
process.on('uncaughtException', (e) => { console.log(`FAIL ${AREA}: ${e.stack}`); process.exit(1); });
for (const s of ['SIGINT', 'SIGTERM']) process.on(s, () => process.exit(1));

let failed = 0;
// Nothing in the suite takes a third of it, on one processor that others use, too. Soaks and the like may be told to take longer.
const HANGS_MS = 300000 * (process.env.LONG ? 24 : 1) + 1000 * Number(process.env.CUBE_CHAOS_SECONDS || 0);
export async function test(name, fn) {
  const start = Date.now();
  // A test that hangs cannot be ended; what comes after it would not mean anything.
  const hangs = setTimeout(() => {
    console.log(`FAIL ${AREA}: ${name}: not done in ${HANGS_MS / 1000} s; it waits for: ${process.getActiveResourcesInfo().join(' ').slice(0, 400)}`);
    process.exit(1);
  }, HANGS_MS);
  try {
    await fn();
    console.log(`PASS ${AREA}: ${name} (${Date.now() - start} ms)`);
  } catch (e) {
    failed++;
    console.log(`FAIL ${AREA}: ${name}: ${String(e.stack || e).split('\n').slice(0, 4).join(' | ')}`);
  } finally {
    clearTimeout(hangs);
  }
}
export function assert(cond, text) { if (!cond) throw new Error(text); }
export function equal(a, b, text) {
  if (JSON.stringify(a) !== JSON.stringify(b)) throw new Error(`${text || 'equal'}: got ${JSON.stringify(a)}, wanted ${JSON.stringify(b)}`);
}
// Limits are generous: the machine may be busy. What has to be quick is measured by `cube bench control`.
export async function until(what, fn, ms = 20000, step = 20) {
  const end = Date.now() + ms;
  let last;
  for (;;) {
    try { last = await fn(); if (last) return last; } catch (e) { last = e; }
    if (Date.now() > end) throw new Error(`${what} did not happen within ${ms} ms (last: ${last && last.message || JSON.stringify(last)})`);
    await sleep(step);
  }
}

/** A Redis connection: r('GET', key). */
export function redisClient(port) {
  const sock = net.connect(port, '127.0.0.1');
  const queue = [];
  let buf = Buffer.alloc(0), broken = null;
  function parse(at) {
    const end = buf.indexOf('\r\n', at);
    if (end < 0) return null;
    const kind = String.fromCharCode(buf[at]), text = buf.toString('utf8', at + 1, end);
    if (kind === '+') return [text, end + 2];
    if (kind === '-') return [new Error(text), end + 2];
    if (kind === ':') return [Number(text), end + 2];
    if (kind === '$') {
      const n = Number(text);
      if (n < 0) return [null, end + 2];
      if (buf.length < end + 2 + n + 2) return null;
      return [buf.toString('utf8', end + 2, end + 2 + n), end + 4 + n];
    }
    let pos = end + 2; const out = [];
    for (let i = 0; i < Number(text); i++) { const p = parse(pos); if (!p) return null; out.push(p[0]); pos = p[1]; }
    return [out, pos];
  }
  sock.on('data', (d) => {
    buf = Buffer.concat([buf, d]);
    for (let p; queue.length && (p = parse(0));) { buf = buf.subarray(p[1]); const q = queue.shift(); p[0] instanceof Error ? q.reject(p[0]) : q.resolve(p[0]); }
  });
  const end = (e) => { broken = e || new Error('closed'); for (const q of queue.splice(0)) q.reject(broken); };
  sock.on('error', end); sock.on('close', () => end());
  const call = (...args) => new Promise((resolve, reject) => {
    if (broken) return reject(broken);
    queue.push({ resolve, reject });
    sock.write(`*${args.length}\r\n` + args.map((a) => { const s = String(a); return `$${Buffer.byteLength(s)}\r\n${s}\r\n`; }).join(''));
  });
  call.hash = async (key) => { const f = await call('HGETALL', key), o = {}; for (let i = 0; i < f.length; i += 2) o[f[i]] = f[i + 1]; return o; };
  call.end = () => sock.destroy();
  return call;
}

export class Cluster {
  constructor() {
    this.dir = fs.mkdtempSync(path.join(os.tmpdir(), 'M-control-'));
    this.procs = new Map();
    fs.mkdirSync(path.join(this.dir, 'keys'), { recursive: true });
    for (const role of ['api', 'master', 'node', 'lifecycle', 'proxy', 'admin', 'seed']) {
      const f = path.join(this.dir, 'keys', role === 'seed' ? 'seed' : `${role}.key`);
      fs.writeFileSync(f, crypto.randomBytes(32).toString('hex') + '\n', { mode: 0o600 });
    }
    this.clients = [];
  }
  key(role) { return fs.readFileSync(path.join(this.dir, 'keys', `${role}.key`), 'utf8').trim(); }
  spawn(name, file, args, env = {}) {
    const log = fs.openSync(path.join(this.dir, `${name}.log`), 'a');
    const p = spawn(file, args, { stdio: ['ignore', log, log], env: { ...process.env, ...env } });
    fs.closeSync(log);
    p.ended = new Promise((r) => p.on('exit', (code, signal) => r({ code, signal })));
    this.procs.set(name, p);
    children.add(p);
    p.on('exit', () => children.delete(p));
    return p;
  }
  log(name) { return fs.readFileSync(path.join(this.dir, `${name}.log`), 'utf8'); }
  async kill(name, signal = 'SIGKILL') { const p = this.procs.get(name); p.kill(signal); this.procs.delete(name); return p.ended; }
  async redis({ port, aof = false } = {}) {
    this.redisPort = port || this.redisPort || await freePort();
    this.spawn('redis', 'redis-server', ['--port', this.redisPort, '--bind', '127.0.0.1', '--save', '', '--appendonly', aof ? 'yes' : 'no',
      '--appendfsync', 'always', '--dir', this.dir, '--loglevel', 'warning'].map(String));
    await until('Redis answers', async () => { const r = redisClient(this.redisPort); try { return await r('PING') === 'PONG'; } finally { r.end(); } });
    this.r = redisClient(this.redisPort);
  }
  config(section, extra) {
    const keys = { listen: `127.0.0.1:${extra.port}`, admin_listen: `127.0.0.1:${extra.admin}`, ...extra.keys };
    const file = path.join(this.dir, `${section}-${extra.port}.yaml`);
    fs.writeFileSync(file, `common:\n  redis: "${this.redisAddress || `${process.env.CUBE_REDIS_HOST || '127.0.0.1'}:${this.redisPort}`}"\n  state_dir: "${this.dir}"\n  log_level: info\n` +
      `${section}:\n` + Object.entries(keys).map(([k, v]) => `  ${k}: ${JSON.stringify(v)}\n`).join(''));
    return file;
  }
  async master(name = 'm1', keys = {}) {
    const port = this[`${name}Port`] || await freePort(), admin = await freePort();
    this[`${name}Port`] = port;
    this.spawn(name, process.env.CUBE_MASTER_PROGRAM || path.join(BUILD, 'master/cube-master'), ['--config', this.config('master', { port, admin, keys })]);
    this[`${name}Admin`] = admin;
    await this.ready(name, port);
    return port;
  }
  async ready(name, port) {
    const h = this.client(protos.grpc.health.v1.Health, port, 'api');
    await until(`${name} serves`, async () => {
      assert(this.procs.get(name)?.exitCode === null, `${name} ended: ${this.log(name).slice(-400)}`);
      return (await h('Check', { service: '' })).status === 'SERVING';
    }, 20000);
  }
  async lifecycle(name = 'l1', keys = {}) {
    const port = await freePort(), admin = await freePort();
    this[`${name}Port`] = port;
    this[`${name}Admin`] = admin;
    this.spawn(name, process.env.CUBE_LIFECYCLE_PROGRAM || path.join(BUILD, 'lifecycle/cube-lifecycle'), ['--config', this.config('lifecycle', { port, admin, keys })]);
    await until(`${name} is ready`, async () => (await fetch(`http://127.0.0.1:${admin}/readyz`)).status === 200, 20000);
    return port;
  }
  async sim(name, masters, args = []) {
    const socket = path.join(this.dir, `${name}.sock`);
    this.spawn(name, path.join(BUILD, 'tests/control/faultnode/cube-faultnode'), ['--masters', masters.map((p) => `127.0.0.1:${p}`).join(','), '--key-dir',
      path.join(this.dir, 'keys'), '--control', socket, '--templates', 'tpl1', ...args.map(String)]);
    await until(`${name} listens`, () => fs.existsSync(socket));
    return (line) => new Promise((resolve, reject) => {
      const s = net.connect(socket, () => s.write(line + '\n'));
      let out = '';
      s.on('data', (d) => { out += d; if (out.endsWith('\n')) { s.end(); resolve(JSON.parse(out)); } });
      s.on('error', reject);
    });
  }
  /** call(method, request) → reply; errors carry .code and .cube (our error code). */
  client(Service, port, role = 'api', more = {}) {
    const c = new Service(`127.0.0.1:${port}`, grpc.credentials.createInsecure(), { 'grpc.initial_reconnect_backoff_ms': 50, 'grpc.max_reconnect_backoff_ms': 200 });
    this.clients.push(c);
    const call = (method, request, options = {}) => new Promise((resolve, reject) => {
      const m = new grpc.Metadata();
      m.set('cube-role', role);
      if (role) m.set('cube-key', more.key || this.key(role));
      if (more.node) m.set('cube-node', more.node);
      if (options.trace) m.set('traceparent', options.trace);
      c[method](request, m, { deadline: Date.now() + (options.timeout || 30000) }, (err, reply) => {
        if (!err) return resolve(reply);
        err.cube = err.metadata?.get('cube-error-code')[0];
        reject(err);
      });
    });
    call.raw = c;
    return call;
  }
  services(port = this.m1Port, role = 'api') {
    const M = protos.cube.master.v1;
    return { sandboxes: this.client(M.Sandboxes, port, role), catalog: this.client(M.Catalog, port, role), nodes: this.client(M.Nodes, port, role) };
  }
  async seed(port = this.m1Port, team = {}) {
    const s = this.services(port);
    await s.catalog('PutTeam', { team_id: 't1', name: 'Team', slug: 't1', ...team });
    await s.catalog('PutTemplate', { template_id: 'tpl1', public: true, aliases: ['base'], limits: { vcpus: 1, memory_mib: 512, disk_mib: 1024 }, status: 'ready', default_user: 'user' });
    return s;
  }
  async end() {
    for (const c of this.clients) c.close();
    this.r?.end();
    // Masters and lifecycles end by themselves, so that a sanitizer can say what they leave.
    const daemons = [...this.procs].filter(([name, p]) => /^[ml]\d/.test(name) && p.exitCode === null && p.signalCode === null);
    for (const [name, p] of daemons) {
      p.kill('SIGTERM');
      const end = await Promise.race([p.ended, sleep(20000)]);
      if (end?.code !== 0) { failed++; console.log(`FAIL ${AREA}: ${name} ended with ${JSON.stringify(end)} after SIGTERM`); }
    }
    for (const [name] of [...this.procs]) await this.kill(name);
    let bad = '';
    for (const f of fs.readdirSync(this.dir)) {
      if (!f.endsWith('.log')) continue;
      const text = fs.readFileSync(path.join(this.dir, f), 'utf8');
      const at = text.search(/ERROR: (Address|Leak|Thread)Sanitizer|runtime error:|WARNING: ThreadSanitizer/);
      if (at >= 0) bad += `${f}: ${text.slice(at, at + 1500)}\n`;
    }
    if (bad) { failed++; console.log(`FAIL ${AREA}: sanitizer report: ${bad.replace(/\n/g, ' | ')}`); }
    if (!process.env.KEEP) fs.rmSync(this.dir, { recursive: true, force: true });
    else console.log(`kept ${this.dir}`);
  }
}
export function done() { process.exit(failed ? 1 : 0); }
export async function rejects(p, code, text) {
  try { await p; } catch (e) {
    if (code && e.cube !== code) throw new Error(`wanted ${code}, got ${e.cube} (${e.message})`);
    if (text && !text.test(e.message)) throw new Error(`message was "${e.message}", wanted ${text}`);
    return e;
  }
  throw new Error(`wanted an error ${code}, but it succeeded`);
}
