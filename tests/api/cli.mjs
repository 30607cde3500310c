// The `cube` commands that speak to the API: what they print and their exit statuses.
import { spawn } from 'node:child_process'
import { join } from 'node:path'
import { equal, ok, test } from '../e2e/check.mjs'
import { Control } from '../lib/control.mjs'

const c = await Control.start()
const program = join(process.env.CUBE_BUILD_DIR ?? new URL('../../build', import.meta.url).pathname, 'cli/cube')

function cube(args, env = {}) {
  return new Promise((resolve) => {
    const child = spawn(program, args, { env: { ...process.env, E2B_API_KEY: c.apiKey, E2B_API_URL: c.url, E2B_SANDBOX_URL: 'http://127.0.0.1:9', CUBE_STATE_DIR: c.dir, ...env } })
    let out = '', err = ''
    child.stdout.on('data', (d) => { out += d })
    child.stderr.on('data', (d) => { err += d })
    child.on('close', (code) => resolve({ code, out, err }))
  })
}
const done = async (...args) => {
  const r = await cube(args)
  if (r.code !== 0) throw new Error(`cube ${args.join(' ')}: ${r.code} ${r.out}${r.err}`)
  return r.out
}

let id
await test('cli: sandbox create, ls, info, logs, why', async () => {
  id = (await done('sandbox', 'create', '--metadata', 'a=b', '--env', 'X=1', '--timeout', '100')).trim()
  ok(/^i[a-z0-9]{20}$/.test(id), id)
  const list = await done('sandbox', 'ls')
  ok(list.split('\n')[1].startsWith(id) && list.includes('a=b'), list)
  equal(JSON.parse(await done('sandbox', 'ls', '--json')).length, 1, 'ls --json')
  const info = JSON.parse(await done('sandbox', 'info', id))
  equal([info.sandboxID, info.cube.state, 'envdAccessToken' in info], [id, 'running', false], 'info shows no token')
  ok((await done('sandbox', 'logs', id)).includes('sandbox started'), 'logs')
  const why = await done('why', id)
  ok(/node sim-1 chosen/.test(why) && /^Now: running on node sim-1/m.test(why), why)
  ok(Array.isArray(JSON.parse(await done('why', id, '--json'))), 'why --json')
})

await test('cli: sandbox pause, resume, rm', async () => {
  await done('sandbox', 'pause', id)
  ok((await done('sandbox', 'ls', '--state', 'paused')).includes(id), 'paused')
  await done('sandbox', 'resume', id)
  await done('sandbox', 'rm', id)
  const again = await cube(['sandbox', 'rm', id])
  equal([again.code, again.err.includes('404')], [1, true], 'rm again')
  const [a, b] = [(await done('sandbox', 'create')).trim(), (await done('sandbox', 'create')).trim()]
  const gone = await done('sandbox', 'rm', '--all')
  ok(gone.includes(a) && gone.includes(b), gone)
  ok((await done('why', a)).includes('killed'), 'the story stays after the end')
})

await test('cli: keys', async () => {
  const key = (await done('key', 'create', 'ci')).trim()
  ok(/^e2b_[0-9a-f]{40}$/.test(key), key)
  const row = (await done('key', 'ls')).split('\n').find((l) => l.includes(' ci '))
  ok(row.includes(key.slice(-4)) && !row.includes(key), row)
  equal((await cube(['sandbox', 'ls'], { E2B_API_KEY: key })).code, 0, 'the key works')
  await done('key', 'rm', row.split(' ')[0])
  // a person without the operator's token manages the own team's keys
  const own = await cube(['key', 'create', 'own'], { CUBE_STATE_DIR: '/nonexistent' })
  ok(own.code === 0 && /^e2b_/.test(own.out), own.err)
})

await test('cli: nodes', async () => {
  ok((await done('node', 'ls')).includes('sim-1'), 'ls')
  await done('node', 'cordon', 'sim-1')
  const r = await cube(['sandbox', 'create'])
  equal([r.code, r.err.includes('503'), r.err.includes('cube node ls')], [1, true, true], `cordoned: ${r.err}`)
  await done('node', 'uncordon', 'sim-1')
  equal((await cube(['node', 'drain', 'nosuch'])).code, 1, 'no such node')
  const alive = await cube(['node', 'rm', 'sim-1', '--force'])
  equal([alive.code, alive.err.includes('409')], [1, true], `a node that reports is not removed: ${alive.err}`)
  equal((await cube(['node', 'rm', 'nosuch'])).code, 1, 'no such node to remove')
  const denied = await cube(['node', 'ls'], { CUBE_STATE_DIR: '/nonexistent' })
  equal([denied.code, denied.err.includes("operator's token")], [1, true], 'without the token')
})

await test('cli: wrong usage is status 2 with the page', async () => {
  for (const args of [['sandbox'], ['sandbox', 'frob'], ['sandbox', 'exec', 'x'], ['sandbox', 'rm'], ['sandbox', 'create', '--env', 'novalue'], ['key'],
    ['key', 'rm'], ['key', 'ls', '--team'], ['node', 'cordon'], ['node', 'rm'], ['node', 'ls', '--force'], ['node', 'drain', 'a', '--force'], ['why'], ['why', 'a/b']]) {
    const r = await cube(args)
    equal([r.code, r.err.includes('SYNOPSIS')], [2, true], args.join(' '))
  }
  for (const args of [['sandbox', '--help'], ['key', '--help'], ['node', '--help'], ['why', '--help'], ['help', 'sandbox']]) {
    const r = await cube(args)
    equal([r.code, r.out.includes('SYNOPSIS')], [0, true], args.join(' '))
  }
})

await test('cli: an API that is away is said so', async () => {
  const r = await cube(['sandbox', 'ls'], { E2B_API_URL: 'http://127.0.0.1:9' })
  equal([r.code, r.err.includes('cube status')], [1, true], r.err)
})

const left = await c.stop()
await test('api: the command tests leave no sanitizer report', async () => equal(left, [], 'left'))
