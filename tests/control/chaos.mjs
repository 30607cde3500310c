// kill -9 of every part under load, again and again, and parts that stand still for a while, then a census: every sandbox that a client was
// told of is running, paused, or reported lost with a reason; nodes hold exactly what the records say; no key is left of what ended.
import { Cluster, test, assert, equal, until, sleep, done, redisClient, proto } from './harness.mjs';

const SECONDS = Number(process.env.CUBE_CHAOS_SECONDS || (process.env.LONG ? 60 : 15));
const c = new Cluster();
await c.redis({ aof: true });
const fast = { node_stale: '2s', node_lost: '6s', report_interval: '200ms', node_timeout: '3s', recover_timeout: '5s', journal_growth_kib: 1 };
const ports = [await c.master('m1', fast), await c.master('m2', fast), await c.master('m3', fast)];
const sims = {};
for (const name of ['a', 'b']) sims[name] = await c.sim(name, ports, ['--prefix', name, '--nodes', 2, '--start-ms', 5]);
await c.lifecycle('l1');
await c.lifecycle('l2');
const apis = ports.map((p) => c.services(p));
await c.seed(ports[0]);
await until('nodes', async () => (await apis[0].nodes('List', {})).nodes.filter((x) => x.status === 'ready').length === 4);

const told = new Map(); // id → what a client knows: running, paused, gone, unknown
const tally = {};
const count = (what) => { tally[what] = (tally[what] || 0) + 1; };
let stop = false;
const q = (id) => ({ sandbox_id: id, team_id: 't1' });
const pick = () => { const ids = [...told].filter(([, v]) => v.state !== 'gone' && !v.busy); return ids[Math.floor(Math.random() * ids.length)]; };

async function client(i) {
  while (!stop) {
    const s = apis[Math.floor(Math.random() * 3)];
    const dice = Math.random();
    try {
      if (told.size < 30 || dice < 0.3) {
        const auto = Math.random() < 0.5;
        const x = (await s.sandboxes('Create', { spec: { team_id: 't1', template_id: 'base', timeout_ms: 600000, auto_pause: auto, auto_pause_memory: true, auto_resume: auto } }, { timeout: 8000 })).sandbox;
        told.set(x.spec.sandbox_id, { state: 'running', auto });
        count('create');
      } else {
        const one = pick();
        if (!one) { await sleep(20); continue; }
        const [id, v] = one;
        v.busy = true;
        try {
          if (dice < 0.5) { v.state = 'unknown'; await s.sandboxes('Kill', q(id), { timeout: 12000 }); v.state = 'gone'; count('kill'); }
          else if (dice < 0.7) { v.state = 'unknown'; await s.sandboxes('Pause', q(id), { timeout: 8000 }); v.state = 'paused'; count('pause'); }
          else if (dice < 0.9) { v.state = 'unknown'; const r = await s.sandboxes('Resume', { ...q(id), timeout_ms: 600000, extend_only: true }, { timeout: 8000 }); v.state = 'running'; count(r.resumed ? 'resume' : 'connect'); assert(r.sandbox.spec.auto_pause === v.auto && r.sandbox.spec.auto_resume === v.auto, 'the policy stays'); }
          else { await s.sandboxes('SetDeadline', { ...q(id), timeout_ms: 600000 }, { timeout: 5000 }); count('deadline'); }
        } catch (e) {
          if (e.cube === 'not_found') v.state = 'unknown'; // killed by an earlier request whose answer was lost, or lost
          throw e;
        } finally { v.busy = false; }
      }
    } catch (e) {
      if (!e.code && !e.cube) { console.log('FAIL control: chaos client: ' + e.stack); process.exit(1); }
      count(`error ${e.cube || e.code}`);
      await sleep(30);
    }
  }
}

await test(`${SECONDS} s of load with kill -9 of masters, lifecycles, Redis, and silent nodes`, async () => {
  const clients = Array.from({ length: 12 }, (_, i) => client(i));
  const end = Date.now() + SECONDS * 1000;
  let turn = 0;
  const keys = { m1: fast, m2: fast, m3: fast };
  // For longer on a machine that gets little done.
  const enough = () => tally.create > 20 && tally.kill > 2 && tally.pause > 2 && tally.resume > 0;
  while (Date.now() < end || (!enough() && Date.now() < end + 100000)) {
    await sleep(700 + Math.random() * 800);
    const what = ['m1', 'redis', 'node', 'stop', 'l1', 'm2', 'stop', 'node', 'm3', 'redis', 'l2', 'node'][turn++ % 12];
    count(what === 'stop' ? what : `kill ${what}`);
    if (what === 'stop') { // also for longer than its announcement lives: what it had begun is another's by then
      const p = c.procs.get(['m1', 'm2', 'm3', 'redis'][Math.floor(Math.random() * 4)]);
      p?.kill('SIGSTOP');
      await sleep(300 + Math.random() * 3500);
      p?.kill('SIGCONT');
    } else if (what === 'node') {
      const name = `${Math.random() < 0.5 ? 'a' : 'b'}${1 + Math.floor(Math.random() * 2)}`;
      const sim = sims[name[0]];
      await sim(`${name} silent 1`);
      const long = Math.random() < 0.3;
      setTimeout(() => sim(`${name} silent 0`), long ? 8000 : 1500);
    } else if (what === 'redis') {
      await c.kill('redis');
      await sleep(Math.random() * 600);
      await c.redis({ aof: true });
    } else if (what[0] === 'm') {
      await c.kill(what);
      await sleep(Math.random() * 500);
      await c.master(what, keys[what]).catch(() => c.procs.has(what) || c.master(what, keys[what]));
    } else {
      await c.kill(what);
      await c.lifecycle(what);
    }
  }
  stop = true;
  await Promise.all(clients);
  console.log('  ' + JSON.stringify(tally));
  assert(enough(), 'the load did something');
});
async function census() {
  const problems = [];
  const on = new Map();
  for (const name of ['a1', 'a2', 'b1', 'b2']) for (const x of await sims[name[0]](`${name} list`)) on.set(x.id, { ...x, node: name });
  let lost = 0;
  for (const [id, v] of told) {
    const rec = await c.r.hash(`{c0}:sb:${id}`);
    if (v.state === 'gone' && rec.state && rec.state !== 'killed') problems.push(`${id}: a client was told that it is killed, it is ${rec.state}`);
    if (['running', 'paused'].includes(v.state) && !['running', 'paused', 'lost'].includes(rec.state)) problems.push(`${id}: a client knows it as ${v.state}, it is ${rec.state} (${rec.reason})`);
    if (rec.state === 'lost') { lost++; if (!rec.reason) problems.push(`${id}: lost without a reason`); }
  }
  const records = (await c.r('KEYS', '{c0}:sb:*')).map((k) => k.slice(8));
  const held = {}, perNode = {};
  for (const id of records) {
    const rec = await c.r.hash(`{c0}:sb:${id}`), vm = on.get(id), rt = await c.r.hash(`{c0}:rt:${id}`);
    const alive = ['running', 'paused'].includes(rec.state);
    if (alive && (!vm || vm.state !== rec.state || vm.node !== rec.node || (rec.state === 'running' && String(vm.gen) !== rec.gen)))
      problems.push(`${id}: record ${rec.state}/${rec.gen}@${rec.node}, node has ${vm ? `${vm.state}/${vm.gen}@${vm.node}` : 'nothing'}`);
    if (!alive && vm) problems.push(`${id}: record ${rec.state}, but node ${vm.node} holds it ${vm.state}`);
    if (alive !== (rt.gen === rec.gen)) problems.push(`${id}: record ${rec.state}/${rec.gen}, route ${rt.state}/${rt.gen}`);
    if (rec.state === 'running') { held[rec.node] = (held[rec.node] || 0) + 1; if (!await c.r('ZSCORE', `{c0}:dl:${id.at(-1)}`, id)) problems.push(`${id}: runs without a deadline`); }
    if (alive) perNode[rec.state] = (perNode[rec.state] || 0) + 1;
  }
  for (const [id, vm] of on) if (!records.includes(id)) problems.push(`${id}: on ${vm.node} without a record`);
  for (const name of ['a1', 'a2', 'b1', 'b2']) {
    const h = await c.r.hash(`{c0}:node:${name}`);
    if (Number(h.r_count) !== (held[name] || 0)) problems.push(`${name}: ${h.r_count} reserved, ${held[name] || 0} running`);
  }
  const use = await c.r.hash('{c0}:use:t1');
  if (Number(use.sandboxes || 0) !== (perNode.running || 0)) problems.push(`quota counts ${use.sandboxes}, running ${perNode.running}`);
  for (const [view, want] of Object.entries({ running: perNode.running || 0, paused: perNode.paused || 0 }))
    if (await c.r('ZCARD', `{c0}:ix:team:t1:${view}`) !== want) problems.push(`index of ${view}: ${await c.r('ZCARD', `{c0}:ix:team:t1:${view}`)} of ${want}`);
  const routes = (await c.r('KEYS', '{c0}:rt:*')).length;
  if (routes !== (perNode.running || 0) + (perNode.paused || 0)) problems.push(`${routes} routes`);
  console.log(`  census: ${told.size} told, ${records.length} records, ${JSON.stringify(perNode)}, ${lost} lost`);
  return problems;
}
await test('census: records, nodes, indexes, reservations, routes and deadlines agree', async () => {
  const s = apis[0];
  for (const name of ['a1', 'a2', 'b1', 'b2']) await sims[name[0]](`${name} silent 0`);
  await until('all nodes are back', async () => (await s.nodes('List', {})).nodes.filter((x) => x.status === 'ready').length === 4, 40000);
  await until('nothing is in transition', async () => (await c.r('ZCARD', '{c0}:op')) === 0, 60000, 200);
  // What a full report brings to light takes its time to be repaired; what is repaired stays so.
  let problems = ['no census was taken'];
  await until('the census agrees', async () => {
    for (const name of ['a1', 'a2', 'b1', 'b2']) await sims[name[0]](`${name} full`);
    await sleep(500);
    problems = await census();
    return problems.length === 0 && await c.r('ZCARD', '{c0}:op') === 0;
  }, 40000, 500).catch(() => {});
  assert(problems.length === 0, `${problems.length} problems: ${problems.slice(0, 6).join('; ')}`);
});
await test('everything can be killed, and nothing is left then', async () => {
  for (const id of (await c.r('KEYS', '{c0}:sb:*')).map((k) => k.slice(8))) await apis[0].sandboxes('Kill', q(id)).catch(() => {});
  await until('no VM', async () => (await Promise.all(['a1', 'a2', 'b1', 'b2'].map((x) => sims[x[0]](`${x} list`)))).every((l) => l.length === 0), 40000);
  await until('no keys', async () => (await c.r('KEYS', '{c0}:rt:*')).length + (await c.r('KEYS', '{c0}:dl:*')).length + (await c.r('KEYS', '{c0}:res:*')).length + (await c.r('ZCARD', '{c0}:op')) === 0, 40000);
});
await c.end();
done();
