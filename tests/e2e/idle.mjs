// Mode idle with real guests: each kind of activity keeps its sandbox awake and is named (egress: tests/net/real.mjs, whose world takes packets),
// a quiet one is paused at its time.
import { Sandbox } from 'e2b'
import { equal, ok, test, until } from './check.mjs'

const api = process.env.E2B_API_URL, ingress = process.env.E2B_SANDBOX_URL
const IDLE = 8
const ours = (path, init = {}) => fetch(`${api}/cube/v1/sandboxes/${path}`, { ...init, headers: { 'X-API-Key': process.env.E2B_API_KEY, 'Content-Type': 'application/json' } })
const detail = async (s) => {
  const r = await ours(s.sandboxId)
  equal(r.status, 200, 'detail')
  return r.json()
}
// Started behind the session that starts it, so that nothing but itself can be what keeps the sandbox awake.
const behind = (s, script) => s.commands.run(`setsid sh -c '${script}' >/dev/null 2>&1 </dev/null &`)

await test('idle: a computation, a command, a terminal, a stream and a lease keep awake, each by its name; silence pauses', async () => {
  const reasons = { cpu: 'cpu', command: 'exec', terminal: 'exec', stream: 'stream', lease: 'lease' }, names = Object.keys(reasons)
  const all = Object.fromEntries(await Promise.all([...names, 'quiet'].map(async (n) =>
    [n, await Sandbox.create('base', { timeoutMs: 20_000, metadata: { 'cube.idle': String(IDLE) } })])))
  const abort = new AbortController()
  let open // referred to until the end: fetch ends the connection of an answer that the collector finds
  try {
    equal((await detail(all.quiet)).mode, 'idle', 'mode')
    const headers = { 'E2b-Sandbox-Id': all.stream.sandboxId, 'E2b-Sandbox-Port': '8000' }
    // At once: one after the other, the last would have been quiet for too long on a slow machine before its turn came.
    await Promise.all([
      behind(all.cpu, 'while :; do i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done; sleep 0.1; done'),
      all.command.commands.run('sleep 600', { background: true, timeoutMs: 0 }).then((h) => h.disconnect()),
      all.terminal.pty.create({ cols: 80, rows: 24, onData: () => {}, timeoutMs: 0 }).then((h) => h.disconnect()),
      ours(`${all.lease.sandboxId}/lease`, { method: 'POST', body: '{"seconds":600}' }).then((r) => equal(r.status, 204, 'lease')),
      (async () => {
        await all.stream.files.write('serve.py', `import socket, time
s = socket.socket(); s.setsockopt(1, 2, 1); s.bind(("127.0.0.1", 8000)); s.listen()
while True:
    c = s.accept()[0]; c.recv(4096); c.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 9\\r\\n\\r\\nx"); time.sleep(600)
`)
        await behind(all.stream, 'exec python3 serve.py')
        open = await until(async () => { const r = await fetch(`${ingress}/`, { headers, signal: abort.signal }); return r.status === 200 && r }, 20_000, 'the stream')
      })(),
    ])
    const last = Date.now() // the last request into any of them
    for (const n of names) {
      let d
      await until(async () => (d = await detail(all[n])).awake.reason === reasons[n], 30_000, `${n} being named`).catch((e) => { throw new Error(`${e.message}; it is ${d.state}, ${JSON.stringify(d.awake)}`) })
      ok(d.awake.since && new Date(d.awake.since) <= new Date(Date.now() + 1000), `${n} says since when: ${d.awake.since}`)
    }
    await until(async () => (await detail(all.quiet)).state === 'paused', 60_000, 'the quiet one being paused')
    while (Date.now() < last + 1000 * (IDLE + 2)) {
      await new Promise((r) => setTimeout(r, 500))
      for (const n of names) {
        const d = await detail(all[n])
        equal(d.state, 'running', `${n} (${JSON.stringify(d.awake)}, to be paused at ${d.pausesAt})`)
        ok(d.pausesAt && new Date(d.pausesAt) > new Date(d.startedAt), `${n} says when it pauses: ${d.pausesAt}`)
      }
    }
    ok(open.body, 'a body that does not end')
    abort.abort()
    await Promise.all(['command', 'terminal'].map(async (n) => { for (const p of await all[n].commands.list()) await all[n].commands.kill(p.pid) }))
    for (const n of ['stream', 'command', 'terminal']) await until(async () => (await detail(all[n])).state === 'paused', 60_000, `${n} being over, its sandbox paused`)
  } finally {
    abort.abort()
    await Promise.all(Object.values(all).map((s) => s.kill()))
  }
})
