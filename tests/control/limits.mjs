// Limits: quotas, create rate, idempotency keys, no oversell with three masters, Redis with its data, discovery, wrong configuration.
import { Cluster, test, assert, equal, until, rejects, sleep, done, proto, BUILD } from './harness.mjs';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';

const c = new Cluster();
await c.redis({ aof: true });
const ports = [];
for (const m of ['m1', 'm2', 'm3']) ports.push(await c.master(m, { report_interval: '200ms', overcommit_memory: 100, initial_memory: 100 }));
const n = await c.sim('n', ports, ['--nodes', 3, '--memory', 4096, '--cpu', 64000]);
const s = await c.seed();
const apis = ports.map((p) => c.services(p));
await s.catalog('PutTemplate', { template_id: 'small', aliases: ['small'], public: true, limits: { vcpus: 1, memory_mib: 256, disk_mib: 512 }, status: 'ready' });
const spec = (more = {}, idem = '') => ({ spec: { team_id: 't1', template_id: 'small', timeout_ms: 300000, ...more }, idempotency_key: idem });
const create = (api, more, idem) => api.sandboxes('Create', spec(more, idem)).then((r) => r.sandbox);
const killAll = async (list) => { for (const x of list) await s.sandboxes('Kill', { sandbox_id: x.spec.sandbox_id, team_id: x.spec.team_id }); };
await until('nodes', async () => (await Promise.all(apis.map((a) => a.nodes('List', {})))).every((r) => r.nodes.filter((x) => x.status === 'ready').length === 3));

await test('three masters, 200 creates at once for room of 48: exactly 48 run, none is oversold', async () => {
  const all = await Promise.allSettled(Array.from({ length: 200 }, (_, i) => create(apis[i % 3])));
  const ok = all.filter((x) => x.status === 'fulfilled').map((x) => x.value);
  const bad = all.filter((x) => x.status === 'rejected').map((x) => x.reason);
  const per = {};
  for (const x of ok) per[x.node_id] = (per[x.node_id] || 0) + 1;
  assert(Object.values(per).every((k) => k <= 16), `oversold: ${JSON.stringify(per)}`);
  equal(ok.length, 48, `all room is used (${JSON.stringify(per)})`);
  assert(bad.every((e) => e.cube === 'sandbox_capacity_unavailable' && /memory/.test(e.message)), bad[0]?.message);
  for (const id of ['n1', 'n2', 'n3']) {
    const h = await c.r.hash(`{c0}:node:${id}`);
    equal([h.r_nominal, h.r_count], ['4096', '16'], id);
  }
  await killAll(ok);
  for (const id of ['n1', 'n2', 'n3']) equal((await c.r.hash(`{c0}:node:${id}`)).r_mem, '0');
});
await test('quota of sandboxes, with three masters at once; paused ones do not count', async () => {
  await s.catalog('PutTeam', { team_id: 't2', slug: 't2', name: 'Two', max_sandboxes: 5 });
  const all = await Promise.allSettled(Array.from({ length: 30 }, (_, i) => create(apis[i % 3], { team_id: 't2' })));
  const ok = all.filter((x) => x.status === 'fulfilled').map((x) => x.value);
  equal(ok.length, 5);
  for (const x of all) if (x.status === 'rejected') assert(x.reason.cube === 'rate_limited' && /maximum number of concurrent E2B sandboxes \(5\)/.test(x.reason.message), x.reason.message);
  await s.sandboxes('Pause', { sandbox_id: ok[0].spec.sandbox_id, team_id: 't2' });
  const more = await create(apis[1], { team_id: 't2' });
  await rejects(s.sandboxes('Resume', { sandbox_id: ok[0].spec.sandbox_id, team_id: 't2' }), 'rate_limited');
  equal((await c.r.hash('{c0}:use:t2')).sandboxes, '5');
  await killAll([...ok, more]);
});
await test('quotas of vCPU and memory name what is reached; a blocked team is forbidden', async () => {
  await s.catalog('PutTeam', { team_id: 't3', slug: 't3', name: 'Three', max_vcpus: 2 });
  const a = [await create(s, { team_id: 't3' }), await create(s, { team_id: 't3' })];
  await rejects(create(s, { team_id: 't3' }), 'rate_limited', /limit of vcpus is reached \(limit 2 vCPUs, in use 2\)/);
  await s.catalog('PutTeam', { team_id: 't3', slug: 't3', name: 'Three', max_memory_mib: 600 });
  await rejects(create(s, { team_id: 't3' }), 'rate_limited', /limit of memory is reached \(limit 600 MiB, in use 512\)/);
  await s.catalog('PutTeam', { team_id: 't3', slug: 't3', name: 'Three', blocked: true });
  await rejects(create(s, { team_id: 't3' }), 'forbidden', /blocked/);
  await killAll(a);
});
await test('create rate: a burst beyond it is refused with the reason, and comes back with time', async () => {
  await s.catalog('PutTeam', { team_id: 't4', slug: 't4', name: 'Four', creates_per_s: 1 });
  const all = await Promise.allSettled(Array.from({ length: 12 }, (_, i) => create(apis[i % 3], { team_id: 't4' })));
  const ok = all.filter((x) => x.status === 'fulfilled').map((x) => x.value);
  assert(ok.length >= 1 && ok.length < 12, `${ok.length} of a burst`);
  assert(all.filter((x) => x.status === 'rejected').every((x) => /create rate of the team exceeded \(1 per second\)/.test(x.reason.message)));
  ok.push(await until('it comes back', () => create(s, { team_id: 't4' }), 20000, 100));
  await killAll(ok);
});
await test('idempotency key: one sandbox from many retries on all masters; another body is refused', async () => {
  const all = await Promise.all(Array.from({ length: 12 }, (_, i) => create(apis[i % 3], {}, 'key-1')));
  equal(new Set(all.map((x) => x.spec.sandbox_id)).size, 1);
  await rejects(create(s, { timeout_ms: 1 }, 'key-1'), 'invalid_argument', /idempotency key/);
  const other = await create(s, {}, 'key-2');
  assert(other.spec.sandbox_id !== all[0].spec.sandbox_id);
  for (const id of ['n1', 'n2', 'n3']) await n(`${id} refuse_start sandbox_capacity_unavailable`);
  await rejects(create(s, {}, 'key-3'), 'sandbox_capacity_unavailable');
  for (const id of ['n1', 'n2', 'n3']) await n(`${id} refuse_start -`);
  const third = await create(s, {}, 'key-3');
  equal(third.state, 'RUNNING', 'a failed create frees its key');
  await killAll([all[0], other, third]);
});
await test('idempotency key: the retry finds its sandbox on a full fleet and after its template is gone', async () => {
  await s.catalog('PutTemplate', { template_id: 'brief', aliases: ['brief'], public: true, limits: { vcpus: 1, memory_mib: 256 }, status: 'ready' });
  const x = await create(s, { template_id: 'brief' }, 'key-4');
  const full = await Promise.allSettled(Array.from({ length: 60 }, (_, i) => create(apis[i % 3])));
  await rejects(create(s), 'sandbox_capacity_unavailable');
  equal((await create(apis[1], { template_id: 'brief' }, 'key-4')).spec.sandbox_id, x.spec.sandbox_id, 'on a full fleet');
  await c.r('DEL', '{c0}:alias:/brief');
  equal((await create(apis[2], { template_id: 'brief' }, 'key-4')).spec.sandbox_id, x.spec.sandbox_id, 'without its template');
  await killAll([x, ...full.filter((y) => y.status === 'fulfilled').map((y) => y.value)]);
});
await test('the longest time of a team is a cap of a sandbox\'s life: extending again and again does not pass it', async () => {
  await s.catalog('PutTeam', { team_id: 't5', slug: 't5', name: 'Five', max_timeout_ms: 60000 });
  const x = await create(s, { team_id: 't5', timeout_ms: 60000, auto_resume: true }), q = { sandbox_id: x.spec.sandbox_id, team_id: 't5' };
  const cap = (y) => { assert(y.end_ms - y.started_ms <= 60000, `${y.end_ms - y.started_ms} ms`); return y; };
  await sleep(50);
  cap((await s.sandboxes('SetDeadline', { ...q, timeout_ms: 60000 })).sandbox);
  cap((await s.sandboxes('SetDeadline', { ...q, timeout_ms: 900000, extend_only: true })).sandbox);
  cap((await s.sandboxes('Resume', { ...q, timeout_ms: 60000, extend_only: true })).sandbox);
  equal((await s.sandboxes('SetDeadline', { ...q, timeout_ms: 100 })).sandbox.state, 'RUNNING', 'shortening is free');
  await s.sandboxes('Pause', q);
  const woken = c.services(ports[0], 'lifecycle').sandboxes('Resume', { sandbox_id: q.sandbox_id, wake: true, extend_only: true });
  cap((await woken).sandbox);
  await s.catalog('PutTeam', { team_id: 't5', slug: 't5', name: 'Five', max_timeout_ms: 1 }); // which is over
  await rejects(s.sandboxes('SetDeadline', { ...q, timeout_ms: 900000 }), 'invalid_argument', /Max instance length exceeded/);
  equal((await s.sandboxes('SetDeadline', { ...q, timeout_ms: 0 })).sandbox.state, 'RUNNING', 'an end at once is always free');
  await killAll([x]);
});
await test('a key whose revocation cannot be written down stays, and is revoked by the next try', async () => {
  const key_sha256 = 'c'.repeat(64), journal = `${c.dir}/store/catalog.journal`, key_id = (await s.catalog('CreateKey', { team_id: 't1', name: 'k', key_sha256 })).key.key_id;
  fs.renameSync(journal, `${journal}.away`);
  fs.mkdirSync(journal);
  await rejects(s.catalog('DeleteKey', { team_id: 't1', key_id }), 'internal_server_error');
  fs.rmdirSync(journal);
  fs.renameSync(`${journal}.away`, journal);
  equal((await s.catalog('CheckKey', { key_sha256 })).key_id, key_id, 'nothing was done');
  await rejects(s.catalog('DeleteKey', { team_id: 't2', key_id }), 'not_found');
  await s.catalog('DeleteKey', { team_id: 't1', key_id });
  await rejects(s.catalog('CheckKey', { key_sha256 }), 'unauthenticated');
});
await test('a slug is one team\'s; a team has a bounded number of keys', async () => {
  await rejects(s.catalog('PutTeam', { team_id: 't6', slug: 't1', name: 'Six' }), 'conflict', /slug 't1'/);
  await s.catalog('PutTeam', { team_id: 't1', slug: 't1', name: 'Team' });
  await s.catalog('PutTeam', { team_id: 't6', slug: 't6', name: 'Six' });
  await c.r('HSET', '{c0}:keys:t6', ...Array.from({ length: 1000 }, (_, i) => [`k${i}`, 'x']).flat());
  await rejects(s.catalog('CreateKey', { team_id: 't6', name: 'k', key_sha256: 'd'.repeat(64) }), 'conflict', /as many API keys/);
  await c.r('DEL', '{c0}:keys:t6');
});
await test('deadlines that cannot be met do not stand before others', async () => {
  await c.lifecycle('l1', { due_batch: 1 });
  for (const id of ['n1', 'n2', 'n3']) await n(`${id} refuse_pause storage_full`);
  const stuck = await create(s, { auto_pause: true, auto_pause_memory: true, timeout_ms: 1 });
  let x;
  while (!x) {
    x = await create(s);
    if (x.spec.sandbox_id.at(-1) === stuck.spec.sandbox_id.at(-1)) break;
    await killAll([x]);
    x = null;
  }
  await s.sandboxes('SetDeadline', { sandbox_id: x.spec.sandbox_id, team_id: 't1', timeout_ms: 0 });
  await until('the one behind it ended', async () => (await c.r('HGET', `{c0}:sb:${x.spec.sandbox_id}`, 'state')) === 'killed');
  const now = await c.r('HGET', `{c0}:sb:${stuck.spec.sandbox_id}`, 'state'); // it may be at its next try
  assert(['running', 'pausing'].includes(now), `the one that cannot be paused is ${now}`);
  for (const id of ['n1', 'n2', 'n3']) await n(`${id} refuse_pause -`);
  await until('the first is paused', async () => (await c.r('HGET', `{c0}:sb:${stuck.spec.sandbox_id}`, 'state')) === 'paused', 60000);
  await c.kill('l1');
  await killAll([stuck]);
});
await test('labels: only nodes that carry them', async () => {
  const g = await c.sim('g', ports, ['--prefix', 'g', '--nodes', 1, '--label', 'gpu=a100']);
  await until('g1', async () => (await s.nodes('List', {})).nodes.some((x) => x.node_id === 'g1' && x.status === 'ready'));
  for (let i = 0; i < 3; i++) {
    const x = await create(s, { metadata: [{ key: 'cube.label.gpu', value: 'a100' }] });
    equal(x.node_id, 'g1');
    await killAll([x]);
  }
  await g('g1 silent 1');
  await c.kill('g');
});
await test('a node that lies: no capacity, absurd capacity, a foreign address, an unknown generation', async () => {
  const link = c.client(proto.cube.master.v1.NodeLink, ports[0], 'node', { node: 'liar' });
  const reg = (more) => link('Register', { node_id: 'liar', rpc_address: '127.0.0.1:1', capacity: { memory_mib: 1024, cpu_milli: 1000 }, ...more });
  await rejects(reg({ capacity: null }), 'invalid_argument', /no capacity/);
  await rejects(reg({ rpc_address: 'no address' }), 'invalid_argument', /rpc address/);
  await rejects(reg({ node_id: '../x' }), 'invalid_argument');
  await reg({ capacity: { memory_mib: 1e15, cpu_milli: 4000000000, max_sandboxes: 4000000000 } });
  const h = await c.r.hash('{c0}:node:liar');
  assert(Number(h.cap_mem) <= 64 << 20 && Number(h.cap_cpu) <= 4096000, JSON.stringify(h));
  await s.nodes('Cordon', { node_id: 'liar' });
  const x = await create(s);
  const report = link.raw.Report(Object.assign(new (await import('./harness.mjs')).grpc.Metadata(), {}), () => {});
  report.on('error', () => {});
  report.end();
  const m = new (await import('./harness.mjs')).grpc.Metadata();
  m.set('cube-role', 'node'); m.set('cube-key', c.key('node')); m.set('cube-node', 'liar');
  const up = link.raw.Report(m, () => {});
  up.on('error', () => {});
  up.write({ capacity: { memory_mib: 1, cpu_milli: 1 }, full: true, sandboxes: [
    { spec: x.spec, gen: 99, state: 'RUNNING' }, { spec: { sandbox_id: 'nonsense' }, gen: 1, state: 'RUNNING' }, { gen: 5, state: 'PAUSED' },
    { spec: { ...x.spec, sandbox_id: 'i0' + 'y'.repeat(19) }, gen: 0, state: 'RUNNING' }] });
  await until('the report was taken', async () => (await c.r('HGET', '{c0}:node:liar', 'cap_mem')) === '1');
  await sleep(300);
  const now = (await s.sandboxes('Get', { sandbox_id: x.spec.sandbox_id, team_id: 't1' })).sandbox;
  equal([now.node_id, now.gen, now.state], [x.node_id, x.gen, 'RUNNING'], 'a node cannot take another\'s sandbox');
  up.end();
  await killAll([x]);
});
await test('Redis restarts with its data: nothing is lost, the cell does not recover', async () => {
  const x = await create(s);
  const epoch = await c.r('HGET', '{c0}:meta', 'epoch');
  await c.kill('redis');
  await rejects(create(s), 'unavailable');
  await c.redis({ aof: true });
  const at = Date.now();
  let y;
  await until('creates work again', async () => { y = await create(s); return true; });
  assert(Date.now() - at < 10000);
  equal(await c.r('HGET', '{c0}:meta', 'epoch'), epoch);
  equal((await s.sandboxes('Get', { sandbox_id: x.spec.sandbox_id, team_id: 't1' })).sandbox.state, 'RUNNING');
  await killAll([x, y]);
});
await test('discovery: masters announce themselves and leave within 3 s', async () => {
  const alive = () => c.r('ZRANGEBYSCORE', '{c0}:svc:master', Date.now(), '+inf');
  await until('three', async () => (await alive()).length === 3);
  assert((await alive()).some((x) => x.endsWith(` 127.0.0.1:${ports[1]}`)), String(await alive()));
  await c.master('m4', { advertise: 'm4.example:3010' });
  await until('the advertised address', async () => (await alive()).some((x) => x.endsWith(' m4.example:3010')));
  await c.kill('m4');
  await c.kill('m3');
  await until('two', async () => (await alive()).length === 2, 15000);
});
await test('wrong configuration stops the daemon with file and line; wrong journal and cell as well', async () => {
  const run = (text, prog = 'master') => {
    fs.writeFileSync(`${c.dir}/bad.yaml`, text);
    const r = spawnSync(`${BUILD}/${prog}/cube-${prog}`, ['--config', `${c.dir}/bad.yaml`], { timeout: 20000, encoding: 'utf8' });
    assert(r.status !== 0 && r.status !== null, `ended with ${r.status}: ${r.stderr}`);
    return r.stderr + r.stdout;
  };
  const typo = run(`common:\n  redis: "127.0.0.1:${c.redisPort}"\nmaster:\n  weight_lokality: 5\n`);
  assert(/bad\.yaml:4:\d+/.test(typo) && /weight_lokality/.test(typo), typo);
  assert(/weight_room|1000/.test(run('master:\n  weight_room: 5000\n')), 'out of range');
  assert(/cell/.test(run(`common:\n  state_dir: "${c.dir}"\n  redis: "127.0.0.1:1"\nmaster:\n  cell: "zz"\n`)));
  fs.mkdirSync(`${c.dir}/other`, { recursive: true });
  fs.writeFileSync(`${c.dir}/other/journal`, 'cube-journal 1 abcdefghijklmnopqrst\n');
  const base = `common:\n  redis: "127.0.0.1:${c.redisPort}"\n  state_dir: "${c.dir}"\nmaster:\n  listen: "127.0.0.1:0"\n  admin_listen: "127.0.0.1:0"\n`;
  assert(/journal/.test(run(base + `  journal: "${c.dir}/other/journal"\n`)), 'another journal');
  assert(/not a catalog journal/.test(run(base + `  journal: "${c.dir}/bad.yaml"\n`)));
  assert(/lifecycle\.cell/.test(run(`common:\n  state_dir: "${c.dir}"\nlifecycle:\n  cell: "zz"\n`, 'lifecycle')));
});
await test('metrics and readiness on the admin port', async () => {
  equal((await fetch(`http://127.0.0.1:${c.m1Admin}/readyz`)).status, 200);
  const text = await (await fetch(`http://127.0.0.1:${c.m1Admin}/metrics`)).text();
  assert(/cube_master_commits_total\{[^}]*outcome="ok"[^}]*\} [1-9]/.test(text), text.slice(0, 600));
  assert(/cube_master_creates_total\{result="ok"\} [1-9]/.test(text), text.slice(0, 600));
});
await c.end();
done();
