// The unmodified E2B SDK against a running cluster (proof a and b of the first issue). Environment: what `cube env` prints.
import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import os from 'node:os'
import { Sandbox, CommandExitError } from 'e2b'
import { equal, ok, rejects, test, until } from './check.mjs'

const ingress = process.env.E2B_SANDBOX_URL
const api = process.env.E2B_API_URL

function viaIngress(id, port, path) {
  return fetch(`${ingress}${path}`, { headers: { 'E2b-Sandbox-Id': id, 'E2b-Sandbox-Port': String(port) } })
}

const sandbox = await Sandbox.create('base', { metadata: { suite: 'e2e' }, envs: { GREETING: 'hello' } })

await test('sdk: create answers a running sandbox', async () => {
  ok(/^i[a-z0-9]{20}$/.test(sandbox.sandboxId), `sandboxID ${sandbox.sandboxId}`)
  equal(await sandbox.isRunning(), true, 'isRunning')
  const info = await sandbox.getInfo()
  equal(info.state, 'running', 'state')
  equal(info.metadata, { suite: 'e2e' }, 'metadata')
})

await test('sdk: run gives stdout, stderr and the exit code', async () => {
  const r = await sandbox.commands.run('echo out; echo err >&2; echo "$GREETING"')
  equal(r.stdout, 'out\nhello\n', 'stdout')
  equal(r.stderr, 'err\n', 'stderr')
  equal(r.exitCode, 0, 'exit code')
})

await test('sdk: a failing command rejects with its exit code', async () => {
  const error = await rejects(sandbox.commands.run('echo before; exit 7'), 'CommandExitError', 'exit 7')
  ok(error instanceof CommandExitError, 'class')
  equal(error.exitCode, 7, 'exit code')
  equal(error.stdout, 'before\n', 'stdout of the failed command')
})

await test('sdk: output streams while the command runs', async () => {
  // Each line is printed when we have seen the one before it: were output held back to the end, there would be no end.
  const seen = []
  const r = await sandbox.commands.run('for i in 1 2 3; do echo $i; until [ -e /tmp/seen-$i ]; do sleep 0.02; done; done', {
    onStdout: (text) => { seen.push(text); sandbox.files.write(`/tmp/seen-${seen.join('').trim().split('\n').at(-1)}`, '') },
  })
  equal(r.stdout, '1\n2\n3\n', 'stdout')
  equal(seen, ['1\n', '2\n', '3\n'], 'pieces')
})

await test('sdk: background process, list and kill', async () => {
  const handle = await sandbox.commands.run('sleep 300', { background: true, timeoutMs: 0 })
  ok(handle.pid > 0, 'pid')
  ok((await sandbox.commands.list()).some((p) => p.pid === handle.pid), 'listed')
  equal(await sandbox.commands.kill(handle.pid), true, 'kill')
  const error = await rejects(handle.wait(), 'CommandExitError', 'wait after kill')
  equal(error.error, 'signal: killed', 'error')
  ok(!(await sandbox.commands.list()).some((p) => p.pid === handle.pid), 'no longer listed')
  equal(await sandbox.commands.kill(handle.pid), false, 'second kill')
})

await test('sdk: runs as user, in its home, with passwordless sudo', async () => {
  const r = await sandbox.commands.run('id -un; pwd; id -u; sudo id -un')
  equal(r.stdout, 'user\n/home/user\n1000\nroot\n', 'stdout')
})

await test('sdk: a text file round-trips', async () => {
  const text = 'grüße\nline two\n'
  const info = await sandbox.files.write('/home/user/note.txt', text)
  equal(info.path, '/home/user/note.txt', 'path')
  equal(await sandbox.files.read('/home/user/note.txt'), text, 'content')
  equal((await sandbox.commands.run('stat -c "%U %a" note.txt')).stdout, 'user 644\n', 'owner and mode')
})

await test('sdk: a 5 MB binary file round-trips byte-exact', async () => {
  const data = randomBytes(5_000_000)
  await sandbox.files.write('big.bin', data.buffer.slice(data.byteOffset, data.byteOffset + data.length))
  const back = Buffer.from(await sandbox.files.read('big.bin', { format: 'bytes' }))
  equal(back.length, data.length, 'length')
  ok(back.equals(data), 'bytes differ')
})

await test('sdk: reading a missing file is FileNotFoundError', async () => {
  const error = await rejects(sandbox.files.read('/nope'), null, 'read')
  ok(/NotFound/.test(error.constructor.name), error.constructor.name)
})

await test('sdk: list shows the sandbox, filtered by metadata', async () => {
  const page = await Sandbox.list({ query: { metadata: { suite: 'e2e' } } }).nextItems()
  ok(page.some((s) => s.sandboxId === sandbox.sandboxId), 'in the filtered list')
  const other = await Sandbox.list({ query: { metadata: { suite: 'other' } } }).nextItems()
  ok(!other.some((s) => s.sandboxId === sandbox.sandboxId), 'not in another filter')
})

await test('sdk: a server on the loopback of the guest answers through the ingress', async () => {
  const handle = await sandbox.commands.run('python3 -m http.server 8123 --bind 127.0.0.1', { background: true, timeoutMs: 0 })
  const answer = await until(async () => {
    const r = await viaIngress(sandbox.sandboxId, 8123, '/note.txt')
    return r.status === 200 ? r : (await r.arrayBuffer(), null)
  }, 30_000, 'http.server on 8123')
  ok((await answer.text()).startsWith('grüße'), 'body')
  const closed = await viaIngress(sandbox.sandboxId, 8124, '/')
  equal(closed.status, 502, 'status of a closed port')
  const body = await closed.json()
  equal(body, { sandboxId: sandbox.sandboxId, message: 'The sandbox is running but port is not open', port: 8124, code: 502 }, 'body')
  await handle.kill()
})

await test('vm: kernel release and boot id differ from the host and between sandboxes', async () => {
  const second = await Sandbox.create('base')
  try {
    const ask = async (s) => (await s.commands.run('uname -r; cat /proc/sys/kernel/random/boot_id')).stdout.trim().split('\n')
    const [release, boot] = await ask(sandbox)
    const [, boot2] = await ask(second)
    ok(release !== os.release(), `guest release ${release} equals the host's`)
    const host = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()
    ok(boot !== host && boot2 !== host && boot !== boot2, `boot ids ${boot} ${boot2} ${host}`)
  } finally {
    equal(await second.kill(), true, 'kill of the second')
  }
})

await test('sdk: the timeout ends a sandbox', async () => {
  const start = Date.now()
  const brief = await Sandbox.create('base', { timeoutMs: 3000 })
  await until(async () => !(await brief.isRunning()), 30_000, 'end by timeout')
  ok(Date.now() - start > 2900, `ended after ${Date.now() - start} ms`)
  await until(async () => {
    const r = await fetch(`${api}/sandboxes/${brief.sandboxId}`, { headers: { 'X-API-KEY': process.env.E2B_API_KEY } })
    return r.status === 404
  }, 20_000, '404 after the timeout')
})

await test('sdk: after kill the ingress answers 502 and the API 404', async () => {
  equal(await sandbox.kill(), true, 'kill')
  equal(await sandbox.isRunning(), false, 'isRunning')
  const r = await viaIngress(sandbox.sandboxId, 49983, '/health')
  equal(r.status, 502, 'ingress status')
  equal(await r.json(), { sandboxId: sandbox.sandboxId, message: 'The sandbox was not found', code: 502 }, 'ingress body')
  const g = await fetch(`${api}/sandboxes/${sandbox.sandboxId}`, { headers: { 'X-API-KEY': process.env.E2B_API_KEY } })
  equal(g.status, 404, 'API status')
  equal((await g.json()).code, 404, 'API body code')
  equal(await Sandbox.kill(sandbox.sandboxId), false, 'second kill')
})
