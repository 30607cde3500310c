// Two real nodes on one machine under one master: placement, cordon, drain, the loss of a whole node, its return and its removal, with real VMs
// and the unmodified SDK. The first node is that of `cube up`; the second is tests/nodes/extra_node.sh.
import { execFileSync } from 'node:child_process'
import { existsSync, readFileSync, readdirSync } from 'node:fs'
import { Sandbox } from 'e2b'
import { equal, ok, test, until } from './check.mjs'

const state = process.env.CUBE_STATE_DIR, work = process.env.CUBE_WORK, root = process.env.CUBE_ROOT
const cube = `${process.env.CUBE_BUILD_DIR}/cli/cube`
const SECOND = 'second', dir = `${work}/second`
const token = readFileSync(`${state}/keys/admin_token`, 'utf8').trim()

const admin = async (method, path) => {
  const r = await fetch(process.env.E2B_API_URL + path, { method, headers: { 'X-Admin-Token': token } })
  const text = await r.text()
  return { status: r.status, json: text ? JSON.parse(text) : undefined }
}
const nodes = async () => (await admin('GET', '/cube/v1/nodes')).json
const detail = async (id) => {
  const r = await fetch(`${process.env.E2B_API_URL}/cube/v1/sandboxes/${id}`, { headers: { 'X-API-Key': process.env.E2B_API_KEY } })
  return r.json()
}
const nodeOf = async (sandbox) => (await detail(sandbox.sandboxId)).nodeID
const extra = (verb, ...args) => execFileSync(`${root}/tests/nodes/extra_node.sh`, [verb, dir, ...args], { stdio: ['ignore', 'ignore', 'inherit'] })
const run = (...args) => execFileSync(cube, args, { encoding: 'utf8' })
const create = () => Sandbox.create('base', { timeoutMs: 600_000 })
const answers = async (sandbox, what) => {
  const r = await sandbox.commands.run(`echo ${what}-$((6 * 7))`, { timeoutMs: 20_000 })
  equal(r.stdout, `${what}-42\n`, `${sandbox.sandboxId} answers`)
}
const ready = (n) => until(async () => {
  const all = await nodes()
  return all.filter((x) => x.status === 'ready' && x.templates.length > 0).length === n
}, 120_000, `${n} nodes are ready with their template`)

const mine = [] // sandboxes that run, with the node that they are on
const on = (id) => mine.filter((x) => x.node === id).map((x) => x.sandbox)
async function add(n) {
  const made = await Promise.all(Array.from({ length: n }, create))
  const rows = await Promise.all(made.map(async (sandbox) => ({ sandbox, node: await nodeOf(sandbox) })))
  mine.push(...rows)
  return rows
}

const first = (await nodes())[0].nodeID
const snapshots = [], stored = () => snapshots.filter((id) => existsSync(`${dir}/state/store/snap/${id.split(':')[0]}`))

await test('nodes: a second node on the machine joins the cluster', async () => {
  extra('start', SECOND, process.env.CUBE_SECOND_PORT)
  await ready(2)
  const all = await nodes()
  equal(all.map((n) => n.nodeID).sort(), [first, SECOND].sort(), 'both are listed')
  ok(run('node', 'ls').includes(SECOND), 'cube node ls')
})

await test('nodes: sandboxes are spread over both, and every one of them answers', async () => {
  await add(6)
  ok(on(first).length >= 1 && on(SECOND).length >= 1, `spread: ${mine.map((x) => x.node)}`)
  await Promise.all(mine.map((x) => answers(x.sandbox, x.node === SECOND ? 'second' : 'first')))
  const counts = Object.fromEntries((await nodes()).map((n) => [n.nodeID, n.reserved.sandboxes]))
  equal([counts[first], counts[SECOND]], [on(first).length, on(SECOND).length], 'the nodes hold what the sandboxes say')
})

await test("nodes: a client's trace reaches the timeline and the node's log", async () => {
  const trace = '4bf92f3577b34da6a3ce929d0e0e4736'
  const headers = { 'X-API-Key': process.env.E2B_API_KEY, 'Content-Type': 'application/json', traceparent: `00-${trace}-00f067aa0ba902b7-01` }
  const r = await fetch(`${process.env.E2B_API_URL}/v2/sandboxes`, { method: 'POST', headers, body: '{"templateID":"base"}' })
  const { sandboxID: id } = await r.json()
  const log = (await detail(id)).nodeID === SECOND ? `${dir}/log/cube-node.log` : `${state}/log/cube-node.log`
  const said = () => readFileSync(log, 'utf8').split('\n').filter((l) => l.includes(trace) && l.endsWith('}')).map((l) => JSON.parse(l))
  await until(() => said().some((l) => l.sandbox === id && l.trace.includes(trace)), 30_000, `in ${log}`)
  const timeline = await (await fetch(`${process.env.E2B_API_URL}/cube/v1/sandboxes/${id}/timeline`, { headers })).json()
  ok(timeline.some((e) => e.trace?.includes(trace)), 'in the timeline')
  await Sandbox.kill(id)
})

await test('nodes: a sandbox keeps its files and its node over pause and resume', async () => {
  const [sandbox] = on(SECOND)
  await sandbox.files.write('kept', 'over the pause')
  await sandbox.pause()
  const again = await Sandbox.connect(sandbox.sandboxId)
  equal(await again.files.read('kept'), 'over the pause', 'content')
  equal(await nodeOf(sandbox), SECOND, 'its snapshot lies on the second node')
})

await test('nodes: a cordoned node gets no sandbox, and what runs there goes on', async () => {
  run('node', 'cordon', SECOND)
  equal((await add(3)).map((x) => x.node), [first, first, first], 'all on the other one')
  await Promise.all(on(SECOND).map((s) => answers(s, 'cordoned')))
  run('node', 'uncordon', SECOND)
  await until(async () => (await add(1))[0].node === SECOND, 60_000, 'readmitted, it is used again')
})

await test('nodes: a drained node pauses what runs there; connect brings each back', async () => {
  const there = on(SECOND)
  run('node', 'drain', SECOND)
  await until(async () => (await Promise.all(there.map((s) => detail(s.sandboxId)))).every((d) => d.state === 'paused'), 60_000, 'all are paused')
  await Promise.all(on(first).map((s) => answers(s, 'other')))
  equal((await nodes()).find((n) => n.nodeID === SECOND).reserved.sandboxes, 0, 'nothing takes room on the drained node')
  run('node', 'uncordon', SECOND)
  await ready(2)
  for (const s of there) await Sandbox.connect(s.sandboxId)
  await Promise.all(there.map((s) => answers(s, 'back')))
})

await test('nodes: removal is refused while the node lives', async () => {
  const r = await admin('DELETE', `/cube/v1/nodes/${SECOND}`)
  equal([r.status, r.json.code], [409, 409], JSON.stringify(r.json))
  equal((await admin('DELETE', '/cube/v1/nodes/nobody')).status, 404, 'one that does not exist')
})

await test('nodes: kill -9 of a whole node: its sandboxes are lost with the reason, the others go on', async () => {
  const there = on(SECOND)
  ok(there.length >= 2, 'something runs there')
  for (let i = 0; i < 2; i++) snapshots.push((await there[i].createSnapshot()).snapshotId)
  equal(stored().length, 2, 'their snapshots are on its disk')
  extra('crash')
  await Promise.all(on(first).map((s) => answers(s, 'alive')))
  await until(async () => (await Promise.all(there.map((s) => detail(s.sandboxId)))).every((d) => d.state === 'lost'), 60_000, 'lost')
  for (const s of there) {
    ok(/node/.test((await detail(s.sandboxId)).reason), `the reason: ${(await detail(s.sandboxId)).reason}`)
    const why = run('why', s.sandboxId)
    ok(/lost/.test(why) && why.includes(SECOND), `cube why: ${why}`)
    equal(await s.isRunning(), false, 'the SDK sees it gone')
  }
  equal((await add(2)).map((x) => x.node), [first, first], 'new ones are on the node that lives')
  await Promise.all(on(first).map((s) => answers(s, 'after')))
})

await test('nodes: a snapshot on a node that is away is deleted: gone for users at once, from the disk when the node is back', async () => {
  for (const id of snapshots) equal(await Sandbox.deleteSnapshot(id), true, 'deleted')
  equal(await Sandbox.deleteSnapshot(snapshots[0]), false, 'it is gone')
  equal(stored().length, 2, 'its files lie where nobody can reach them')
})

await test('nodes: a node that comes back takes sandboxes again and keeps nothing of the lost ones', async () => {
  const lost = on(SECOND).map((s) => s.sandboxId)
  mine.splice(0, mine.length, ...mine.filter((x) => x.node === first))
  extra('start', SECOND, process.env.CUBE_SECOND_PORT)
  await ready(2)
  await until(async () => (await add(1))[0].node === SECOND, 60_000, 'it is used again')
  await answers(on(SECOND)[0], 'returned')
  // Of a lost sandbox stay its record (the last generation) and its log, as of one that was killed; no disk and no memory.
  const kept = () => lost.flatMap((id) => readdirSync(`${dir}/state/sandboxes/${id}`)).filter((name) => name !== 'record' && name !== 'events')
  await until(() => kept().length === 0, 60_000, `nothing of the lost ones is kept (${kept()})`)
  await until(() => stored().length === 0, 60_000, 'the deleted snapshots are gone from its disk')
})

await test('nodes: a node that is gone is removed, by force with what it held', async () => {
  const there = on(SECOND)
  extra('crash')
  await until(async () => (await nodes()).find((n) => n.nodeID === SECOND).status !== 'ready', 60_000, 'its reports have stopped')
  run('node', 'rm', SECOND, '--force')
  equal((await nodes()).map((n) => n.nodeID), [first], 'one node is left')
  for (const s of there) equal((await detail(s.sandboxId)).state, 'lost', 'its sandbox is lost')
  equal((await admin('DELETE', `/cube/v1/nodes/${SECOND}`)).status, 404, 'it is gone')
  await Promise.all(on(first).map((s) => answers(s, 'last')))
})

for (const s of on(first)) await s.kill()
