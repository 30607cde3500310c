// kill -9 of each daemon and of Redis, with its data and without, under load of the SDK; then a census: every sandbox that a client was told
// of is running, paused, gone because it was killed, or lost with a reason, and the node holds exactly what the API lists.
import { readFileSync, readdirSync, rmSync, existsSync } from 'node:fs'
import { Sandbox } from 'e2b'
import { equal, ok, test, until } from './check.mjs'

const run = process.env.CUBE_RUN_DIR, state = process.env.CUBE_STATE_DIR
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
const pidOf = (name) => { try { return Number(readFileSync(`${run}/pid/${name}`, 'utf8')) } catch { return 0 } }
const fast = { requestTimeoutMs: 10_000 }
const told = new Map() // id → { sandbox, state, busy }; state: running, paused, gone, missing (told "not found"), unknown (an answer was lost)
const tally = {}
const count = (what) => { tally[what] = (tally[what] ?? 0) + 1 }
let stop = false
const wrong = []

async function act(v) {
  const dice = Math.random(), before = v.state
  if (dice < 0.5) {
    v.state = 'unknown' // a command may wake or find it gone
    if (before === 'paused') v.sandbox = await Sandbox.connect(v.sandbox.sandboxId, { timeoutMs: 1200_000, ...fast })
    const { stdout } = await v.sandbox.commands.run('cat mark || :', { timeoutMs: 8000, ...fast })
    if (v.marked && stdout !== v.sandbox.sandboxId) wrong.push(`${v.sandbox.sandboxId} says it is '${stdout}'`)
    v.state = 'running'
    return before === 'paused' ? 'connect' : 'command'
  }
  v.state = 'unknown'
  if (dice < 0.75) {
    await v.sandbox.pause(fast)
    v.state = 'paused'
    return 'pause'
  }
  if (await v.sandbox.kill(fast)) {
    v.state = 'gone'
    return 'kill'
  }
  v.state = 'missing'
  return 'not found'
}

async function client() {
  while (!stop) {
    const free = [...told.values()].filter((v) => v.state !== 'gone' && v.state !== 'missing' && !v.busy)
    try {
      if (free.length < 5) {
        const sandbox = await Sandbox.create('base', { timeoutMs: 1200_000, ...fast })
        const v = { sandbox, state: 'running', busy: true }
        told.set(sandbox.sandboxId, v)
        count('create')
        try { await sandbox.files.write('mark', sandbox.sandboxId, fast); v.marked = true } finally { v.busy = false }
      } else {
        const v = free[Math.floor(Math.random() * free.length)]
        v.busy = true
        try { count(await act(v)) } finally { v.busy = false }
      }
    } catch (e) {
      count(`error ${e.constructor.name}`)
      await pause(100)
    }
  }
}

const detail = async (id) => {
  const r = await fetch(`${process.env.E2B_API_URL}/cube/v1/sandboxes/${id}`, { headers: { 'X-API-Key': process.env.E2B_API_KEY } })
  if (r.status === 404) return { state: 'gone' }
  equal(r.status, 200, `detail of ${id}`)
  return r.json()
}
const listed = async () => {
  const all = [], pages = Sandbox.list()
  while (pages.hasNext) all.push(...await pages.nextItems())
  return all
}

await test('load: kill -9 of each daemon and of Redis under load of the SDK', async () => {
  const clients = [1, 2, 3, 4].map(client)
  await until(() => tally.create >= 5, 40_000, 'the load runs')
  for (const name of ['cube-api', 'cube-master', 'redis', 'cube-node', 'cube-proxy', 'cube-lifecycle', 'cube-relay', 'cube-jailer', 'redis without data', 'cube-node', 'cube-master']) {
    const [program, without] = name.split(' ')
    const old = pidOf(program)
    ok(old > 0, `${program} does not run`)
    if (without) {
      const aof = `${state}/redis/appendonlydir`
      ok(existsSync(aof), `Redis keeps its data elsewhere than in ${aof}`)
      rmSync(aof, { recursive: true }) // what it still writes goes into files without a name
    }
    process.kill(old, 'SIGKILL')
    count(`kill ${name}`)
    await until(() => pidOf(program) > 0 && pidOf(program) !== old, 60_000, `${name} being started again`)
    await pause(2000)
  }
  // Undisturbed, everything gets done in time, however little a busy machine did meanwhile.
  await until(() => tally.command > 5 && tally.pause > 1 && tally.kill > 1, 120_000, 'the load doing something').catch(() => {})
  stop = true
  await Promise.all(clients)
  console.log(`     ${JSON.stringify(tally)}`)
  equal(wrong, [], 'each sandbox has its own file')
  ok(tally.command > 5 && tally.pause > 1 && tally.kill > 1, 'the load did something')
})

await test('load: census of what clients were told, of the API\'s list and of the node', async () => {
  let problems
  await until(async () => {
    problems = []
    for (const [id, v] of told) {
      const d = await detail(id)
      if (!['running', 'paused', 'gone', 'killed', 'lost'].includes(d.state)) problems.push(`${id} is ${d.state}`)
      if (['gone', 'missing'].includes(v.state) && !['gone', 'killed'].includes(d.state)) problems.push(`${id} was ${v.state}, it is ${d.state}`)
      if (['running', 'paused'].includes(v.state) && !['running', 'paused', 'lost'].includes(d.state)) problems.push(`${id} was ${v.state}, it is ${d.state}`)
      if (d.state === 'lost' && !d.reason) problems.push(`${id} is lost without a reason`)
    }
    const all = await listed()
    const here = readdirSync(`${run}/sb`).sort(), running = all.filter((s) => s.state === 'running').map((s) => s.sandboxId).sort()
    if (here.join() !== running.join()) problems.push(`the API lists ${running} as running, the node has ${here}`)
    for (const s of all) if (!told.has(s.sandboxId) && s.templateId) count('created, answer lost')
    return problems.length === 0
  }, 60_000, 'agreement').catch((e) => { throw new Error(`${e.message}: ${(problems ?? []).slice(0, 5).join('; ')}`) })
  let lost = 0
  for (const [id, v] of told) {
    const d = await detail(id)
    lost += d.state === 'lost'
    if (d.state !== 'running' && d.state !== 'paused') continue
    const s = await Sandbox.connect(id, { timeoutMs: 600_000 })
    if (v.marked) equal(await s.files.read('mark'), id, `the file in ${id}`)
  }
  console.log(`     ${told.size} told, ${lost} lost`)
  for (const s of await listed()) await Sandbox.kill(s.sandboxId)
  await until(() => readdirSync(`${run}/sb`).length === 0, 30_000, 'the node holding nothing')
})
