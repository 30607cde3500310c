// What happened in a sandbox, as the logs endpoints tell it (contracts/e2b.md §1.4): while it runs, and after its end.
// Environment: what `cube env` prints; TEMPLATE; CUBE, the command line program.
import { spawn } from 'node:child_process'
import { Sandbox } from 'e2b'
import { equal, ok, run, test } from './check.mjs'

const sbx = await Sandbox.create(process.env.TEMPLATE, { timeoutMs: 600000 })
const api = async (path) => {
  const r = await fetch(process.env.E2B_API_URL + path, { headers: { 'X-API-Key': process.env.E2B_API_KEY } })
  if (r.status !== 200) throw new Error(`${path}: ${r.status} ${await r.text()}`)
  return r.json()
}
const v2 = async () => (await api(`/v2/sandboxes/${sbx.sandboxId}/logs?direction=forward&limit=1000`)).logs
const later = (ms) => new Promise((r) => setTimeout(r, ms))
let pid

async function until(find, what) {
  const end = Date.now() + 30000
  for (;;) {
    const found = (await v2()).find(find)
    if (found) return found
    if (Date.now() > end) throw new Error(`not in the log: ${what}: ${JSON.stringify((await v2()).slice(-10))}`)
    await later(50)
  }
}

async function all() {
  const start = await until((l) => l.message === 'process started' && l.fields.cmd?.includes('echo marker-1'), 'start of the process')
  pid = start.fields.pid
  equal(start.fields.user, 'user')
  await until((l) => l.message === 'process ended' && l.fields.pid === pid && l.fields.exit_code === '3', 'its end')
  await until((l) => l.message === 'file_write' && l.fields.path === '/home/user/log-a' && l.fields.size === '11' && l.fields.user === 'user', 'write')
  await until((l) => l.message === 'file_read' && l.fields.path === '/home/user/log-a', 'read')
  await until((l) => l.message === 'file_move' && l.fields.path === '/home/user/log-a' && l.fields.destination === '/home/user/log-b', 'move')
  await until((l) => l.message === 'file_remove' && l.fields.path === '/home/user/log-b', 'removal')
  for (const l of await v2()) {
    ok(!Number.isNaN(Date.parse(l.timestamp)) && l.level, JSON.stringify(l))
    ok(!JSON.stringify(l).includes('secret text'), 'the log holds content')
  }
  const v1 = await api(`/sandboxes/${sbx.sandboxId}/logs?start=0&limit=1000`)
  const lines = v1.logs.map((l) => JSON.parse(l.line))
  ok(lines.some((l) => JSON.stringify(l).includes('marker-1')) && lines.every((l) => l.level), 'v1 lines')
}

let followed = ''
const follow = spawn(process.env.CUBE, ['sandbox', 'logs', '-f', sbx.sandboxId], { stdio: ['ignore', 'pipe', 'inherit'] })
follow.stdout.on('data', (d) => { followed += d })
const ended = new Promise((r) => follow.on('close', r))

test('processes and files are in the log of a running sandbox', async () => {
  await sbx.commands.run('echo marker-1; exit 3').catch(() => {})
  await sbx.files.write('/home/user/log-a', 'secret text')
  await sbx.files.read('/home/user/log-a')
  await sbx.files.rename('/home/user/log-a', '/home/user/log-b')
  await sbx.files.remove('/home/user/log-b')
  await all()
})

test('cube sandbox logs -f shows them as they come', async () => {
  await sbx.commands.run('echo marker-2')
  const end = Date.now() + 30000
  while (!followed.includes('marker-1') || !followed.includes('marker-2')) {
    ok(Date.now() < end, `followed: ${followed.slice(-400)}`)
    await later(50)
  }
})

test('and they stay when the sandbox has ended', async () => {
  await sbx.kill()
  await all()
  follow.kill('SIGINT')
  await ended
})

await run(process.env.SUITE ?? 'guest logs')
