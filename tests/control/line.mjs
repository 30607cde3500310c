// The thin line: catalog, create, get, list, timeout, pause, resume, kill, timeline: over real gRPC with a simulated node.
import { Cluster, test, assert, equal, until, rejects, sleep, done, grpc, proto } from './harness.mjs';
import crypto from 'node:crypto';
import fs from 'node:fs';

const c = new Cluster();
await c.redis();
const port = await c.master();
const n1 = await c.sim('n', [port], ['--nodes', 2]);
await c.lifecycle();
const s = await c.seed();
const spec = (more = {}) => ({ spec: { team_id: 't1', template_id: 'base', timeout_ms: 300000, secure: true, metadata: [], ...more } });
await until('nodes are ready', async () => (await s.nodes('List', {})).nodes.filter((n) => n.status === 'ready').length === 2);

await test('catalog: keys are checked by digest, deleted, and belong to a team', async () => {
  const digest = crypto.createHash('sha256').update('e2b_x').digest('hex');
  const made = await s.catalog('CreateKey', { team_id: 't1', name: 'k', key_sha256: digest, mask: 'e2b_…' });
  const again = await s.catalog('CreateKey', { team_id: 't1', name: 'k', key_sha256: digest, mask: 'e2b_…' });
  equal(again.key.key_id, made.key.key_id, 'the same digest again');
  const got = await s.catalog('CheckKey', { key_sha256: digest });
  equal([got.team.team_id, got.team.slug, got.key_id], ['t1', 't1', made.key.key_id]);
  equal((await s.catalog('ListKeys', { team_id: 't1' })).keys.length, 1);
  await rejects(s.catalog('CreateKey', { team_id: 'nope', name: 'k', key_sha256: 'a'.repeat(64) }), 'not_found');
  await rejects(s.catalog('CheckKey', { key_sha256: 'zz' }), 'invalid_argument');
  await s.catalog('DeleteKey', { team_id: 't1', key_id: made.key.key_id });
  await rejects(s.catalog('CheckKey', { key_sha256: digest }), 'unauthenticated');
  await rejects(s.catalog('DeleteKey', { team_id: 't1', key_id: made.key.key_id }), 'not_found');
});
await test('catalog: template names resolve by alias, namespace, ID and tag', async () => {
  await s.catalog('PutTemplate', { template_id: 'tpl2', team_id: 't1', aliases: ['t1/mine', 't1/mine:v2'], limits: { vcpus: 2, memory_mib: 256 }, status: 'ready' });
  equal((await s.catalog('GetTemplate', { name: ' BASE ', team_id: 't1' })).template_id, 'tpl1');
  for (const name of ['mine', 't1/mine', 'mine:v2', 'mine:default', 'tpl2'])
    equal((await s.catalog('GetTemplate', { name, team_id: 't1' })).template_id, 'tpl2', name);
  await rejects(s.catalog('GetTemplate', { name: 'mine:v9', team_id: 't1' }), 'not_found', /tag 'v9' does not exist/);
  await rejects(s.catalog('GetTemplate', { name: 'mine', team_id: 't2' }), 'not_found', /template 'mine' not found/);
  await rejects(s.catalog('GetTemplate', { name: 'tpl2', team_id: 't2' }), 'forbidden');
  await rejects(s.catalog('GetTemplate', { name: '../../x y', team_id: 't2' }), 'not_found');
  equal((await s.catalog('ListTemplates', { team_id: '' })).templates.length, 2);
  await s.catalog('DeleteTemplate', { name: 'mine', team_id: 't1' });
  await rejects(s.catalog('GetTemplate', { name: 'mine', team_id: 't1' }), 'not_found');
});
await test('create, get, route, kill; the second kill answers not found', async () => {
  const { sandbox } = await s.sandboxes('Create', spec({ metadata: [{ key: 'a', value: 'b' }], private_traffic: true, auto_resume: true }));
  assert(/^i0[a-z0-9]{19}$/.test(sandbox.spec.sandbox_id), sandbox.spec.sandbox_id);
  equal([sandbox.state, sandbox.gen, sandbox.spec.template_id, sandbox.spec.alias, sandbox.spec.limits.memory_mib], ['RUNNING', 1, 'tpl1', 'base', 512]);
  const id = sandbox.spec.sandbox_id;
  const seed = Buffer.from(fs.readFileSync(`${c.dir}/keys/seed`, 'utf8').trim(), 'hex');
  const hmac = (t) => crypto.createHmac('sha256', seed).update(t).digest('hex');
  const sha = (t) => crypto.createHash('sha256').update(t).digest('hex');
  equal([sandbox.envd_token, sandbox.traffic_token], [hmac(id), hmac(`traffic-${id}`)]);
  const rt = await c.r.hash(`{c0}:rt:${id}`);
  equal([rt.node, rt.relay, rt.gen, rt.state, rt.ticket, rt.envd_sha256, rt.traffic_sha256, rt.auto_resume, rt.private],
    [sandbox.node_id, '127.0.0.1:9', '1', 'running', hmac(`ticket-${id}-1`), sha(hmac(id)), sha(hmac(`traffic-${id}`)), '1', '1']);
  equal((await s.sandboxes('Get', { sandbox_id: id, team_id: 't1' })).sandbox.state, 'RUNNING');
  await rejects(s.sandboxes('Get', { sandbox_id: id, team_id: 't2' }), 'not_found');
  await rejects(s.sandboxes('Get', { sandbox_id: 'x', team_id: 't1' }), 'invalid_argument');
  equal((await s.sandboxes('Kill', { sandbox_id: id, team_id: 't1' })).killed, true);
  await rejects(s.sandboxes('Kill', { sandbox_id: id, team_id: 't1' }), 'not_found');
  equal(await c.r('EXISTS', `{c0}:rt:${id}`), 0);
  equal((await c.r.hash(`{c0}:sb:${id}`)).state, 'killed');
  equal(await n1(`${sandbox.node_id} list`), []);
  const story = (await s.sandboxes('Timeline', { sandbox_id: id, team_id: 't1' })).events.map((e) => e.text);
  assert(story[0].startsWith('creating from template') && story.some((t) => t.includes('chosen')) && story.at(-1).includes('killed'), JSON.stringify(story));
});
await test('events on the stream for each change of state', async () => {
  const last = (await c.r('XREVRANGE', '{c0}:ev', '+', '-', 'COUNT', 1))[0]?.[0] || '0';
  const { sandbox } = await s.sandboxes('Create', spec());
  const id = sandbox.spec.sandbox_id;
  await s.sandboxes('SetDeadline', { sandbox_id: id, team_id: 't1', timeout_ms: 100000 });
  await s.sandboxes('Pause', { sandbox_id: id, team_id: 't1' });
  await s.sandboxes('Resume', { sandbox_id: id, team_id: 't1' });
  await s.sandboxes('Kill', { sandbox_id: id, team_id: 't1' });
  const all = (await c.r('XRANGE', '{c0}:ev', `(${last}`, '+')).map((e) => Object.fromEntries([[e[1][2], e[1][3]], [e[1][4], e[1][5]], [e[1][6], e[1][7]]])).filter((e) => e.id === id);
  equal(all.map((e) => `${e.state}/${e.gen}`), ['running/1', 'pausing/1', 'paused/1', 'resuming/2', 'running/2', 'killing/2', 'killed/2']);
});
await test('pause, queued resume, connect keeps the longer deadline, legacy resume conflicts', async () => {
  const { sandbox } = await s.sandboxes('Create', spec());
  const id = sandbox.spec.sandbox_id, q = { sandbox_id: id, team_id: 't1' };
  await n1(`${sandbox.node_id} pause_ms 60000`); // until told otherwise
  const pausing = s.sandboxes('Pause', q);
  await until('pausing', async () => (await s.sandboxes('Get', q)).sandbox.state === 'PAUSING');
  const resumed = s.sandboxes('Resume', { ...q, timeout_ms: 60000, extend_only: true });
  await sleep(300); // the resume should be waiting by now; one that comes later finds it paused
  await n1(`${sandbox.node_id} pause_ms 0`);
  equal((await pausing).sandbox.state, 'PAUSED');
  const r = await resumed;
  equal([r.resumed, r.sandbox.state, r.sandbox.gen], [true, 'RUNNING', 2]);
  await rejects(s.sandboxes('Resume', { ...q, must_be_paused: true }), 'conflict');
  const longer = await s.sandboxes('Resume', { ...q, timeout_ms: 500000, extend_only: true });
  equal(longer.resumed, false);
  assert(longer.sandbox.end_ms > r.sandbox.end_ms, 'extended');
  const shorter = await s.sandboxes('Resume', { ...q, timeout_ms: 1000, extend_only: true });
  equal(shorter.sandbox.end_ms, longer.sandbox.end_ms, 'never shortened by connect');
  await s.sandboxes('Pause', q);
  await rejects(s.sandboxes('Pause', q), 'conflict', /already paused/);
  await rejects(s.sandboxes('SetDeadline', { ...q, timeout_ms: 1000 }), 'conflict');
  equal((await s.sandboxes('Kill', q)).killed, true);
});
await test('ten connects at once start one VM', async () => {
  const { sandbox } = await s.sandboxes('Create', spec());
  const q = { sandbox_id: sandbox.spec.sandbox_id, team_id: 't1' };
  await s.sandboxes('Pause', q);
  const before = (await n1(`${sandbox.node_id} stats`)).restores;
  const all = await Promise.all(Array.from({ length: 10 }, () => s.sandboxes('Resume', { ...q, timeout_ms: 60000, extend_only: true })));
  equal(all.filter((r) => r.resumed).length, 1, 'one of them resumed it');
  equal(new Set(all.map((r) => r.sandbox.gen)).size, 1);
  equal((await n1(`${sandbox.node_id} stats`)).restores, before + 1);
  await s.sandboxes('Kill', q);
});
await test('timeouts: kill or pause by the sandbox\'s own policy, in time', async () => {
  const a = (await s.sandboxes('Create', spec({ timeout_ms: 1000 }))).sandbox;
  const b = (await s.sandboxes('Create', spec({ timeout_ms: 1000, auto_pause: true, auto_pause_memory: true }))).sandbox;
  const d = (await s.sandboxes('Create', spec({ timeout_ms: 4000 }))).sandbox;
  await s.sandboxes('SetDeadline', { sandbox_id: d.spec.sandbox_id, team_id: 't1', timeout_ms: 60000 });
  const late = await until('killed', async () => (await c.r('HGET', `{c0}:sb:${a.spec.sandbox_id}`, 'state')) === 'killed' && Date.now() - a.end_ms, 20000, 5);
  await until('paused', async () => (await s.sandboxes('Get', { sandbox_id: b.spec.sandbox_id, team_id: 't1' })).sandbox.state === 'PAUSED', 20000, 5);
  assert(late < 8000, `${late} ms late`);
  equal((await s.sandboxes('Get', { sandbox_id: d.spec.sandbox_id, team_id: 't1' })).sandbox.state, 'RUNNING', 'the extended one lives');
  for (const x of [b, d]) await s.sandboxes('Kill', { sandbox_id: x.spec.sandbox_id, team_id: 't1' });
});
await test('list: order, metadata, state, template, cursor both ways, wrong cursor', async () => {
  const ids = [];
  for (let i = 0; i < 7; i++) {
    ids.push((await s.sandboxes('Create', spec({ metadata: [{ key: 'grp', value: i % 2 ? 'odd' : 'even' }, { key: 'x y', value: '=&ü' }] }))).sandbox.spec.sandbox_id);
    await sleep(3);
  }
  await s.sandboxes('Pause', { sandbox_id: ids[0], team_id: 't1' });
  await s.sandboxes('Pause', { sandbox_id: ids[3], team_id: 't1' });
  const names = (r) => r.sandboxes.map((x) => x.spec.sandbox_id);
  const all = await s.sandboxes('List', { team_id: 't1' });
  equal(names(all), [...ids].reverse(), 'newest first');
  equal(all.total_running, 5);
  equal(names(await s.sandboxes('List', { team_id: 't1', ascending: true })), ids);
  equal(names(await s.sandboxes('List', { team_id: 't1', paused: true })), [ids[3], ids[0]]);
  equal(names(await s.sandboxes('List', { team_id: 't1', running: true, metadata: [{ key: 'grp', value: 'odd' }, { key: 'x y', value: '=&ü' }] })), [ids[5], ids[1]]);
  equal((await s.sandboxes('List', { team_id: 't1', running: true, metadata: [{ key: 'grp', value: 'odd' }, { key: 'x y', value: '=&ü' }] })).total_running, 2);
  equal(names(await s.sandboxes('List', { team_id: 't1', metadata: [{ key: 'grp', value: 'none' }] })), []);
  equal(names(await s.sandboxes('List', { team_id: 't1', template_id: 'tpl1', limit: 2 })), [ids[6], ids[5]]);
  equal(names(await s.sandboxes('List', { team_id: 't2' })), []);
  for (const ascending of [false, true]) {
    let got = [], cursor = '';
    do {
      const page = await s.sandboxes('List', { team_id: 't1', ascending, limit: 3, cursor });
      got.push(...names(page));
      cursor = page.next_cursor;
      if (got.length === 3) await rejects(s.sandboxes('List', { team_id: 't1', ascending: !ascending, cursor }), 'invalid_argument', /Invalid next token/);
    } while (cursor);
    equal(got, ascending ? ids : [...ids].reverse(), `paged, ascending ${ascending}`);
  }
  const since = all.sandboxes[2].started_ms;
  equal(names(await s.sandboxes('List', { team_id: 't1', started_after_ms: since })), [ids[6], ids[5], ids[4]], 'started_after is inclusive');
  for (const cursor of ['x', 'd' + '9'.repeat(200), 'd' + 'x'.repeat(34), "d'; DROP", 'd9999999999999i0'])
    await rejects(s.sandboxes('List', { team_id: 't1', cursor }), 'invalid_argument', /Invalid next token/);
  for (const sandbox_id of ids) await s.sandboxes('Kill', { sandbox_id, team_id: 't1' });
});
await test('logs and metrics come from the node', async () => {
  const { sandbox } = await s.sandboxes('Create', spec());
  const id = sandbox.spec.sandbox_id;
  equal((await s.sandboxes('ReadLog', { sandbox_id: id, team_id: 't1', limit: 10 })).entries[0].message, 'a simulated line');
  equal((await s.sandboxes('Metrics', { sandbox_ids: [id, 'i0' + 'z'.repeat(19)], team_id: 't1' })).points.map((p) => p.sandbox_id), [id]);
  await rejects(s.sandboxes('Metrics', { sandbox_ids: ['i0' + 'z'.repeat(19)], team_id: 't1' }), 'not_found');
  await rejects(s.sandboxes('ReadLog', { sandbox_id: id, team_id: 't9' }), 'not_found');
  await s.sandboxes('Kill', { sandbox_id: id, team_id: 't1' });
});
await test('wake: many proxies, one resume; only with auto-resume', async () => {
  const { sandbox } = await s.sandboxes('Create', spec({ auto_resume: true, auto_pause: true, auto_pause_memory: true }));
  const id = sandbox.spec.sandbox_id, q = { sandbox_id: id, team_id: 't1' };
  await s.sandboxes('Pause', q);
  const wakes = [1, 2, 3].map(() => c.client(proto.cube.lifecycle.v1.Wake, c.l1Port, 'proxy'));
  const before = (await n1(`${sandbox.node_id} stats`)).restores;
  const got = await Promise.all(Array.from({ length: 30 }, (_, i) => wakes[i % 3]('Wake', { sandbox_id: id, gen_seen: 1 })));
  equal(new Set(got.map((g) => `${g.gen} ${g.node_id} ${g.relay_address} ${g.ticket.length}`)).size, 1);
  equal([got[0].gen, got[0].ticket.length], [2, 32]);
  equal((await n1(`${sandbox.node_id} stats`)).restores, before + 1);
  const rec = (await s.sandboxes('Get', q)).sandbox;
  assert(rec.end_ms - rec.started_ms >= 300000, 'woken for at least 300 s');
  equal([rec.spec.auto_resume, rec.spec.auto_pause], [true, true], 'the policy stays');
  await s.sandboxes('Pause', { ...q, filesystem_only: true });
  await rejects(wakes[0]('Wake', { sandbox_id: id, gen_seen: 2 }), 'forbidden');
  const no = (await s.sandboxes('Create', spec())).sandbox.spec.sandbox_id;
  await s.sandboxes('Pause', { sandbox_id: no, team_id: 't1' });
  await rejects(wakes[0]('Wake', { sandbox_id: no, gen_seen: 1 }), 'forbidden');
  await rejects(wakes[0]('Wake', { sandbox_id: 'i0' + 'q'.repeat(19), gen_seen: 1 }), 'not_found');
  await rejects(c.client(proto.cube.lifecycle.v1.Wake, c.l1Port, 'node')('Wake', { sandbox_id: id }), undefined);
  for (const x of [id, no]) await s.sandboxes('Kill', { sandbox_id: x, team_id: 't1' });
});
await test('the policy of the sandbox stays over many rounds of pause, connect, resume and wake, with and without a timeout', async () => {
  const wake = c.client(proto.cube.lifecycle.v1.Wake, c.l1Port, 'proxy');
  for (const [auto_pause, auto_resume] of [[true, true], [true, false], [false, true], [false, false]]) {
    const { sandbox } = await s.sandboxes('Create', spec({ auto_pause, auto_pause_memory: auto_pause, auto_resume, timeout_ms: 600000 }));
    const q = { sandbox_id: sandbox.spec.sandbox_id, team_id: 't1' };
    for (let round = 0; round < 12; round++) {
      await s.sandboxes('Pause', q);
      if (round % 4 === 0) await s.sandboxes('Resume', { ...q, timeout_ms: 600000, extend_only: true });
      else if (round % 4 === 1) await s.sandboxes('Resume', q);
      else if (round % 4 === 2) await s.sandboxes('Resume', { ...q, timeout_ms: 600000, must_be_paused: true });
      else if (auto_resume) await wake('Wake', { sandbox_id: q.sandbox_id, gen_seen: round + 1 });
      else {
        await rejects(wake('Wake', { sandbox_id: q.sandbox_id, gen_seen: round + 1 }), 'forbidden');
        await s.sandboxes('Resume', { ...q, extend_only: true });
      }
      const now = (await s.sandboxes('Get', q)).sandbox, rt = await c.r.hash(`{c0}:rt:${q.sandbox_id}`);
      equal([now.gen, now.spec.auto_pause, now.spec.auto_pause_memory, now.spec.auto_resume, rt.auto_resume],
        [round + 2, auto_pause, auto_pause, auto_resume, auto_resume ? '1' : '0'], `round ${round}`);
      assert(now.end_ms > Date.now(), 'it has a deadline');
    }
    equal(await c.r('HGET', `{c0}:sb:${q.sandbox_id}`, 'auto_pause'), auto_pause ? '1' : null, 'what its timeout will do');
    await s.sandboxes('Kill', q);
  }
});
await test('roles: each service takes only the callers of its column, and a node speaks for itself alone', async () => {
  const M = proto.cube.master.v1;
  const denied = async (p) => { const e = await rejects(p); assert([7, 16].includes(e.code), `status ${e.code}`); };
  await denied(c.client(M.Sandboxes, port, 'node')('Get', { sandbox_id: 'i0' + 'q'.repeat(19) }));
  await denied(c.client(M.Catalog, port, 'lifecycle')('CheckKey', { key_sha256: 'a'.repeat(64) }));
  await denied(c.client(M.NodeLink, port, 'api')('Register', { node_id: 'n1' }));
  await denied(c.client(M.Sandboxes, port, 'api', { key: '0'.repeat(64) })('Get', { sandbox_id: 'i0' + 'q'.repeat(19) }));
  await denied(c.client(M.NodeLink, port, 'node', { node: 'n7' })('Register', { node_id: 'n1', rpc_address: '127.0.0.1:1', capacity: { memory_mib: 1, cpu_milli: 1 } }));
});
await test('nothing is left: no reservation, quota, index, deadline or operation', async () => {
  await until('all gone', async () => (await c.r('KEYS', '{c0}:ix:*')).length === 0);
  for (const n of ['n1', 'n2']) {
    const h = await c.r.hash(`{c0}:node:${n}`);
    equal([h.r_mem, h.r_nominal, h.r_cpu, h.r_count, await c.r('EXISTS', `{c0}:res:${n}`)], ['0', '0', '0', '0', 0], n);
  }
  const use = await c.r.hash('{c0}:use:t1');
  equal([use.sandboxes, use.vcpus, use.memory_mib], ['0', '0', '0']);
  equal((await c.r('KEYS', '{c0}:dl:*')).concat(await c.r('KEYS', '{c0}:rt:*'), await c.r('KEYS', '{c0}:op')), []);
});
await c.end();
done();
