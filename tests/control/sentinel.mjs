// Redis with a replica and Sentinel: the primary is killed, the replica takes over, nothing that was answered is lost.
import { Cluster, test, assert, equal, until, rejects, sleep, done, freePort, redisClient } from './harness.mjs';
import fs from 'node:fs';

const c = new Cluster();
const [a, b, w] = [await freePort(), await freePort(), await freePort()];
for (const [name, port] of [['redisA', a], ['redisB', b]]) {
  fs.mkdirSync(`${c.dir}/${name}`);
  c.spawn(name, 'redis-server', ['--port', port, '--bind', '127.0.0.1', '--save', '', '--appendonly', 'yes', '--dir', `${c.dir}/${name}`,
    '--repl-diskless-sync-delay', '0', ...(port === b ? ['--replicaof', '127.0.0.1', a] : [])].map(String));
}
const ping = (port) => async () => { const r = redisClient(port); try { return await r('PING') === 'PONG'; } finally { r.end(); } };
for (const p of [a, b]) await until(`Redis on ${p}`, ping(p));
const ra = redisClient(a);
await until('the replica is in step', async () => /connected_slaves:1\r?\n.*state=online/.test(await ra('INFO', 'replication')));
// Sentinel asks for a server's replicas once when it meets it and then every 10 s: one that met the primary a moment before the replica did
// knows of nobody to promote when it dies (-failover-abort-no-good-slave, for ever). So it starts last, and is asked what it knows.
fs.writeFileSync(`${c.dir}/sentinel.conf`, `port ${w}\nbind 127.0.0.1\ndir ${c.dir}\nsentinel monitor cube 127.0.0.1 ${a} 1\nsentinel down-after-milliseconds cube 1000\nsentinel failover-timeout cube 4000\n`);
c.spawn('sentinel', 'redis-server', [`${c.dir}/sentinel.conf`, '--sentinel']);
await until('Sentinel', ping(w));
const sentinel = redisClient(w);
const promotable = async () => {
  const pairs = (list) => Object.fromEntries(list.flatMap((k, i) => (i % 2 ? [] : [[k, list[i + 1]]])));
  return (await sentinel('SENTINEL', 'replicas', 'cube')).map(pairs).some((r) => r.port === String(b) && r.flags === 'slave' && r['master-link-status'] === 'ok');
};
await until('Sentinel knows the replica', promotable, 30000);
c.redisAddress = `sentinel:cube@127.0.0.1:${w}`;
const p1 = await c.master('m1', { report_interval: '200ms' }), p2 = await c.master('m2', { report_interval: '200ms' });
const n = await c.sim('n', [p1, p2], ['--nodes', 2]);
await c.lifecycle('l1');
const s = await c.seed(p1), s2 = c.services(p2);
await until('nodes', async () => (await s.nodes('List', {})).nodes.filter((x) => x.status === 'ready').length === 2);
const create = async (api = s, more = {}) => (await api.sandboxes('Create', { spec: { team_id: 't1', template_id: 'base', timeout_ms: 300000, ...more } })).sandbox;

const unconfirmed = async () => {
  const text = await (await fetch(`http://127.0.0.1:${c.m1Admin}/metrics`)).text();
  return Number(/cube_master_not_replicated_total(?:\{[^}]*\})? (\d+)/.exec(text)[1]);
};
await test('a create is answered when the replica has it; without the replica it is counted as unconfirmed', async () => {
  const rb = redisClient(b);
  await until('a create is confirmed', async () => {
    const before = await unconfirmed(), x = await create();
    return await rb('HGET', `{c0}:sb:${x.spec.sandbox_id}`, 'state') && await unconfirmed() === before;
  });
  await until('a create waits for a replica that stands still', async () => {
    const before = await unconfirmed();
    c.procs.get('redisB').kill('SIGSTOP');
    const start = Date.now();
    await create();
    const took = Date.now() - start;
    c.procs.get('redisB').kill('SIGCONT');
    return took >= 200 && await unconfirmed() > before;
  });
  await until('confirmed again', async () => { const before = await unconfirmed(); await create(); return await unconfirmed() === before; });
  rb.end();
});
await test('the primary dies under load: every sandbox that a client was told of is there after the failover', async () => {
  const told = [], errors = [];
  let stop = false;
  const load = [s, s2, s, s2].map(async (api) => {
    while (!stop) {
      try { told.push(await create(api)); } catch (e) { errors.push(e); await sleep(20); }
      await sleep(10);
    }
  });
  await until('the load runs', () => told.length > 60);
  await until('Sentinel could promote the replica', promotable, 30000);
  const before = told.length, at = Date.now();
  await c.kill('redisA');
  // When to promote is Sentinel's affair (it does nothing for 30 s after its own process stood still for 2); from then on it is ours.
  await until('Sentinel promotes the replica', async () => (await sentinel('SENTINEL', 'get-master-addr-by-name', 'cube'))[1] === String(b), 90000)
    .catch((e) => { throw new Error(`${e.message}; Sentinel: ${c.log('sentinel').slice(-1500).replace(/\n/g, ' | ')}`); });
  const promoted = Date.now();
  await until('creates work again', () => told.length > before + 20, 20000);
  const took = Date.now() - at;
  stop = true;
  await Promise.all(load);
  console.log(`  failover: creates again after ${took} ms (${at + took - promoted} after the promotion), ${before} before, ${told.length} in all, ${errors.length} refused`);
  assert(errors.every((e) => ['unavailable', 'deadline_exceeded', 'cancelled', 'sandbox_create_failed', 'internal_server_error', 'conflict'].includes(e.cube)), `odd error: ${[...new Set(errors.map((e) => `${e.cube} ${e.message}`))].slice(0, 3)}`);
  // A write that the replica had not taken within 200 ms may be gone: the node's next full report brings the record back.
  for (const x of told) {
    await until(`${x.spec.sandbox_id} is there`, async () =>
      (await s.sandboxes('Get', { sandbox_id: x.spec.sandbox_id, team_id: 't1' })).sandbox.state === 'RUNNING', 40000);
  }
  await until('no VM without a record, no record without a VM', async () => {
    const nodes = [...await n('n1 list'), ...await n('n2 list')].map((x) => x.id).sort();
    const rb = redisClient(b);
    try {
      const states = await Promise.all(nodes.map((id) => rb('HGET', `{c0}:sb:${id}`, 'state')));
      const running = (await rb('ZCARD', '{c0}:ix:team:t1:running'));
      return states.every((x) => x === 'running') && running === nodes.length;
    } finally { rb.end(); }
  }, 40000);
  for (const x of told) await s2.sandboxes('Kill', { sandbox_id: x.spec.sandbox_id, team_id: 't1' });
});
ra.end();
sentinel.end();
await c.end();
done();
