// What goes wrong: refusing, late, silent and lying nodes, dying masters and lifecycles, Redis away, Redis without its data.
import { Cluster, test, assert, equal, until, rejects, sleep, done, proto } from './harness.mjs';

const c = new Cluster();
await c.redis();
const fast = { node_stale: '4s', node_lost: '7s', report_interval: '200ms', node_timeout: '2s', journal_growth_kib: 1 };
// m2 is the one that dies in the middle of operations: it waits for as long as the test needs to see it there.
const patient = { ...fast, node_timeout: '60s' };
const p1 = await c.master('m1', fast), p2 = await c.master('m2', patient);
const n = await c.sim('n', [p1, p2], ['--nodes', 2]);
await c.lifecycle('l1');
await c.lifecycle('l2');
let s = await c.seed(p1);
const s2 = c.services(p2);
const spec = (more = {}) => ({ spec: { team_id: 't1', template_id: 'base', timeout_ms: 300000, ...more } });
const q = (x) => ({ sandbox_id: x.spec?.sandbox_id || x, team_id: 't1' });
const create = async (more, api = s) => (await api.sandboxes('Create', spec(more))).sandbox;
const state = async (x) => c.r('HGET', `{c0}:sb:${q(x).sandbox_id}`, 'state');
const ready = (count) => until(`${count} nodes are ready`, async () => (await s.nodes('List', {})).nodes.filter((x) => x.status === 'ready').length === count, 20000);
// Each master notices by itself, within a second, that the data is new.
const settled = async () => {
  await sleep(1500);
  await until('both masters are ready', async () => (await s.nodes('Status', {})).state === 'ready' && (await s2.nodes('Status', {})).state === 'ready', 20000);
  await ready(2);
};
await ready(2);

await test('a refusing node: the next candidate gets it, with a larger generation', async () => {
  await n('n1 refuse_start sandbox_capacity_unavailable');
  for (let i = 0; i < 6; i++) {
    const x = await create();
    equal(x.node_id, 'n2');
    const story = (await s.sandboxes('Timeline', q(x))).events.map((e) => e.text);
    if (x.gen > 1) assert(story.filter((t) => t.includes('chosen')).length === 2, JSON.stringify(story));
    await s.sandboxes('Kill', q(x));
  }
  await n('n2 refuse_start sandbox_capacity_unavailable');
  await rejects(create(), 'sandbox_capacity_unavailable', /Failed to place sandbox.*simulated node refuses/);
  await n('n1 refuse_start internal_server_error');
  await n('n2 refuse_start internal_server_error');
  await rejects(create(), 'sandbox_create_failed');
  await n('n1 refuse_start -');
  await n('n2 refuse_start -');
});
await test('a node that answers for an older generation is not believed', async () => {
  for (const y of ['n1', 'n2']) await n(`${y} older 1`);
  await rejects(create(), 'unavailable', /answered for generation \d+ instead of \d+/);
  await until('what they started is dropped', async () => (await n('n1 list')).length + (await n('n2 list')).length === 0);
  await n('n2 older 0');
  const x = await create();
  equal(x.node_id, 'n2');
  await s.sandboxes('Pause', q(x));
  await n('n2 older 1');
  await rejects(s.sandboxes('Resume', q(x)), 'unavailable', /answered for generation/);
  for (const y of ['n1', 'n2']) await n(`${y} older 0`);
  await n('n2 full');
  const after = await until('settled', async () => { const v = (await s.sandboxes('Get', q(x))).sandbox; return ['RUNNING', 'PAUSED'].includes(v.state) && !v.op && v; });
  const there = (await n('n2 list')).find((v) => v.id === x.spec.sandbox_id);
  await until('record and node agree', async () => (await s.sandboxes('Get', q(x))).sandbox.state.toLowerCase() === (await n('n2 list')).find((v) => v.id === x.spec.sandbox_id).state);
  assert(after && there, 'it is there');
  await s.sandboxes('Kill', q(x));
});
await test('a node that is too late: placed elsewhere, what it started late is dropped', async () => {
  await n('n1 start_ms 8000'); // longer than node_timeout by what a busy machine may need to notice
  const many = await Promise.all(Array.from({ length: 4 }, () => create()));
  equal(many.map((x) => x.node_id), ['n2', 'n2', 'n2', 'n2']);
  await n('n1 start_ms 0'); // now it starts them
  await until('n1 holds nothing', async () => (await n('n1 list')).length === 0, 20000);
  for (const x of many) { equal(await state(x), 'running'); await s.sandboxes('Kill', q(x)); }
});
await test('capacity errors name the resource', async () => {
  await rejects(create({ limits: { vcpus: 1, memory_mib: 10000000 } }), 'sandbox_capacity_unavailable', /enough memory/);
  await rejects(create({ limits: { vcpus: 1000, memory_mib: 512 } }), 'sandbox_capacity_unavailable', /enough cpu/);
  await rejects(create({ metadata: [{ key: 'cube.label.gpu', value: 'yes' }] }), 'sandbox_no_compatible_node', /label/);
});
await test('cordon and drain: no new placements; a drained node pauses what runs', async () => {
  await s.nodes('Cordon', { node_id: 'n1' });
  const x = await create();
  equal(x.node_id, 'n2');
  await s.nodes('Drain', { node_id: 'n2' });
  await until('paused by the drain', async () => await state(x) === 'paused');
  await rejects(create(), 'sandbox_no_compatible_node', /cordoned|draining/);
  equal((await s.nodes('List', {})).nodes.map((y) => y.status), ['cordoned', 'draining']);
  await s2.nodes('Uncordon', { node_id: 'n1' });
  await s2.nodes('Uncordon', { node_id: 'n2' });
  equal((await s.sandboxes('Resume', { ...q(x), timeout_ms: 60000 })).sandbox.state, 'RUNNING');
  await s.sandboxes('Kill', q(x));
  await rejects(s.nodes('Cordon', { node_id: 'nope' }), 'not_found');
});
await test('memory pressure: refused on create, allowed on resume', async () => {
  const x = await create();
  await s.sandboxes('Pause', q(x));
  await n('n1 pressure 1');
  await n('n2 pressure 1');
  await until('pressure is known', async () => (await s.nodes('List', {})).nodes.every((y) => y.status === 'pressure'));
  await rejects(create(), 'sandbox_capacity_unavailable', /pressure/);
  equal((await s.sandboxes('Resume', q(x))).resumed, true);
  await n('n1 pressure 0');
  await n('n2 pressure 0');
  await until('pressure is over', async () => (await s.nodes('List', {})).nodes.every((y) => y.status === 'ready'));
  await s.sandboxes('Kill', q(x));
});
await test('a node that failed its self-test gets nothing, and gets something again when it passed', async () => {
  await n('n1 unfit 1');
  await n('n2 unfit 1');
  await until('it is known', async () => (await s.nodes('List', {})).nodes.every((y) => y.status === 'unfit'));
  await rejects(create(), 'sandbox_no_compatible_node', /unfit: self-test or network failed/);
  await n('n1 unfit 0');
  await until('one is fit', async () => (await s.nodes('List', {})).nodes.some((y) => y.status === 'ready'));
  const x = await create();
  equal(x.node_id, 'n1');
  await n('n2 unfit 0');
  await until('both are', async () => (await s.nodes('List', {})).nodes.every((y) => y.status === 'ready'));
  await s.sandboxes('Kill', q(x));
});
await test('a pause that the node refuses leaves the sandbox running with its deadline', async () => {
  for (const y of ['n1', 'n2']) await n(`${y} refuse_pause storage_full`); // before its time begins to run
  const x = await create({ auto_pause: true, auto_pause_memory: true, timeout_ms: 5000 });
  await rejects(s.sandboxes('Pause', q(x)), 'storage_full');
  equal(await state(x), 'running');
  assert(await c.r('ZSCORE', `{c0}:dl:${x.spec.sandbox_id.at(-1)}`, x.spec.sandbox_id), 'the deadline is still there');
  for (const y of ['n1', 'n2']) await n(`${y} refuse_pause -`);
  await until('paused at its timeout', async () => await state(x) === 'paused');
  await s.sandboxes('Kill', q(x));
});
await test('a resume that the node refuses leaves it paused; the next one works', async () => {
  const x = await create();
  await s.sandboxes('Pause', q(x));
  await n(`${x.node_id} refuse_restore sandbox_capacity_unavailable`);
  await rejects(s.sandboxes('Resume', q(x)), 'sandbox_capacity_unavailable');
  equal(await state(x), 'paused');
  await n(`${x.node_id} refuse_restore -`);
  await n(`${x.node_id} full`);
  await sleep(600);
  equal(await state(x), 'paused', 'a full report with the older generation changes nothing');
  equal((await s.sandboxes('Resume', q(x))).sandbox.gen, 3);
  await s.sandboxes('Kill', q(x));
});
await test('Redis lost a resume: the master retries above the generation that the node knows', async () => {
  const x = await create();
  await s.sandboxes('Pause', q(x));
  await n(`${x.node_id} gen ${x.spec.sandbox_id} 7`);
  const r = await s.sandboxes('Resume', q(x)).catch((e) => e);
  const after = await until('running', async () => { const y = (await s.sandboxes('Get', q(x))).sandbox; return y.state === 'RUNNING' && y; });
  assert(after.gen > 7, `gen ${after.gen} (${r.message || 'ok'})`);
  await s.sandboxes('Kill', q(x));
});
await test('a VM that died is lost with the node\'s reason; killing it works once', async () => {
  const x = await create();
  await n(`${x.node_id} die ${x.spec.sandbox_id} out-of-memory-in-the-guest`);
  await until('lost', async () => await state(x) === 'lost');
  equal(await c.r('HGET', `{c0}:sb:${x.spec.sandbox_id}`, 'reason'), 'out-of-memory-in-the-guest');
  equal((await s.sandboxes('Get', q(x))).sandbox.state, 'LOST');
  await s.sandboxes('Kill', q(x));
  await rejects(s.sandboxes('Kill', q(x)), 'not_found');
});
await test('a sandbox that vanished on its node is lost', async () => {
  const x = await create();
  await n(`${x.node_id} forget ${x.spec.sandbox_id}`);
  await n(`${x.node_id} full`);
  await until('lost', async () => await state(x) === 'lost');
  assert(/missing on node/.test(await c.r('HGET', `{c0}:sb:${x.spec.sandbox_id}`, 'reason')));
});
await test('the node acted on a deadline alone: the record follows', async () => {
  const a = await create(), b = await create();
  await n(`${a.node_id} killed ${a.spec.sandbox_id} timeout`);
  await n(`${b.node_id} paused ${b.spec.sandbox_id} timeout`);
  await until('killed', async () => await state(a) === 'killed');
  await until('paused', async () => await state(b) === 'paused');
  equal((await s.sandboxes('Resume', q(b))).sandbox.gen, 2);
  await s.sandboxes('Kill', q(b));
});
await test('a silent node: its sandboxes are lost, come back with it, and a kill meanwhile is carried out then', async () => {
  const all = [];
  for (let i = 0; i < 4; i++) all.push(await create());
  const dead = all[0].node_id, here = all.filter((x) => x.node_id === dead), there = all.filter((x) => x.node_id !== dead);
  await n(`${dead} silent 1`);
  const killed = here[0], start = Date.now();
  await s.sandboxes('Kill', q(killed));
  assert(Date.now() - start < 15000, 'the kill answers in time');
  await until('lost', async () => (await Promise.all(here.slice(1).map(state))).every((x) => x === 'lost'), 25000);
  for (const x of there) equal(await state(x), 'running');
  await until('a tombstone', async () => await state(killed) === 'killed' && await c.r('SISMEMBER', `{c0}:tomb:${dead}`, killed.spec.sandbox_id), 60000, 100);
  equal(await c.r('PTTL', `{c0}:sb:${killed.spec.sandbox_id}`), -1, 'an unconfirmed tombstone does not expire');
  const fresh = await create();
  assert(fresh.node_id !== dead, 'nothing is placed there');
  await n(`${dead} silent 0`);
  await until('back', async () => (await Promise.all(here.slice(1).map(state))).every((x) => x === 'running'), 25000);
  await until('cleaned up', async () => !(await n(`${dead} list`)).some((x) => x.id === killed.spec.sandbox_id), 25000);
  await until('confirmed', async () => !(await c.r('SISMEMBER', `{c0}:tomb:${dead}`, killed.spec.sandbox_id)), 20000);
  assert(await c.r('PTTL', `{c0}:sb:${killed.spec.sandbox_id}`) > 3000000, 'a confirmed tombstone stays an hour');
  await ready(2);
  for (const x of [...here.slice(1), ...there, fresh]) await s.sandboxes('Kill', q(x));
});
for (const what of ['create', 'pause', 'resume', 'kill']) {
  await test(`a master killed in the middle of a ${what}: another brings it to an end within 5 s`, async () => {
    const x = what === 'create' ? null : await create({}, s2);
    const node = x?.node_id;
    if (what === 'resume') await s2.sandboxes('Pause', q(x));
    for (const y of ['n1', 'n2']) { await n(`${y} start_ms 60000`); await n(`${y} pause_ms 60000`); await n(`${y} kill_ms 60000`); }
    const op = what === 'create' ? create({ metadata: [{ key: 'mid', value: what }] }, s2) : s2.sandboxes(what === 'pause' ? 'Pause' : what === 'resume' ? 'Resume' : 'Kill', q(x));
    const lost = op.then(() => 'answered', (e) => e);
    let id = x?.spec.sandbox_id;
    const middle = { create: 'creating', pause: 'pausing', resume: 'resuming', kill: 'killing' }[what];
    await until(`in the middle of a ${what}`, async () => {
      if (!id) id = (await c.r('ZRANGE', '{c0}:op', 0, -1))[0];
      return id && await state(id) === middle;
    });
    const at = Date.now();
    await c.kill('m2');
    assert((await lost) !== 'answered', 'the caller got no answer');
    for (const y of ['n1', 'n2']) { await n(`${y} start_ms 0`); await n(`${y} pause_ms 0`); await n(`${y} kill_ms 0`); }
    const end = { create: ['killed'], pause: ['paused'], resume: ['running', 'paused'], kill: ['killed'] }[what];
    await until(`ended as ${end}`, async () => end.includes(await state(id)), 20000);
    assert(Date.now() - at < 10000, `${Date.now() - at} ms`);
    equal(await c.r('ZSCORE', '{c0}:op', id), null);
    await sleep(700);
    const still = await state(id);
    assert(end.includes(still), `then ${still}`);
    if (what === 'create') equal((await n('n1 list')).concat(await n('n2 list')).filter((y) => y.id === id), [], 'no VM is left');
    else if (what !== 'kill') await s.sandboxes('Kill', q(x));
    await c.master('m2', patient);
    await until('m2 knows the nodes', async () => (await s2.nodes('List', {})).nodes.length === 2);
  });
}
await test('a dead lifecycle: its deadlines are taken over within 5 s', async () => {
  const many = await Promise.all(Array.from({ length: 24 }, () => create({ timeout_ms: 1500 })));
  await until('shards are shared', async () => {
    const owners = new Set((await Promise.all([...'0123456789abcdefghijklmnopqrstuvwxyz'].map((x) => c.r('GET', `{c0}:claim:${x}`)))));
    return owners.size === 2 && !owners.has(null);
  }, 20000);
  await c.kill('l2');
  const last = Math.max(Date.now(), ...many.map((x) => x.end_ms)); // sharing may take longer than they live
  await until('all ended', async () => (await Promise.all(many.map(state))).every((x) => x === 'killed'), 20000);
  assert(Date.now() - last < 10000, `${Date.now() - last} ms after the last deadline`);
});
await test('Redis comes back empty: creates fail meanwhile with a reason, within 5 s all is there again', async () => {
  const x = await create();
  await c.kill('redis', 'SIGTERM').catch(() => {});
  const e = await rejects(create(), 'unavailable', /Redis|unavailable|connection/i);
  assert(e, 'refused');
  await c.redis();
  // This Redis was started without persistence: it comes back empty, which is the loss of all data.
  const at = Date.now();
  await until('the cell is ready', async () => (await s.nodes('Status', {})).state === 'ready', 20000);
  const took = Date.now() - at;
  assert(took < 10000, `ready after ${took} ms`);
  await until('adopted', async () => await state(x) === 'running', 20000);
  const again = (await s.sandboxes('Get', q(x))).sandbox;
  equal([again.gen, again.node_id, again.spec.template_id, again.spec.metadata, again.envd_version, again.isolation],
    [x.gen, x.node_id, 'tpl1', x.spec.metadata, '0.6.13', 'pvm']);
  assert(Math.abs(again.end_ms - x.end_ms) < 2000, `the deadline came back (${again.end_ms - x.end_ms} ms off)`);
  equal((await c.r.hash(`{c0}:rt:${x.spec.sandbox_id}`)).gen, '1');
  equal((await s.catalog('GetTemplate', { name: 'base', team_id: 't1' })).template_id, 'tpl1', 'the catalog was replayed');
  equal((await s2.sandboxes('List', { team_id: 't1' })).sandboxes.length, 1);
  await settled();
  const y = await create({}, s2);
  for (const z of [x, y]) await s.sandboxes('Kill', q(z));
});
await test('all data lost under an open connection (FLUSHALL): paused and running ones come back, killed ones do not', async () => {
  const run = await create({ metadata: [{ key: 'k', value: 'v' }] }), pau = await create(), gone = await create();
  await s.sandboxes('Pause', q(pau));
  await s.sandboxes('Kill', q(gone));
  await c.r('FLUSHALL');
  await until('adopted', async () => await state(run) === 'running' && await state(pau) === 'paused', 20000);
  await settled();
  equal(await state(gone), null);
  equal((await s.sandboxes('List', { team_id: 't1', metadata: [{ key: 'k', value: 'v' }] })).sandboxes.length, 1);
  equal((await s.sandboxes('Resume', q(pau))).sandbox.gen, 2);
  const h = await c.r.hash(`{c0}:node:${run.node_id}`);
  assert(Number(h.r_count) >= 1, 'reserved again');
  for (const z of [run, pau]) await s.sandboxes('Kill', q(z));
});
await test('a recovering cell refuses creates with the reason until its known nodes have reported, and says of nothing that it does not exist', async () => {
  const here = await until('one on n1', async () => { const v = await create(); if (v.node_id === 'n1') return v; await s.sandboxes('Kill', q(v)); });
  await n('n1 silent 1');
  await c.r('FLUSHALL');
  await until('recovering', async () => (await s.nodes('Status', {})).state === 'recovering');
  await rejects(create(), 'unavailable', /recovering/);
  await rejects(s.sandboxes('Get', q(here)), 'unavailable', /recovering/);
  await rejects(s.sandboxes('Kill', q(here)), 'unavailable', /recovering/);
  await rejects(s.catalog('CheckKey', { key_sha256: 'a'.repeat(64) }), 'unavailable', /recovering/);
  await n('n1 silent 0');
  await settled();
  await until('it is there again', async () => (await s.sandboxes('Get', q(here))).sandbox.state === 'RUNNING');
  await rejects(s.catalog('CheckKey', { key_sha256: 'a'.repeat(64) }), 'unauthenticated');
  const x = await create();
  for (const v of [x, here]) await s.sandboxes('Kill', q(v));
});
await test('after a loss of data the cell does not wait for a node that was lost before', async () => {
  await n('n1 silent 1');
  await until('n1 is lost', async () => (await s.nodes('List', {})).nodes.find((y) => y.node_id === 'n1').status === 'lost', 20000);
  await c.r('FLUSHALL');
  const at = Date.now();
  await until('ready', async () => (await c.r('HGET', '{c0}:meta', 'state')) === 'ready');
  assert(Date.now() - at < 15000, `${Date.now() - at} ms`);
  await n('n1 silent 0');
  await settled();
});
await test('mode idle: activity postpones, silence pauses, a lease keeps it awake', async () => {
  const x = await create({ metadata: [{ key: 'cube.idle', value: '5' }] });
  const id = x.spec.sandbox_id;
  const busy = setInterval(() => n(`${x.node_id} active ${id} cpu`), 150);
  await sleep(9000);
  equal(await state(x), 'running', 'a long computation without traffic is not paused');
  const d = (await s.sandboxes('Get', q(x))).sandbox;
  equal([d.awake, d.healthy], ['cpu', true]);
  assert(d.pauses_at_ms > d.last_activity_ms && d.awake_since_ms > 0 && Date.now() - d.last_activity_ms < 5000, JSON.stringify(d));
  clearInterval(busy);
  await n(`${x.node_id} active ${id} -`);
  await until('paused when idle', async () => await state(x) === 'paused', 20000);
  await s.sandboxes('Resume', q(x));
  const lease = (await s.sandboxes('SetDeadline', { ...q(x), timeout_ms: 10000 })).sandbox.end_ms;
  await sleep(6000);
  const held = await state(x);
  assert(held === 'running' || Date.now() >= lease, `the lease holds: it is ${held}`);
  await until('paused after the lease', async () => await state(x) === 'paused', 20000);
  await s.sandboxes('Kill', q(x));
  await rejects(create({ metadata: [{ key: 'cube.idle', value: '1x' }] }), 'invalid_argument', /cube.idle/);
});
await test('filesystem-only pause by policy, cold boot on resume', async () => {
  const x = await create({ auto_pause: true, auto_pause_memory: false, timeout_ms: 500 });
  await until('paused', async () => await state(x) === 'paused');
  equal((await s.sandboxes('Get', q(x))).sandbox.filesystem_only, true);
  const r = await s.sandboxes('Resume', q(x));
  equal([r.resumed, r.sandbox.filesystem_only, r.sandbox.spec.auto_pause], [true, false, true]);
  await s.sandboxes('Kill', q(x));
});
await test('a journal that has grown was rewritten meanwhile, and what was replayed above came from it', async () => {
  for (let i = 0; i < 40; i++) await s.catalog('PutTeam', { team_id: 't1', name: `Team ${i}`, slug: 't1' });
  assert(/journal was rewritten/.test(c.log('m1') + c.log('m2')), c.log('m1').slice(-400));
  await c.r('FLUSHALL');
  await settled();
  equal((await s.catalog('GetTeam', { team_id: 't1' })).name, 'Team 39');
});
await c.end();
done();
