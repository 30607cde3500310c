// Redis or every master away for longer than it takes to call a node lost: nothing that ran on through it is given up.
import { Cluster, test, assert, equal, until, sleep, done } from './harness.mjs';

const c = new Cluster();
await c.redis({ aof: true });
const LOST = 3000, cfg = { node_stale: '1500ms', node_lost: `${LOST}ms`, report_interval: '200ms' };
const p1 = await c.master('m1', cfg), p2 = await c.master('m2', cfg);
const n = await c.sim('n', [p1, p2], ['--nodes', 2]);
const s = await c.seed(p1);
const q = (x) => ({ sandbox_id: x.spec.sandbox_id, team_id: 't1' });
const allReady = () => until('both nodes are ready', async () => (await s.nodes('List', {})).nodes.filter((x) => x.status === 'ready').length === 2, 40000);
await allReady();
const all = [];
for (let i = 0; i < 6; i++) all.push((await s.sandboxes('Create', { spec: { team_id: 't1', template_id: 'base', timeout_ms: 600000 } })).sandbox);
await s.sandboxes('Pause', q(all[0]));
const intact = async () => {
  await until('m1 is ready', async () => (await s.nodes('Status', {})).state === 'ready', 40000);
  await allReady();
  for (const [i, x] of all.entries()) {
    const y = (await s.sandboxes('Get', q(x))).sandbox;
    equal([y.state, y.gen], [i ? 'RUNNING' : 'PAUSED', 1], x.spec.sandbox_id);
    const story = (await s.sandboxes('Timeline', q(x))).events.map((e) => e.text);
    assert(!story.some((t) => /lost/.test(t)), JSON.stringify(story));
  }
};

await test('Redis stands still for longer than node_lost: no sandbox is lost', async () => {
  const redis = c.procs.get('redis');
  redis.kill('SIGSTOP');
  await sleep(LOST + 2500);
  redis.kill('SIGCONT');
  await intact();
});
await test('Redis is dead for longer than node_lost and comes back with its data: no sandbox is lost', async () => {
  await c.kill('redis');
  await sleep(LOST + 1500);
  await c.redis({ aof: true });
  await intact();
});
await test('every master is dead for longer than node_lost: no sandbox is lost', async () => {
  await c.kill('m1');
  await c.kill('m2');
  await sleep(LOST + 1500);
  await c.master('m1', cfg);
  await c.master('m2', cfg);
  await intact();
});
await test('a node that is really silent is still lost, and returns', async () => {
  const dead = all[1].node_id;
  await n(`${dead} silent 1`);
  await until('lost', async () => (await s.sandboxes('Get', q(all[1]))).sandbox.state === 'LOST', 40000);
  await n(`${dead} silent 0`);
  await until('back', async () => (await s.sandboxes('Get', q(all[1]))).sandbox.state === 'RUNNING', 40000);
});
await c.end();
done();
