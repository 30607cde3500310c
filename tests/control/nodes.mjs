// Nodes that come, go, fill up and hold what nobody knows: removal, memory pressure, adoption, want of memory in the guest.
import { Cluster, test, assert, equal, until, rejects, sleep, done } from './harness.mjs';

const c = new Cluster();
await c.redis();
const cfg = { report_interval: '200ms', node_stale: '5s', node_lost: '60s', adopt_grace: '3s' };
const p1 = await c.master('m1', cfg), p2 = await c.master('m2', cfg);
const n = await c.sim('n', [p1, p2], ['--nodes', 3]);
const s = await c.seed(p1), s2 = c.services(p2);
const q = (x, more = {}) => ({ sandbox_id: x.spec.sandbox_id, team_id: 't1', ...more });
const create = async (more) => (await s.sandboxes('Create', { spec: { team_id: 't1', template_id: 'base', timeout_ms: 300000, ...more } })).sandbox;
const get = async (x, api = s) => (await api.sandboxes('Get', q(x))).sandbox;
const story = async (x) => (await s.sandboxes('Timeline', q(x))).events.map((e) => e.text);
const names = async (api) => (await api.nodes('List', {})).nodes.map((x) => x.node_id).join();
const idle = (seconds) => ({ metadata: [{ key: 'cube.idle', value: String(seconds) }] });
await until('nodes', async () => (await s.nodes('List', {})).nodes.filter((x) => x.status === 'ready').length === 3);

await test('memory pressure: idle sandboxes of mode idle are paused, quietest first; busy, leased and ordinary ones are not', async () => {
  for (const k of ['n2', 'n3']) await s.nodes('Cordon', { node_id: k });
  const plain = await create(), busy = await create(idle(600)), leased = await create(idle(600)), quiet = [];
  for (let i = 0; i < 3; i++) { quiet.push(await create(idle(600))); await sleep(30); }
  await n(`n1 active ${busy.spec.sandbox_id} exec`);
  await s.sandboxes('SetDeadline', q(leased, { timeout_ms: 3600000 }));
  await until('activity is known', async () => (await get(busy)).awake === 'exec');
  equal((await get(leased)).awake, 'lease', 'why it is awake');
  await n('n1 pressure 1');
  await until('the quiet ones are paused', async () => (await Promise.all(quiet.map((x) => get(x)))).every((x) => x.state === 'PAUSED'));
  const at = await Promise.all(quiet.map(async (x) => (await s.sandboxes('Timeline', q(x))).events.find((e) => /memory pressure/.test(e.text))?.ts_ms));
  assert(at[0] && at[0] <= at[1] && at[1] <= at[2], `in order of their activity: ${at}`);
  await sleep(1000);
  equal((await Promise.all([plain, busy, leased].map((x) => get(x)))).map((x) => x.state), ['RUNNING', 'RUNNING', 'RUNNING']);
  await n('n1 pressure 0');
  await until('over', async () => (await s.nodes('List', {})).nodes.every((x) => x.status !== 'pressure'));
  const last = await create(idle(600));
  await sleep(1000);
  equal((await get(last)).state, 'RUNNING', 'nothing is paused without pressure');
  for (const x of [plain, busy, leased, last, ...quiet]) await s.sandboxes('Kill', q(x));
  for (const k of ['n2', 'n3']) await s.nodes('Uncordon', { node_id: k });
});
await test('a report that a resume on another master has overtaken changes nothing', async () => {
  for (const k of ['n2', 'n3']) await s.nodes('Cordon', { node_id: k });
  const made = [await create(), await create()];
  const order = (await n('n1 list')).map((v) => v.id);
  // The report names them in this order, and its repairs are made one after the other.
  const [first, x] = made.sort((a, b) => order.indexOf(a.spec.sandbox_id) - order.indexOf(b.spec.sandbox_id));
  const state = () => c.r('HGET', `{c0}:sb:${x.spec.sandbox_id}`, 'state');
  await s.sandboxes('Pause', q(x));
  await n('n1 silent 1');
  await until('the stream has ended', async () => !(await n('n1 stats')).registered);
  await n(`n1 gen ${x.spec.sandbox_id} 7`);
  await n(`n1 paused ${first.spec.sandbox_id}`);
  await n('n1 list_ms 2500');
  const { lists } = await n('n1 stats');
  await n('n1 silent 0');
  await until('the master asks about the first', async () => (await n('n1 stats')).lists > lists);
  const instance = await c.r('HGET', '{c0}:node:n1', 'master');
  const address = (await c.r('ZRANGE', '{c0}:svc:master', 0, -1)).find((v) => v.startsWith(`${instance} `));
  const other = address.endsWith(`:${p1}`) ? s2 : s;
  await n(`n1 gen ${x.spec.sandbox_id} 1`);
  await n('n1 start_ms 60000');
  const resumed = other.sandboxes('Resume', q(x));
  await until('it resumes', async () => (await state()) === 'resuming');
  await n('n1 list_ms 0');
  await until('the master asks about the second', async () => (await n('n1 stats')).lists > lists + 1);
  await sleep(200);
  equal(await state(), 'resuming', 'which is its owner\'s');
  await n('n1 start_ms 0');
  await resumed;
  equal((await get(x)).state, 'RUNNING');
  await until('the first is paused, as its node said', async () => (await get(first)).state === 'PAUSED');
  equal((await n('n1 list')).find((v) => v.id === x.spec.sandbox_id)?.state, 'running');
  for (const v of made) await s.sandboxes('Kill', q(v));
  for (const k of ['n2', 'n3']) await s.nodes('Uncordon', { node_id: k });
});
await test('mode idle by default of a team, of a template before it, and by metadata before both', async () => {
  const mode = async (more) => {
    const x = (await s.sandboxes('Create', { spec: { team_id: 't8', template_id: 'base', timeout_ms: 300000, ...more } })).sandbox;
    await s.sandboxes('Kill', { sandbox_id: x.spec.sandbox_id });
    return [x.spec.idle_ms, Math.round((x.end_ms - x.started_ms) / 1000)];
  };
  const tpl = { template_id: 'idler', public: true, aliases: ['idler'], limits: { vcpus: 1, memory_mib: 512 }, status: 'ready', idle_ms: 70000 };
  await s.catalog('PutTemplate', tpl);
  await s.catalog('PutTeam', { team_id: 't8', name: 'Eight', slug: 't8' });
  equal(await mode(), [0, 300]);
  equal(await mode({ template_id: 'idler' }), [70000, 70]);
  await s.catalog('PutTeam', { team_id: 't8', name: 'Eight', slug: 't8', idle_ms: 90000 });
  equal((await s.catalog('GetTeam', { team_id: 't8' })).idle_ms, 90000);
  equal(await mode(), [90000, 90]);
  equal(await mode({ template_id: 'idler' }), [70000, 70]);
  equal(await mode({ template_id: 'idler', ...idle(50) }), [50000, 50]);
  await rejects(s.catalog('PutTeam', { team_id: 't8', slug: 't8', idle_ms: -1 }), 'invalid_argument');
});
await test('out of memory in the guest: the sandbox goes on, its story says so, once', async () => {
  const x = await create();
  await n(`${x.node_id} oom ${x.spec.sandbox_id} 2`);
  await until('told', async () => (await story(x)).some((t) => /out of memory in the guest: its kernel killed 2 processes/.test(t)));
  await n(`${x.node_id} full`);
  await n(`${x.node_id} oom ${x.spec.sandbox_id} 3`);
  await until('told again', async () => (await story(x)).some((t) => /killed 3 processes/.test(t)));
  equal([(await get(x)).state, (await story(x)).filter((t) => /out of memory/.test(t)).length], ['RUNNING', 2]);
  await s.sandboxes('Kill', q(x));
});
await test('a sandbox without a record is adopted when its team exists; else it is dropped after a grace time', async () => {
  await s.catalog('PutTeam', { team_id: 't9', name: 'Nine', slug: 't9' });
  const mine = await create(), theirs = (await s.sandboxes('Create', { spec: { team_id: 't9', template_id: 'base', timeout_ms: 300000 } })).sandbox;
  const id = theirs.spec.sandbox_id, lists = async () => (await n(`${theirs.node_id} list`)).some((v) => v.id === id);
  await c.r('DEL', `{c0}:sb:${mine.spec.sandbox_id}`, `{c0}:sb:${id}`, '{c0}:team:t9');
  for (const k of new Set([mine.node_id, theirs.node_id])) await n(`${k} full`);
  await until('adopted', async () => (await get(mine)).state === 'RUNNING');
  equal(await c.r('EXISTS', `{c0}:sb:${id}`), 0, 'not that of nobody');
  await until('dropped', async () => { await n(`${theirs.node_id} full`); return !await lists(); }, 20000, 200);
  assert(Date.now() - theirs.started_ms >= 3000, 'not before its grace time');
  equal(await c.r('EXISTS', `{c0}:sb:${id}`), 0);
  await s.sandboxes('Kill', q(mine));
});
await test('removal of a node: not while it reports; then it is gone on every master, and its sandboxes are lost with the reason', async () => {
  await rejects(s.nodes('Remove', { node_id: 'nope' }), 'not_found');
  await rejects(s.nodes('Remove', { node_id: 'n3', force: true }), 'conflict', /still reports/);
  for (const k of ['n1', 'n2']) await s.nodes('Cordon', { node_id: k });
  const run = await create(), pau = await create(), dead = await create();
  equal([run.node_id, pau.node_id], ['n3', 'n3']);
  await s.sandboxes('Pause', q(pau));
  for (const k of ['n1', 'n2']) await s.nodes('Uncordon', { node_id: k });
  await n('n3 silent 1');
  await s.sandboxes('Kill', q(dead)); // not confirmed
  await until('silent for long enough', async () => {
    const e = await s.nodes('Remove', { node_id: 'n3' }).then(() => null, (x) => x);
    return e && /holds 2 sandboxes/.test(e.message);
  });
  equal((await s.nodes('Remove', { node_id: 'n3', force: true })).lost, 2);
  for (const api of [s, s2]) await until('it is gone', async () => await names(api) === 'n1,n2');
  for (const x of [run, pau]) {
    const y = await get(x, s2);
    equal([y.state, y.reason], ['LOST', 'its node was removed from the cluster']);
  }
  equal(await c.r('KEYS', '{c0}:*:n3'), [], 'no key of it is left');
  await until('the kill has ended', async () => await c.r('HGET', `{c0}:sb:${dead.spec.sandbox_id}`, 'state') === 'killed', 60000, 100);
  assert(await c.r('PTTL', `{c0}:sb:${dead.spec.sandbox_id}`) > 0, 'its tombstone waits for nobody');
  equal(await c.r('KEYS', '{c0}:*:n3'), []);
  await rejects(s.nodes('Remove', { node_id: 'n3' }), 'not_found');
  const more = await create();
  assert(more.node_id !== 'n3');
  await n('n3 silent 0');
  for (const api of [s, s2]) await until('it joins again', async () => await names(api) === 'n1,n2,n3');
  await until('what it still holds came back with it', async () => (await get(run)).state === 'RUNNING' && (await get(pau)).state === 'PAUSED');
  await until('the killed one is gone there', async () => { await n('n3 full'); return !(await n('n3 list')).some((v) => v.id === dead.spec.sandbox_id); }, 20000, 200);
  for (const x of [run, pau, more]) await s.sandboxes('Kill', q(x));
});
await c.end();
done();
