// The unmodified clients against cube-api with simulated nodes: npm e2b 2.51.0 and 2.49.0, PyPI e2b 2.63.0, @e2b/cli 2.19.0. Only the control plane:
// what runs in a sandbox is tested end to end (tests/e2e).
import { spawn } from 'node:child_process'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import { join } from 'node:path'
import { equal, ok, rejects, test } from '../e2e/check.mjs'
import { Control } from '../lib/control.mjs'

const modules = process.env.CUBE_NODE_MODULES
const python = process.env.CUBE_PYTHON_ENV
const require = createRequire(join(modules, 'x.js'))
const load = (name) => import(pathToFileURL(require.resolve(name)).href).then((m) => (m.Sandbox ? m : m.default))

const c = await Control.start({ lifecycle: true })
const opts = { apiKey: c.apiKey, apiUrl: c.url, sandboxUrl: 'http://127.0.0.1:9' }

for (const [name, version] of [['e2b', '2.51.0'], ['e2b-2-49', '2.49.0']]) {
  const { Sandbox, NotFoundError, RateLimitError } = await load(name)
  const say = (what) => `sdk js ${version}: ${what}`

  await test(say('create, info, list, kill'), async () => {
    const s = await Sandbox.create({ ...opts, metadata: { v: version, 'a b': 'c&d' }, envs: { A: 'b' }, timeoutMs: 120_000 })
    ok(/^i[a-z0-9]{20}$/.test(s.sandboxId), s.sandboxId)
    const info = await s.getInfo()
    equal([info.sandboxId, info.state, info.metadata.v, info.name], [s.sandboxId, 'running', version, 'base'], 'info')
    equal(Math.round((info.endAt - info.startedAt) / 1000), 120, 'timeout')
    const found = await Sandbox.list({ ...opts, query: { metadata: { 'a b': 'c&d', v: version } } }).nextItems()
    equal(found.map((x) => x.sandboxId), [s.sandboxId], 'found by metadata')
    equal(await s.kill(), true, 'kill')
    equal(await Sandbox.kill(s.sandboxId, opts), false, 'second kill')
    await rejects(Sandbox.getInfo(s.sandboxId, opts), null, 'info after kill')
    await rejects(Sandbox.connect(s.sandboxId, opts), null, 'connect after kill')
  })

  await test(say('pages'), async () => {
    const made = []
    for (let i = 0; i < 3; i++) made.push(await Sandbox.create({ ...opts, metadata: { page: version } }))
    const pages = Sandbox.list({ ...opts, limit: 1, query: { metadata: { page: version } } })
    const ids = []
    while (pages.hasNext) ids.push(...(await pages.nextItems()).map((x) => x.sandboxId))
    equal(ids.sort(), made.map((s) => s.sandboxId).sort(), 'all, once')
    await Promise.all(made.map((s) => s.kill()))
  })

  await test(say('timeouts, pause and connect'), async () => {
    const s = await Sandbox.create({ ...opts, timeoutMs: 300_000 })
    const before = (await s.getInfo()).endAt.getTime()
    await Sandbox.connect(s.sandboxId, { ...opts, timeoutMs: 10_000 })
    equal((await s.getInfo()).endAt.getTime(), before, 'connect does not shorten, to the millisecond')
    await Sandbox.connect(s.sandboxId, { ...opts, timeoutMs: 600_000 })
    ok((await s.getInfo()).endAt.getTime() > before, 'connect extends')
    await s.setTimeout(30_000)
    ok((await s.getInfo()).endAt.getTime() < before, 'setTimeout shortens')
    const pause = (s.pause ?? s.betaPause).bind(s)
    equal(await pause(), true, 'pause')
    equal((await s.getInfo()).state, 'paused', 'state')
    equal(await pause(), false, 'second pause')
    const again = await Sandbox.connect(s.sandboxId, opts)
    equal((await again.getInfo()).state, 'running', 'connect resumes')
    await again.kill()
  })

  await test(say('snapshots, forks and network rules'), async () => {
    const s = await Sandbox.create(opts)
    const snapshot = await s.createSnapshot()
    ok(snapshot.snapshotId, 'snapshot')
    const from = await Sandbox.create(snapshot.snapshotId, opts)
    await from.kill()
    if (Sandbox.deleteSnapshot) equal(await Sandbox.deleteSnapshot(snapshot.snapshotId, opts), true, 'delete the snapshot')
    if (s.updateNetwork) await s.updateNetwork({ denyOut: ['8.8.8.8'] })
    await s.kill()
  })

  await test(say('a timeout ends the sandbox'), async () => {
    const s = await Sandbox.create({ ...opts, timeoutMs: 1000 })
    const end = Date.now() + 30000
    while (Date.now() < end && (await Sandbox.getInfo(s.sandboxId, opts).then(() => true, () => false))) await new Promise((r) => setTimeout(r, 100))
    await rejects(Sandbox.getInfo(s.sandboxId, opts), null, 'gone')
  })

  await test(say('errors have the right classes'), async () => {
    await rejects(Sandbox.create({ ...opts, apiKey: 'e2b_' + '0'.repeat(40) }), 'AuthenticationError', 'wrong key')
    await rejects(Sandbox.create('nosuch', opts), null, 'unknown template')
    await c.admin('POST', '/cube/v1/teams', { teamID: 'tiny', name: 'Tiny', maxSandboxes: 1 })
    const tiny = { ...opts, apiKey: await c.key('tiny') }
    const one = await Sandbox.create(tiny)
    await rejects(Sandbox.create(tiny), 'RateLimitError', 'quota')
    await one.kill()
    ok(NotFoundError && RateLimitError, 'exported')
  })
}

function run(program, args, env = {}) {
  return new Promise((resolve) => {
    const child = spawn(program, args, { env: { ...process.env, E2B_API_KEY: c.apiKey, E2B_API_URL: c.url, E2B_SANDBOX_URL: 'http://127.0.0.1:9', NO_COLOR: '1', HOME: c.dir, ...env } })
    let out = '', err = ''
    child.stdout.on('data', (d) => { out += d })
    child.stderr.on('data', (d) => { err += d })
    child.on('close', (code) => resolve({ code, out, err }))
  })
}

const cli = (...args) => run(process.execPath, [join(modules, 'node_modules/@e2b/cli/dist/index.js'), ...args])

await test('cli 2.19.0: create, list, info, logs, metrics, pause, resume, kill', async () => {
  const made = await cli('sandbox', 'create', 'base', '--detach')
  const id = /i[a-z0-9]{20}/.exec(made.out + made.err)?.[0]
  ok(id, `created: ${made.out}${made.err}`)
  const list = await cli('sandbox', 'list')
  ok(list.code === 0 && list.out.includes(id), `list: ${list.out}${list.err}`)
  const info = await cli('sandbox', 'info', id)
  ok(info.code === 0 && info.out.includes(id), `info: ${info.out}${info.err}`)
  const logs = await cli('sandbox', 'logs', id)
  ok(logs.code === 0, `logs: ${logs.out}${logs.err}`)
  const metrics = await cli('sandbox', 'metrics', id)
  ok(metrics.code === 0, `metrics: ${metrics.out}${metrics.err}`)
  const pause = await cli('sandbox', 'pause', id)
  ok(pause.code === 0, `pause: ${pause.out}${pause.err}`)
  const resume = await cli('sandbox', 'resume', id)
  ok(resume.code === 0, `resume: ${resume.out}${resume.err}`)
  const templates = await cli('template', 'list')
  ok(templates.code === 0, `templates: ${templates.out}${templates.err}`)
  const kill = await cli('sandbox', 'kill', id)
  ok(kill.code === 0, `kill: ${kill.out}${kill.err}`)
  equal((await (await fetch(`${c.url}/v2/sandboxes`, { headers: { 'X-API-Key': c.apiKey } })).json()).length, 0, 'none is left')
})

await test('sdk python 2.63.0: create, info, list, timeouts, pause, connect, errors', async () => {
  const r = await run(python, [new URL('sdk.py', import.meta.url).pathname])
  ok(r.code === 0 && r.out.trim().endsWith('done'), `${r.out}${r.err}`)
})

const left = await c.stop()
await test('api: the SDK tests leave no sanitizer report', async () => equal(left, [], 'left'))
