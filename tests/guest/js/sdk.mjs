// What users of the JavaScript SDK do, against an envd on http://localhost:49983 (E2B_DEBUG) or behind E2B_SANDBOX_URL.
// SDK names the module (e2b, e2b-2-49), SUITE the name in the output, GUEST_USER the user that files belong to.
import { createHash, randomBytes } from 'node:crypto'
import { equal, ok, run, test, throws } from './check.mjs'

const sdk = await import(process.env.SDK ?? 'e2b')
const { Sandbox, FileType, FilesystemEventType } = sdk
// TEMPLATE: a sandbox of its own on a running cluster (`cube env`), reached through its proxy.
const sbx = process.env.TEMPLATE ? await Sandbox.create(process.env.TEMPLATE, { timeoutMs: 600000 }) : await Sandbox.create({ debug: true })
const user = process.env.GUEST_USER ?? 'root'
const dir = process.env.WORK_DIR ?? `/tmp/G-sdk-${process.pid}`
const sha = (b) => createHash('sha256').update(b).digest('hex')
const later = (ms) => new Promise((r) => setTimeout(r, ms))

async function until(cond, what, ms = 30000) {
  const end = Date.now() + ms
  while (!(await cond())) {
    if (Date.now() > end) throw new Error(`not within ${ms} ms: ${what}`)
    await later(10)
  }
}

test('is running', async () => equal(await sbx.isRunning(), true))

test('run: output, special characters, several lines', async () => {
  equal((await sbx.commands.run('echo "Hello, World!"')).stdout, 'Hello, World!\n')
  const text = '!@#$%^&*()_+{}|:"<>?`~[]\\;\',./ äöü 漢字 🚀'
  equal((await sbx.commands.run(`cat <<'EOF'\n${text}\nEOF`)).stdout, text + '\n')
  const r = await sbx.commands.run('printf "a\\nb\\n"; echo e >&2')
  equal([r.stdout, r.stderr, r.exitCode], ['a\nb\n', 'e\n', 0])
})

test('run: exit status and signals', async () => {
  const e = await throws(sbx.commands.run('exit 42'), 'CommandExitError')
  equal([e.exitCode, e.error], [42, 'exit status 42'])
  const k = await throws(sbx.commands.run('kill -9 $$'), 'CommandExitError')
  equal([k.exitCode, k.error], [-1, 'signal: killed'])
  const n = await throws(sbx.commands.run('/no/such/command'), 'CommandExitError')
  equal(n.exitCode, 127)
})

test('run: environment and directory', async () => {
  equal((await sbx.commands.run('echo $FOO-$E2B_SANDBOX', { envs: { FOO: 'bar' } })).stdout, 'bar-true\n')
  equal((await sbx.commands.run('echo "$FOO"')).stdout, '\n')
  equal((await sbx.commands.run('pwd', { cwd: '/tmp' })).stdout, '/tmp\n')
  const e = await throws(sbx.commands.run('pwd', { cwd: '/does/not/exist' }))
  ok(e.message.includes("cwd '/does/not/exist' does not exist"), e.message)
})

test('run: as another user', async () => {
  equal((await sbx.commands.run('id -un', { user: 'nobody', cwd: '/' })).stdout, 'nobody\n')
  await throws(sbx.commands.run('id', { user: 'no-such-user' }), 'AuthenticationError')
})

test('run: 8 MiB of output arrive whole', async () => {
  const r = await sbx.commands.run('head -c 8388608 /dev/zero | tr "\\0" x')
  equal(r.stdout.length, 8388608)
})

test('timeout: a TimeoutError, and the whole process group is gone', async () => {
  const file = `${dir}/timeout-pid`
  await sbx.files.makeDir(dir)
  await throws(sbx.commands.run(`sleep 300 & echo $! > ${file}; wait`, { timeoutMs: 700 }), 'TimeoutError')
  const pid = (await sbx.files.read(file)).trim()
  await until(async () => (await sbx.commands.run(`kill -0 ${pid} 2>/dev/null || echo gone`)).stdout === 'gone\n', 'child is gone')
})

test('background: list, connect, kill', async () => {
  const h = await sbx.commands.run('sleep 300', { background: true, timeoutMs: 0 })
  const p = (await sbx.commands.list()).find((x) => x.pid === h.pid)
  equal([p.cmd, p.args], ['/bin/bash', ['-l', '-c', 'sleep 300']])
  const other = await sbx.commands.connect(h.pid)
  equal(other.pid, h.pid)
  equal(await h.kill(), true)
  ok(!(await sbx.commands.list()).some((x) => x.pid === h.pid), 'still listed after kill')
  for (const x of [h, other]) equal((await throws(x.wait(), 'CommandExitError')).exitCode, -1)
  equal(await sbx.commands.kill(h.pid), false)
  await throws(sbx.commands.connect(999999), 'NotFoundError')
  ok((await sbx.commands.run(`kill -0 ${h.pid} 2>/dev/null || echo gone`)).stdout === 'gone\n', 'zombie left')
})

test('kill: a hundred times, never listed afterwards', async () => {
  for (let i = 0; i < 100; i++) {
    const h = await sbx.commands.run('sleep 300', { background: true, timeoutMs: 0 })
    await h.kill()
    ok(!(await sbx.commands.list()).some((x) => x.pid === h.pid), `listed in try ${i}`)
    await throws(h.wait(), 'CommandExitError')
  }
})

test('connect after the end: start and end', async () => {
  const h = await sbx.commands.run('exit 3', { background: true })
  await throws(h.wait(), 'CommandExitError')
  const again = await sbx.commands.connect(h.pid)
  equal((await throws(again.wait(), 'CommandExitError')).exitCode, 3)
})

test('background child with the pipes open delays the end by a second at most, and lives on', async () => {
  const t = Date.now()
  const r = await sbx.commands.run('sleep 30 & echo $!')
  const ms = Date.now() - t
  ok(ms < 15000, `took ${ms} ms, the child lives for 30 s`)
  equal((await sbx.commands.run(`kill -0 ${r.stdout.trim()} && echo alive; kill ${r.stdout.trim()}`)).stdout, 'alive\n')
})

test('stdin: text, bytes, empty, close', async () => {
  const h = await sbx.commands.run('cat; sleep 0.5', { background: true, stdin: true })
  await sbx.commands.sendStdin(h.pid, 'Hello, World!')
  await sbx.commands.sendStdin(h.pid, '')
  await sbx.commands.sendStdin(h.pid, '\n!@#$%^&*()\n')
  if (sbx.commands.closeStdin) {
    await sbx.commands.closeStdin(h.pid)
    await sbx.commands.closeStdin(h.pid)
    equal((await h.wait()).stdout, 'Hello, World!\n!@#$%^&*()\n')
  } else {
    await until(() => h.stdout === 'Hello, World!\n!@#$%^&*()\n', 'echo')
    await h.kill()
  }
  const off = await sbx.commands.run('cat', { background: true, stdin: false })
  equal((await off.wait()).exitCode, 0)
})

test('stdin: 1 MiB through a slow reader', async () => {
  const h = await sbx.commands.run('sleep 0.5; wc -c', { background: true, stdin: true })
  await sbx.commands.sendStdin(h.pid, 'x'.repeat(1 << 20))
  await sbx.commands.closeStdin(h.pid)
  equal((await h.wait()).stdout.trim(), String(1 << 20))
})

test('pty: size, resize, input, environment, reconnect, kill', async () => {
  let out = ''
  const onData = (d) => { out += new TextDecoder().decode(d) }
  const h = await sbx.pty.create({ cols: 80, rows: 24, onData, envs: { ABC: '123' }, timeoutMs: 0 })
  const type = (s) => sbx.pty.sendInput(h.pid, new TextEncoder().encode(s))
  await type('echo "<$ABC>"; stty size\n')
  await until(() => out.includes('<123>') && out.includes('24 80'), 'first output')
  await sbx.pty.resize(h.pid, { cols: 100, rows: 30 })
  await type('stty size\n')
  await until(() => out.includes('30 100'), 'resized')
  let second = ''
  if (sbx.pty.connect) {
    const c = await sbx.pty.connect(h.pid, { onData: (d) => { second += new TextDecoder().decode(d) } })
    await type('echo again\n')
    await until(() => second.includes('again'), 'second subscriber')
    ok(!second.includes('<123>'), 'old output was replayed')
    await c.disconnect()
  }
  await type('exit 5\n')
  equal((await throws(h.wait(), 'CommandExitError')).exitCode, 5)
  const k = await sbx.pty.create({ cols: 80, rows: 24, onData: () => {}, timeoutMs: 0 })
  equal(await sbx.pty.kill(k.pid), true)
  await throws(k.wait(), 'CommandExitError')
})

test('files: write and read in all formats', async () => {
  const path = `${dir}/deep/er/a.txt`
  const info = await sbx.files.write(path, 'content ü')
  equal([info.path, info.name, info.type], [path, 'a.txt', 'file'])
  equal(await sbx.files.read(path), 'content ü')
  equal(Buffer.from(await sbx.files.read(path, { format: 'bytes' })).toString(), 'content ü')
  equal(await (await sbx.files.read(path, { format: 'blob' })).text(), 'content ü')
  let text = ''
  for await (const c of await sbx.files.read(path, { format: 'stream' })) text += Buffer.from(c).toString()
  equal(text, 'content ü')
  await sbx.files.write(path, 'shorter')
  equal(await sbx.files.read(path), 'shorter')
  await sbx.files.write(`${dir}/empty`, '')
  equal(await sbx.files.read(`${dir}/empty`), '')
  equal((await sbx.files.read(`${dir}/empty`, { format: 'bytes' })).length, 0)
  await throws(sbx.files.read(`${dir}/missing`), /^e2b$/.test(process.env.SDK ?? 'e2b') ? 'FileNotFoundError' : undefined)
})

test('files: byte-exact at 0, 1, 64 KiB ± 1, 16 MiB', async () => {
  for (const n of [0, 1, 65535, 65536, 65537, 16 << 20]) {
    const data = randomBytes(n)
    await sbx.files.write(`${dir}/exact`, data.buffer.slice(data.byteOffset, data.byteOffset + n))
    const back = await sbx.files.read(`${dir}/exact`, { format: 'bytes' })
    equal([back.length, sha(back)], [n, sha(data)], `${n} bytes`)
  }
})

test('files: octet-stream and gzip uploads', async () => {
  for (const opts of [{ useOctetStream: true }, { gzip: true }, { gzip: true, useOctetStream: true }]) {
    await sbx.files.write(`${dir}/enc`, 'x'.repeat(100000), opts)
    equal((await sbx.files.read(`${dir}/enc`)).length, 100000, JSON.stringify(opts))
    equal((await sbx.files.read(`${dir}/enc`, { gzip: true })).length, 100000)
  }
})

test('files: several at once; the same path twice is refused', async () => {
  const many = await sbx.files.write([{ path: `${dir}/m1`, data: '1' }, { path: `${dir}/m2`, data: '2' }])
  equal(many.map((x) => x.path), [`${dir}/m1`, `${dir}/m2`])
  equal([await sbx.files.read(`${dir}/m1`), await sbx.files.read(`${dir}/m2`)], ['1', '2'])
})

test('files: mode of an overwritten file stays, owner is the user', async () => {
  await sbx.files.write(`${dir}/tool`, '#!/bin/sh\necho one\n')
  await sbx.commands.run(`chmod 755 ${dir}/tool`)
  await sbx.files.write(`${dir}/tool`, '#!/bin/sh\necho two\n')
  equal((await sbx.commands.run(`${dir}/tool`)).stdout, 'two\n')
  equal((await sbx.files.getInfo(`${dir}/tool`)).owner, user)
})

test('files: writing through a symlink writes its target', async () => {
  await sbx.commands.run(`cd ${dir} && echo old > target && ln -sf target link`)
  await sbx.files.write(`${dir}/link`, 'new')
  equal((await sbx.commands.run(`cat ${dir}/target; readlink ${dir}/link`)).stdout, 'newtarget\n')
})

test('files: list with depth, order, details', async () => {
  const d = `${dir}/tree`
  await sbx.commands.run(`mkdir -p ${d}/sub1/sub2 ${d}/b && touch ${d}/sub1/f1 ${d}/sub1/sub2/f2 && echo abc > ${d}/a`)
  equal((await sbx.files.list(d)).map((e) => e.name), ['a', 'b', 'sub1'])
  equal((await sbx.files.list(d, { depth: 3 })).map((e) => e.path.slice(d.length)), ['/a', '/b', '/sub1', '/sub1/f1', '/sub1/sub2', '/sub1/sub2/f2'])
  const [a, b] = await sbx.files.list(d)
  equal([a.type, a.size, a.mode, a.permissions, a.owner, a.group], [FileType.FILE, 4, 0o644, '-rw-r--r--', user, user])
  equal([b.type, b.mode, b.permissions], [FileType.DIR, 0o755, 'drwxr-xr-x'])
  ok(Math.abs(a.modifiedTime - Date.now()) < 60000, `modified ${a.modifiedTime}`)
  await throws(sbx.files.list(`${dir}/no-such`))
  await throws(sbx.files.list(`${d}/a`))
  await throws(sbx.files.list(d, { depth: 0 }), 'InvalidArgumentError')
})

test('files: info of a symlink', async () => {
  await sbx.commands.run(`cd ${dir} && echo x > real && ln -sf real sym && ln -sf nowhere broken`)
  const i = await sbx.files.getInfo(`${dir}/sym`)
  equal([i.type, i.symlinkTarget, i.permissions[0]], [FileType.FILE, `${dir}/real`, 'L'])
  ok(!(await sbx.files.list(dir)).some((e) => e.name === 'broken'), 'a broken link is listed')
})

test('files: makeDir, exists, rename, remove', async () => {
  equal(await sbx.files.makeDir(`${dir}/n/e/w`), true)
  equal(await sbx.files.makeDir(`${dir}/n/e/w`), false)
  await sbx.files.write(`${dir}/n/f`, 'x')
  const r = await sbx.files.rename(`${dir}/n/f`, `${dir}/n/to/g`)
  equal([r.name, r.path], ['g', `${dir}/n/to/g`])
  equal([await sbx.files.exists(`${dir}/n/f`), await sbx.files.exists(`${dir}/n/to/g`)], [false, true])
  await throws(sbx.files.rename(`${dir}/none`, `${dir}/other`))
  await sbx.files.remove(`${dir}/n`)
  equal(await sbx.files.exists(`${dir}/n`), false)
  await sbx.files.remove(`${dir}/n`)
})

test('files: metadata', async () => {
  const path = `${dir}/meta`
  const w = await sbx.files.write(path, 'x', { metadata: { Purpose: 'test', 'second-key': 'v 2' } })
  equal(w.metadata, { purpose: 'test', 'second-key': 'v 2' })
  const i = await sbx.files.getInfo(path)
  equal([i.metadata.purpose, i.metadata['second-key']], ['test', 'v 2'])
  await sbx.files.rename(path, path + '2')
  equal((await sbx.files.getInfo(path + '2')).metadata.purpose, 'test')
  await sbx.files.write(path + '2', 'y')
  equal((await sbx.files.getInfo(path + '2')).metadata ?? {}, {})
  await throws(sbx.files.write(path, 'x', { metadata: { k: 'ü' } }))
})

test('files: relative paths and ~ are in the home directory', async () => {
  const home = (await sbx.commands.run('echo $HOME')).stdout.trim()
  const w = await sbx.files.write('G-relative', 'x')
  equal(w.path, `${home}/G-relative`)
  equal(await sbx.files.read('~/G-relative'), 'x')
  await sbx.files.remove('G-relative')
})

test('watch: create, write, rename, remove; recursive; entries', async () => {
  const d = `${dir}/watched`
  await sbx.files.makeDir(d)
  const seen = []
  const w = await sbx.files.watchDir(d, (e) => seen.push(e), { recursive: true, includeEntry: true, timeoutMs: 0 })
  await sbx.files.write(`${d}/one`, 'x')
  await sbx.files.write(`${d}/new/two`, 'x')
  await sbx.commands.run(`mv ${d}/one ${d}/uno && rm ${d}/uno`)
  await until(() => seen.some((e) => e.name === 'uno' && e.type === FilesystemEventType.REMOVE), 'remove event')
  for (const [name, type] of [['one', 'CREATE'], ['new', 'CREATE'], ['new/two', 'CREATE'], ['one', 'RENAME'], ['uno', 'CREATE']])
    ok(seen.some((e) => e.name === name && e.type === FilesystemEventType[type]), `no ${type} of ${name} in ${JSON.stringify(seen.map((e) => [e.name, e.type]))}`)
  if (/^e2b$/.test(process.env.SDK ?? 'e2b')) ok(seen.some((e) => e.name === 'new' && e.entry?.path === `${d}/new`), 'no entry')
  // As the documentation of the SDK has it: what files.write writes is a write, of a new file and of one that is there; by no other name.
  for (const text of ['x', 'longer', '']) {
    const from = seen.length
    await sbx.files.write(`${d}/written`, text)
    await sbx.files.makeDir(`${d}/mark-${from}`)
    await until(() => seen.some((e) => e.name === `mark-${from}`), 'the mark')
    const types = seen.slice(from).filter((e) => e.name === 'written').map((e) => e.type)
    equal(types.filter((t) => t !== FilesystemEventType.CHMOD), text === 'x' ? [FilesystemEventType.CREATE, FilesystemEventType.WRITE] : [FilesystemEventType.WRITE], `events of writing '${text}'`)
  }
  await sbx.commands.run(`cd ${d} && mv written w1 && mv w1 w2`)
  await until(() => seen.some((e) => e.name === 'w2' && e.type === FilesystemEventType.CREATE), 'a rename')
  equal(seen.filter((e) => e.name === 'w1').map((e) => e.type), [FilesystemEventType.CREATE, FilesystemEventType.RENAME], 'events of one that was renamed twice')
  ok(!seen.some((e) => /(^|\/)(#|\.cube-)/.test(e.name)), `names that nobody gave: ${JSON.stringify(seen.map((e) => e.name))}`)
  await w.stop()
  await throws(sbx.files.watchDir(`${dir}/no-such-dir`, () => {}))
  await throws(sbx.files.watchDir(`${dir}/exact`, () => {}))
})

test('watch: 10,000 events all arrive, or the end says so', async () => {
  const d = `${dir}/many`
  await sbx.files.makeDir(d)
  let n = 0, ended
  const w = await sbx.files.watchDir(d, (e) => { n += e.type === FilesystemEventType.CREATE }, { timeoutMs: 0, onExit: (e) => { ended = e ?? true } })
  await sbx.commands.run(`cd ${d} && for i in $(seq 10000); do : > f$i; done`)
  await until(() => n === 10000 || ended, `10,000 events (got ${n})`, 60000)
  await w.stop()
  await sbx.files.remove(d)
})

test('100 commands at 20 at a time, none lost', async () => {
  let next = 0, good = 0
  await Promise.all(Array.from({ length: 20 }, async () => {
    while (next < 100) {
      const i = next++
      const r = await sbx.commands.run(`echo ${i}`, { user: 'nobody', cwd: '/' }) // no login files of ours slow the shell down
      good += r.stdout === `${i}\n`
    }
  }))
  equal(good, 100)
})

test('cleanup', async () => { await sbx.files.remove(dir) })

if (process.env.TEMPLATE) test('the sandbox ends', async () => { await sbx.kill() })

await run(process.env.SUITE ?? 'guest sdk')
