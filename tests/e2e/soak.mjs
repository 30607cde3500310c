// Soak by the SDK: clients create, use, pause, wake, snapshot, clone and kill sandboxes in random order; every answer is checked and no operation may
// fail. It ends with a census equal to its start: what Redis holds, what the node keeps on disk, VM processes, TAPs, cgroups, descriptors.
// CUBE_SOAK_SECONDS: 8. For half an hour: `cube up`, `eval "$(cube env)"`, CUBE_STATE_DIR, CUBE_RUN_DIR and CUBE_PORT_BASE as for tests/areas/50-e2e.sh.
import { execFileSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { basename } from 'node:path'
import { Sandbox } from 'e2b'
import { equal, ok, test, until } from './check.mjs'

const run = process.env.CUBE_RUN_DIR, state = process.env.CUBE_STATE_DIR
const seconds = Number(process.env.CUBE_SOAK_SECONDS ?? 8)
const CLIENTS = 3, EACH = 3
const tally = {}
const long = { timeoutMs: 3600_000 }
let stop = false

const password = readFileSync(`${state}/keys/redis-master.pw`, 'utf8').trim()
const redis = (...args) => execFileSync('redis-cli', ['-s', `${run}/redis/redis.sock`, '--user', 'master', ...args],
  { encoding: 'utf8', env: { ...process.env, REDISCLI_AUTH: password } }).trim().split('\n').filter(Boolean)

class Hand {
  own = []

  async step() {
    if (this.own.length < EACH && (this.own.length === 0 || Math.random() < 0.3)) return this.create()
    const v = this.own[Math.floor(Math.random() * this.own.length)]
    if (v.paused) return Math.random() < 0.9 ? this.wake(v) : this.kill(v)
    const actions = [this.count, this.count, this.count, this.pause, this.pause, this.clone, this.kill]
    return actions[Math.floor(Math.random() * actions.length)].call(this, v)
  }

  async values(s) {
    const { stdout } = await s.commands.run('cat n 2>/dev/null || echo 0; cat /dev/shm/n 2>/dev/null || echo 0; hostname')
    return stdout.trim().split('\n').join(' ')
  }

  async check(v, s = v.sandbox) { equal(await this.values(s), `${v.count} ${v.count} ${s.sandboxId}`, `what ${s.sandboxId} holds`) }

  async create() {
    this.own.push({ sandbox: await Sandbox.create('base', long), count: 0, paused: false })
    return 'create'
  }

  async count(v) {
    await this.check(v)
    v.count++
    await v.sandbox.commands.run(`echo ${v.count} > n; echo ${v.count} > /dev/shm/n`)
    return 'count'
  }

  async pause(v) {
    ok(await v.sandbox.pause(), 'pause')
    v.paused = true
    return 'pause'
  }

  async wake(v) {
    v.sandbox = await Sandbox.connect(v.sandbox.sandboxId, long)
    v.paused = false
    await this.check(v)
    return 'wake'
  }

  async clone(v) {
    const snapshot = await v.sandbox.createSnapshot()
    const clone = await Sandbox.create(snapshot.snapshotId, long)
    await this.check(v, clone)
    await this.check(v)
    ok(await clone.kill(), 'kill of a clone')
    ok(await Sandbox.deleteSnapshot(snapshot.snapshotId), 'delete of a snapshot')
    return 'clone'
  }

  async kill(v) {
    this.own.splice(this.own.indexOf(v), 1)
    ok(await v.sandbox.kill(), 'kill')
    return 'kill'
  }

  async work() {
    while (!stop) {
      const what = await this.step()
      tally[what] = (tally[what] ?? 0) + 1
    }
    while (this.own.length) await this.kill(this.own[0])
  }
}

const entries = (dir) => existsSync(dir) ? readdirSync(dir).length : 0
const groups = () => execFileSync('find', ['/sys/fs/cgroup', '-maxdepth', '6', '-path', `*/cube-${process.env.CUBE_PORT_BASE}/*`, '-type', 'd'], { encoding: 'utf8' })
  .split('\n').filter(Boolean).length

// Kinds of keys and how many. What is remembered of ended sandboxes (an hour or longer) and what comes and goes by the clock is none of it.
function keys() {
  const found = {}
  for (const key of redis('--scan', '--pattern', '{c0}:*')) {
    const kind = key.split(':')[1]
    if (['tl', 'rl', 'svc', 'ev', 'idem', 'claim', 'tm', 'heard', 'nodever', 'act'].includes(kind)) continue
    if (kind === 'sb' && redis('hget', key, 'state')[0] === 'killed') continue
    const type = redis('type', key)[0]
    if (type === 'zset' || type === 'set') found[key] = Number(redis(type === 'zset' ? 'zcard' : 'scard', key)[0])
    else found[kind] = (found[kind] ?? 0) + 1
  }
  return found
}

const count = () => ({
  redis: keys(),
  records: readdirSync(`${state}/sandboxes`).length,
  snapshots: entries(`${state}/store/snap`), drafts: entries(`${state}/store/tmp`), layers: entries(`${state}/store/vm`),
  published: entries(`${run}/sb`), warm: entries(`${run}/warm`), vms: entries(`${run}/jailer/vm`), taps: entries(`${run}/jailer/tap`),
  interfaces: readdirSync(`${run}/jailer/tap`).filter((n) => existsSync(`/sys/class/net/${n}`)).length, groups: groups(),
  mounts: readFileSync('/proc/self/mountinfo', 'utf8').split('\n').filter((l) => l.includes(run) || l.includes(state)).length,
  files: Object.fromEntries(readdirSync(`${run}/pid`).map((p) => [basename(p), Number(readFileSync(`${run}/pid/${p}`, 'utf8'))])
    .filter(([p]) => ['cube-node', 'cube-jailer'].includes(p)).map(([p, pid]) => [p, entries(`/proc/${pid}/fd`)])),
})

// Until nothing moves any more.
async function settled(what) {
  let last = ''
  return until(async () => {
    const now = count(), text = JSON.stringify(now)
    if (text === last && now.published === 0) return now
    last = text
    await new Promise((resolve) => setTimeout(resolve, 500))
  }, 60_000, `${what}: nothing moves any more`)
}

await test(`soak: ${seconds} s of everything in random order leave nothing`, async () => {
  const first = new Hand()
  await first.create()
  for (const action of ['count', 'pause', 'wake', 'clone', 'kill']) await first[action](first.own[0])
  const before = await settled('before')
  const hands = Array.from({ length: CLIENTS }, () => new Hand().work().catch((e) => { stop = true; throw e }))
  const timer = setTimeout(() => { stop = true }, seconds * 1000)
  const results = await Promise.allSettled(hands)
  clearTimeout(timer)
  console.log(`     ${JSON.stringify(tally)}`)
  const wrong = results.filter((r) => r.status === 'rejected').map((r) => r.reason.message)
  equal(wrong, [], 'no operation failed')
  let after
  await until(async () => {
    after = await settled('after')
    return JSON.stringify({ ...after, records: 0 }) === JSON.stringify({ ...before, records: 0 })
  }, 60_000, 'the census').catch(() => {})
  console.log(`     census: ${JSON.stringify(after)}`)
  equal({ ...after, records: 0 }, { ...before, records: 0 }, 'the census') // an ended one is remembered for a while
})
