// Snapshot, fork, rollback, network policy: operations on a running sandbox; and storms of pauses and wakes.
import { execFileSync } from 'node:child_process';
import crypto from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import { Cluster, test, assert, equal, until, rejects, sleep, done, proto } from './harness.mjs';

const c = new Cluster();
await c.redis();
const port = await c.master('m1', { report_interval: '200ms' });
const n = await c.sim('n', [port], ['--nodes', 2]);
await c.lifecycle('l1');
const s = await c.seed();
await until('nodes', async () => (await s.nodes('List', {})).nodes.filter((x) => x.status === 'ready').length === 2);
const create = async (more = {}) => (await s.sandboxes('Create', { spec: { team_id: 't1', template_id: 'base', timeout_ms: 300000, ...more } })).sandbox;
const q = (x, more = {}) => ({ sandbox_id: x.spec.sandbox_id, team_id: 't1', ...more });

await test('a snapshot by name and one without; both start sandboxes on the node where they lie', async () => {
  const x = await create();
  const a = await s.sandboxes('Snapshot', q(x, { name: 'mine' })), b = await s.sandboxes('Snapshot', q(x));
  equal([a.snapshot_id, a.names], ['t1/mine:default', ['t1/mine:default']]);
  assert(/^[a-z0-9]{20}:default$/.test(b.snapshot_id) && b.names.length === 0, JSON.stringify(b));
  for (const id of ['mine', 't1/mine', a.snapshot_id, b.snapshot_id]) {
    const y = (await s.sandboxes('Create', { spec: { team_id: 't1', template_id: id, timeout_ms: 60000 } })).sandbox;
    equal([y.node_id, y.spec.limits.memory_mib], [x.node_id, 512], id);
    await s.sandboxes('Kill', q(y));
  }
  await rejects(s.sandboxes('Snapshot', q(x, { name: 'other/mine' })), 'invalid_argument', /namespace/);
  await rejects(s.sandboxes('Create', { spec: { team_id: 't2', template_id: b.snapshot_id, timeout_ms: 1 } }), 'not_found', /template '.*' not found/);
  equal((await s.catalog('ListTemplates', { team_id: '' })).templates.map((t) => t.template_id), ['tpl1'], 'snapshots are no templates');
  const list = await s.sandboxes('ListSnapshots', { team_id: 't1' });
  equal(list.snapshots.map((v) => v.snapshot_id), [b.snapshot_id, a.snapshot_id]);
  equal((await s.sandboxes('ListSnapshots', { team_id: 't1', name: 'mine' })).snapshots.length, 1);
  const first = await s.sandboxes('ListSnapshots', { team_id: 't1', sandbox_id: x.spec.sandbox_id, limit: 1 });
  const second = await s.sandboxes('ListSnapshots', { team_id: 't1', limit: 1, cursor: first.next_cursor });
  equal([first.snapshots[0].snapshot_id, second.snapshots[0].snapshot_id, second.next_cursor], [b.snapshot_id, a.snapshot_id, '']);
  const user = (await s.sandboxes('Create', { spec: { team_id: 't1', template_id: 'mine', timeout_ms: 60000 } })).sandbox;
  await rejects(s.catalog('DeleteTemplate', { name: a.snapshot_id, team_id: 't1' }), 'invalid_argument', /running or paused sandboxes use it/);
  await s.sandboxes('Pause', q(user));
  await rejects(s.catalog('DeleteTemplate', { name: a.snapshot_id, team_id: 't1' }), 'invalid_argument', /running or paused sandboxes use it/);
  await s.sandboxes('Kill', q(user));
  await rejects(s.catalog('DeleteTemplate', { name: a.snapshot_id, team_id: 't2' }), 'not_found');
  await s.catalog('DeleteTemplate', { name: a.snapshot_id, team_id: 't1' });
  equal((await s.sandboxes('ListSnapshots', { team_id: 't1' })).snapshots.length, 1);
  await rejects(s.sandboxes('Create', { spec: { team_id: 't1', template_id: 'mine', timeout_ms: 1 } }), 'not_found');
  await s.nodes('Cordon', { node_id: x.node_id });
  await rejects(s.sandboxes('Create', { spec: { team_id: 't1', template_id: b.snapshot_id, timeout_ms: 1 } }), 'sandbox_no_compatible_node', /lies on node/);
  await s.nodes('Uncordon', { node_id: x.node_id });
  await s.sandboxes('Pause', q(x));
  await rejects(s.sandboxes('Snapshot', q(x)), 'conflict');
  await s.sandboxes('Kill', q(x));
});
await test('fork: each gets its own ID and token, the source keeps its own', async () => {
  const x = await create({ secure: true, metadata: [{ key: 'a', value: 'b' }] });
  const r = await s.sandboxes('Fork', q(x, { count: 5, timeout_ms: 60000 }));
  const all = r.forks.map((f) => f.sandbox);
  equal([all.length, new Set(all.map((f) => f.spec.sandbox_id)).size, new Set([x, ...all].map((f) => f.envd_token)).size], [5, 5, 6]);
  assert(all.every((f) => f.node_id === x.node_id && f.state === 'RUNNING' && f.spec.metadata[0].value === 'b'));
  equal((await s.sandboxes('Get', q(x))).sandbox.end_ms, x.end_ms, 'the source keeps its expiry');
  await s.catalog('PutTeam', { team_id: 't1', slug: 't1', name: 'Team', max_sandboxes: 8 });
  const more = (await s.sandboxes('Fork', q(x, { count: 4, timeout_ms: 60000 }))).forks;
  equal([more.filter((f) => f.sandbox).length, more.filter((f) => f.error_code === 'rate_limited').length], [2, 2]);
  await s.catalog('PutTeam', { team_id: 't1', slug: 't1', name: 'Team' });
  for (const y of [x, ...all, ...more.filter((f) => f.sandbox).map((f) => f.sandbox)]) await s.sandboxes('Kill', q(y));
  await rejects(s.sandboxes('Fork', q(x, { count: 1 })), 'not_found');
});
await test('the snapshot of a fork is not listed, stays as long as one of its sandboxes needs it, and not longer', async () => {
  const x = await create(), before = await c.r('SMEMBERS', '{c0}:tpls');
  const listed = (await s.sandboxes('ListSnapshots', { team_id: 't1' })).snapshots.length;
  const [a, b] = (await s.sandboxes('Fork', q(x, { count: 2, timeout_ms: 60000 }))).forks.map((f) => f.sandbox);
  const [id, ...more] = (await c.r('SMEMBERS', '{c0}:tpls')).filter((t) => !before.includes(t));
  equal([more.length, a.spec.template_id, b.spec.template_id], [0, id, id]);
  equal((await s.sandboxes('ListSnapshots', { team_id: 't1' })).snapshots.length, listed, 'listed');
  await s.sandboxes('Pause', q(a));
  for (const y of [x, b]) await s.sandboxes('Kill', q(y));
  // Now is when to look; the sweep that looked puts it off.
  await c.r('ZADD', '{c0}:forks', 0, id);
  await until('the sweep has looked', async () => Number(await c.r('ZSCORE', '{c0}:forks', id)) > 0);
  equal((await s.sandboxes('Resume', q(a))).sandbox.state, 'RUNNING', 'a paused sandbox kept it');
  await s.sandboxes('Kill', q(a));
  await c.r('ZADD', '{c0}:forks', 0, id);
  await until('it is gone', async () => !(await c.r('SMEMBERS', '{c0}:tpls')).includes(id));
  equal([await c.r('ZSCORE', '{c0}:forks', id), await c.r('SISMEMBER', '{c0}:snaps:t1', id)], [null, 0], 'what Redis kept of it');
  await until('its node was told', async () => (await n(`${x.node_id} stats`)).dropped.includes(id));
});
await test('a snapshot or pause whose sandbox is ended meanwhile answers not found, and not what the node met', async () => {
  for (const [call, delay, busy] of [['Snapshot', 'snapshot_ms', (x) => x.op === 'snapshot'], ['Pause', 'pause_ms', (x) => x.state === 'PAUSING']]) {
    const x = await create();
    await n(`${x.node_id} ${delay} 60000`);
    const answer = rejects(s.sandboxes(call, q(x)), 'not_found', /ended meanwhile/);
    answer.catch(() => {});
    await until(`the ${call} is in flight`, async () => busy((await s.sandboxes('Get', q(x))).sandbox));
    await s.sandboxes('Kill', q(x));
    await n(`${x.node_id} ${delay} 0`);
    await answer;
  }
});
await test('the quota of snapshots: one more is refused before anything is done, a deleted one makes room', async () => {
  const x = await create(), have = Number(await c.r('SCARD', '{c0}:snaps:t1'));
  await s.catalog('PutTeam', { team_id: 't1', slug: 't1', name: 'Team', max_snapshots: have + 2 });
  equal((await s.catalog('GetTeam', { team_id: 't1' })).max_snapshots, have + 2);
  const both = [await s.sandboxes('Snapshot', q(x)), await s.sandboxes('Snapshot', q(x, { name: 'second' }))];
  const story = async () => (await s.sandboxes('Timeline', q(x))).events.length, told = await story();
  for (const call of ['Snapshot', 'Fork']) await rejects(s.sandboxes(call, q(x)), 'rate_limited', new RegExp(`limit of snapshots is reached \\(${have + 2}\\)`));
  equal(await story(), told, 'nothing was begun');
  await s.catalog('DeleteTemplate', { name: both[0].snapshot_id, team_id: 't1' });
  both[0] = await s.sandboxes('Snapshot', q(x));
  for (const v of both) await s.catalog('DeleteTemplate', { name: v.snapshot_id, team_id: 't1' });
  equal(Number(await c.r('SCARD', '{c0}:snaps:t1')), have);
  await s.catalog('PutTeam', { team_id: 't1', slug: 't1', name: 'Team' });
  await s.sandboxes('Kill', q(x));
});
await test('rollback: a new generation, the same ID; a refused one leaves it as it was', async () => {
  const x = await create();
  const snap = await s.sandboxes('Snapshot', q(x));
  const r = (await s.sandboxes('Rollback', q(x, { snapshot_id: snap.snapshot_id }))).sandbox;
  equal([r.gen, r.state, r.op], [2, 'RUNNING', '']);
  equal((await c.r.hash(`{c0}:rt:${x.spec.sandbox_id}`)).gen, '2');
  await n(`${x.node_id} refuse_restore storage_full`);
  await rejects(s.sandboxes('Rollback', q(x, { snapshot_id: snap.snapshot_id })), 'storage_full');
  await n(`${x.node_id} refuse_restore -`);
  const y = (await s.sandboxes('Get', q(x))).sandbox;
  equal([y.gen, y.state, y.op], [2, 'RUNNING', '']);
  await rejects(s.sandboxes('Rollback', q(x, { snapshot_id: 'base' })), 'invalid_argument', /not a snapshot/);
  await s.sandboxes('Kill', q(x));
});
await test('network policy: in the record after the node has it; not while paused', async () => {
  const x = await create();
  const r = (await s.sandboxes('UpdateNetwork', q(x, { network_json: '{"denyOut":["1.2.3.4"]}', deny_internet: true }))).sandbox;
  equal([r.spec.network_json, r.spec.deny_internet], ['{"denyOut":["1.2.3.4"]}', true]);
  await s.sandboxes('Pause', q(x));
  await rejects(s.sandboxes('UpdateNetwork', q(x)), 'conflict');
  equal((await s.sandboxes('Resume', q(x))).sandbox.spec.deny_internet, true);
  await s.sandboxes('Kill', q(x));
  equal((await c.r('KEYS', '{c0}:ix:*')).filter((k) => !k.includes(':node:')), []);
});
await test('storm: 100 pauses at once, then 100 wakes from 4 proxies, without an error', async () => {
  const all = await Promise.all(Array.from({ length: 100 }, () => create({ auto_resume: true })));
  await Promise.all(all.map((x) => s.sandboxes('Pause', q(x))));
  const proxies = [1, 2, 3, 4].map(() => c.client(proto.cube.lifecycle.v1.Wake, c.l1Port, 'proxy'));
  const woken = await Promise.all(all.flatMap((x, i) => [0, 1].map((k) => proxies[(i + k) % 4]('Wake', { sandbox_id: x.spec.sandbox_id, gen_seen: 1 }))));
  assert(woken.every((w) => w.gen === 2));
  await Promise.all(all.map((x) => s.sandboxes('Kill', q(x))));
});
const later = async (node) => (await c.r('ZRANGE', `{c0}:drops:${node}`, 0, -1));
const waiting = async () => (await Promise.all((await c.r('SMEMBERS', '{c0}:drops')).map(later))).flat();
const settled = () => until('nothing waits to be deleted', async () => (await waiting()).length === 0 && (await c.r('EXISTS', '{c0}:drops')) === 0);
await test('of all this only the snapshot that was cut off waits to be looked for on its node; its time comes', async () => {
  const left = await waiting();
  equal(left.length, 1, 'what waits');
  for (const node of await c.r('SMEMBERS', '{c0}:drops')) for (const id of await later(node)) await c.r('ZADD', `{c0}:drops:${node}`, 0, id);
  await settled();
});
await test('a snapshot whose master dies in the making leaves nothing on its node; one that is made stays', async () => {
  const x = await create(), kept = await s.sandboxes('Snapshot', q(x));
  await n(`${x.node_id} snapshot_ms 60000`);
  const cut = s.sandboxes('Snapshot', q(x)).catch(() => {});
  await until('it is in flight', async () => (await s.sandboxes('Get', q(x))).sandbox.op === 'snapshot');
  const [id] = await until('it is noted', async () => { const l = await later(x.node_id); return l.length === 1 && l; });
  await c.kill('m1');
  await n(`${x.node_id} snapshot_ms 0`); // the node has made it all the same
  await cut;
  await c.master('m1', { report_interval: '200ms' });
  await c.r('ZADD', `{c0}:drops:${x.node_id}`, 0, id);
  // Nor is one deleted that the catalog has.
  const safe = kept.snapshot_id.split(':')[0];
  await c.r('ZADD', `{c0}:drops:${x.node_id}`, 0, safe);
  await until('its node was told', async () => (await n(`${x.node_id} stats`)).dropped.includes(id));
  await settled();
  assert(!(await n(`${x.node_id} stats`)).dropped.includes(safe), 'the one that was made');
  await s.catalog('DeleteTemplate', { name: kept.snapshot_id, team_id: 't1' });
  await until('that too', async () => (await n(`${x.node_id} stats`)).dropped.includes(safe));
  await settled();
  await s.sandboxes('Kill', q(x));
});
if (process.getuid() === 0) await test('the disk of the journal is full: what cannot be written down has not happened, and the answer says why', async () => {
  const x = await create(), kept = await s.sandboxes('Snapshot', q(x));
  const digest = (what) => crypto.createHash('sha256').update(what).digest('hex');
  const { key } = await s.catalog('CreateKey', { team_id: 't1', key_sha256: digest('old'), name: 'old' });
  const keys = async () => (await s.catalog('ListKeys', { team_id: 't1' })).keys.map((k) => k.name);
  const listed = async () => (await s.sandboxes('ListSnapshots', { team_id: 't1' })).snapshots.map((v) => v.snapshot_id);
  const before = [await keys(), await listed()], store = path.join(c.dir, 'store'), journal = path.join(store, 'catalog.journal');
  let text = fs.readFileSync(journal);
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=1m', 'none', store]);
  try {
    fs.writeFileSync(journal, text, { mode: 0o600 });
    // To the last byte of the journal's last block, too: half a line, as of a writer that died.
    execFileSync('sh', ['-c', 'cat /dev/zero > fill; for i in $(seq 300); do printf "%0100d" 0 >> catalog.journal || break; done'], { cwd: store, stdio: 'ignore' });
    const full = (call, method, request) => rejects(s[call](method, request), 'storage_full', /journal.*No space left on device/);
    await full('catalog', 'CreateKey', { team_id: 't1', key_sha256: digest('new'), name: 'new' });
    await full('catalog', 'DeleteKey', { team_id: 't1', key_id: key.key_id });
    await full('catalog', 'DeleteTemplate', { team_id: 't1', name: kept.snapshot_id });
    const known = (await n(`${x.node_id} stats`)).dropped;
    await full('sandboxes', 'Snapshot', q(x));
    equal([await keys(), await listed()], before, 'keys and snapshots');
    await until('the snapshot that was not written down goes', async () => (await n(`${x.node_id} stats`)).dropped.some((id) => !known.includes(id)));
    await settled();
    fs.unlinkSync(path.join(store, 'fill'));
    await s.catalog('CreateKey', { team_id: 't1', key_sha256: digest('new'), name: 'new' });
    await s.catalog('DeleteKey', { team_id: 't1', key_id: key.key_id });
    await s.catalog('DeleteTemplate', { team_id: 't1', name: kept.snapshot_id });
    equal([await keys(), await listed()], [[...before[0].filter((k) => k !== 'old'), 'new'], before[1].filter((id) => id !== kept.snapshot_id)], 'with room again');
  } finally {
    text = fs.readFileSync(journal);
    execFileSync('umount', ['-l', store]);
    fs.writeFileSync(journal, text);
  }
  await s.sandboxes('Kill', q(x));
});
await test('a snapshot that is deleted while its node is away goes when the node is back, also when Redis has lost its data meanwhile', async () => {
  const x = await create(), before = await c.r('SMEMBERS', '{c0}:snaps:t1');
  const both = [await s.sandboxes('Snapshot', q(x)), await s.sandboxes('Snapshot', q(x, { name: 'gone' }))];
  const ids = (await c.r('SMEMBERS', '{c0}:snaps:t1')).filter((id) => !before.includes(id)).sort();
  await c.kill('n');
  for (const v of both) await s.catalog('DeleteTemplate', { name: v.snapshot_id, team_id: 't1' });
  const journal = () => fs.readFileSync(path.join(c.dir, 'store/catalog.journal'), 'utf8');
  const lines = (kind) => journal().split('\n').filter((l) => l.split(' ')[1] === kind).length;
  await until('the node could not be told', () => lines('drop') === 2);
  const done = lines('undrop');
  equal((await later(x.node_id)).sort(), ids);
  await c.kill('redis');
  await c.redis();
  const again = await c.sim('n2', [port], ['--nodes', 2]);
  await until('its node was told', async () => { const { dropped } = await again(`${x.node_id} stats`); return ids.every((id) => dropped.includes(id)); }, 60000);
  await settled();
  await until('that is written down', () => lines('undrop') === done + 2);
});
await c.end();
done();
