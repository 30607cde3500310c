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
fs.writeFileSync(`${c.dir}/sentinel.conf`, `port ${w}\nbind 127.0.0.1\ndir ${c.dir}\nsentinel monitor cube 127.0.0.1 ${a} 1\nsentinel down-after-milliseconds cube 1000\nsentinel failover-timeout cube 4000\n`);
c.spawn('sentinel', 'redis-server', [`${c.dir}/sentinel.conf`, '--sentinel']);
await until('Sentinel', ping(w));
const ra = redisClient(a);
await until('the replica is in step', async () => /connected_slaves:1/.test(await ra('INFO', 'replication')));
c.redisAddress = `sentinel:cube@127.0.0.1:${w}`;
const p1 = await c.master('m1', { report_interval: '200ms' }), p2 = await c.master('m2', { report_interval: '200ms' });
const n = await c.sim('n', [p1, p2], ['--nodes', 2]);
await c.lifecycle('l1');
const s = await c.seed(p1), s2 = c.services(p2);
await until('nodes', async () => (await s.nodes('List', {})).nodes.filter((x) => x.status === 'ready').length === 2);
const create = async (api = s, more = {}) => (await api.sandboxes('Create', { spec: { team_id: 't1', template_id: 'base', timeout_ms: 300000, ...more } })).sandbox;

await test('creates wait for the replica, and no commit goes unconfirmed', async () => {
  await until('m1 sees the replica', async () => {
    const x = await create();
    const rb = redisClient(b);
    try { return await rb('HGET', `{c0}:sb:${x.spec.sandbox_id}`, 'state'); } finally { rb.end(); }
  }, 20000);
  const text = await (await fetch(`http://127.0.0.1:${c.m1Admin}/metrics`)).text();
  assert(/cube_master_not_replicated_total 0/.test(text), 'unconfirmed');
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
  await sleep(1000);
  const before = told.length, at = Date.now();
  await c.kill('redisA');
  await until('creates work again', () => told.length > before + 20, 40000);
  const took = Date.now() - at;
  stop = true;
  await Promise.all(load);
  console.log(`  failover: creates again after ${took} ms, ${before} before, ${told.length} in all, ${errors.length} refused`);
  assert(errors.every((e) => ['unavailable', 'deadline_exceeded', 'cancelled', 'sandbox_create_failed', 'internal_server_error', 'conflict'].includes(e.cube)), `odd error: ${[...new Set(errors.map((e) => `${e.cube} ${e.message}`))].slice(0, 3)}`);
  for (const x of told) {
    const got = await s.sandboxes('Get', { sandbox_id: x.spec.sandbox_id, team_id: 't1' }).catch((e) => ({ sandbox: { state: e.cube } }));
    equal(got.sandbox.state, 'RUNNING', x.spec.sandbox_id);
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
await c.end();
done();
