// What the SDKs do not use: the binary codec, StreamInput, tags, keep-alives, timeouts of unary calls, through the real Connect client.
// DESCRIPTORS is a FileDescriptorSet of tests/guest/proto, BASE_URL the daemon.
import { readFileSync } from 'node:fs'
import { createFileRegistry, fromBinary } from '@bufbuild/protobuf'
import { FileDescriptorSetSchema } from '@bufbuild/protobuf/wkt'
import { Code, createClient } from '@connectrpc/connect'
import { compressionGzip, createConnectTransport } from '@connectrpc/connect-node'
import { equal, ok, run, test } from './check.mjs'

// TEMPLATE: in a sandbox of a running cluster, through its proxy.
const { Sandbox } = await import('e2b')
const sbx = process.env.TEMPLATE ? await Sandbox.create(process.env.TEMPLATE, { timeoutMs: 600000 }) : undefined
const headers = { 'E2b-Sandbox-Id': sbx?.sandboxId, 'E2b-Sandbox-Port': '49983', 'X-Access-Token': sbx?.envdAccessToken }
const interceptors = sbx ? [(next) => (req) => {
  for (const [k, v] of Object.entries(headers)) if (v) req.header.set(k, v)
  return next(req)
}] : []
const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, readFileSync(process.env.DESCRIPTORS)))
const dir = process.env.WORK_DIR ?? `/tmp/G-connect-${process.pid}`
const clients = {}
for (const binary of [false, true]) {
  const transport = createConnectTransport({ baseUrl: process.env.BASE_URL, httpVersion: '1.1', useBinaryFormat: binary, interceptors })
  clients[binary ? 'binary' : 'json'] = {
    process: createClient(registry.getService('process.Process'), transport),
    fs: createClient(registry.getService('filesystem.Filesystem'), transport),
  }
}
const sh = (script, more = {}) => ({ process: { cmd: '/bin/sh', args: ['-c', script] }, ...more })
const text = (b) => Buffer.from(b).toString()

async function fails(promise, code) {
  try {
    await promise
  } catch (e) {
    equal(Code[e.code], Code[code], `code (${e.rawMessage})`)
    return e
  }
  throw new Error(`did not fail with ${Code[code]}`)
}

async function collect(stream) {
  const r = { out: '', err: '', kinds: [] }
  for await (const { event } of stream) {
    const { case: kind, value } = event.event
    r.kinds.push(kind)
    if (kind === 'start') r.pid = value.pid
    if (kind === 'data') r[value.output.case === 'stderr' ? 'err' : 'out'] += text(value.output.value)
    if (kind === 'end') r.end = value
  }
  return r
}

for (const binary of [false, true])
  test(`compressed requests, ${binary ? 'binary' : 'json'}`, async () => {
    const transport = createConnectTransport({ baseUrl: process.env.BASE_URL, httpVersion: '1.1', useBinaryFormat: binary, interceptors,
      sendCompression: compressionGzip, compressMinBytes: 0, acceptCompression: [compressionGzip] })
    const c = { process: createClient(registry.getService('process.Process'), transport), fs: createClient(registry.getService('filesystem.Filesystem'), transport) }
    equal((await c.fs.stat({ path: '/tmp' })).entry.name, 'tmp')
    const it = c.process.start(sh('cat', { stdin: true }))[Symbol.asyncIterator]()
    const pid = (await it.next()).value.event.event.value.pid
    const data = 'packed\n'.repeat(4000)
    async function* input() {
      yield { event: { case: 'start', value: { process: { selector: { case: 'pid', value: pid } } } } }
      yield { event: { case: 'data', value: { input: { input: { case: 'stdin', value: Buffer.from(data) } } } } }
    }
    await c.process.streamInput(input())
    await c.process.closeStdin({ process: { selector: { case: 'pid', value: pid } } })
    let out = ''
    for (let e; (e = await it.next()) && !e.done && e.value.event.event.case === 'data';) out += text(e.value.event.event.value.output.value)
    equal(out === data, true)
  })

for (const [name, c] of Object.entries(clients)) {
  test(`${name}: start, output, end`, async () => {
    const r = await collect(c.process.start(sh('echo out; echo err >&2; exit 3')))
    equal([r.out, r.err, r.end.exitCode, r.end.exited, r.end.status, r.end.error], ['out\n', 'err\n', 3, true, 'exit status 3', 'exit status 3'])
    equal([r.kinds[0], r.kinds.at(-1)], ['start', 'end'])
  })

  test(`${name}: list shows configuration and tag; selectors by tag`, async () => {
    const abort = new AbortController()
    const it = c.process.start({ ...sh('sleep 100', { tag: `tag-${name}` }), process: { cmd: 'sleep', args: ['100'], envs: { A: 'b' }, cwd: '/tmp' } }, { signal: abort.signal })[Symbol.asyncIterator]()
    const pid = (await it.next()).value.event.event.value.pid
    const p = (await c.process.list({})).processes.find((x) => x.pid === pid)
    equal([p.config.cmd, p.config.args, p.config.envs, p.config.cwd, p.tag], ['sleep', ['100'], { A: 'b' }, '/tmp', `tag-${name}`])
    const other = collect(c.process.connect({ process: { selector: { case: 'tag', value: `tag-${name}` } } }))
    await c.process.sendSignal({ process: { selector: { case: 'tag', value: `tag-${name}` } }, signal: 15 })
    equal((await other).end.status, 'signal: terminated')
    abort.abort()
    await it.next().catch(() => {})
  })

  test(`${name}: stream input arrives chunk by chunk, the end of the request leaves stdin open`, async () => {
    const stream = c.process.start(sh('cat', { stdin: true }))
    const it = stream[Symbol.asyncIterator]()
    const pid = (await it.next()).value.event.event.value.pid
    let go
    const gate = new Promise((r) => { go = r })
    async function* input() {
      yield { event: { case: 'start', value: { process: { selector: { case: 'pid', value: pid } } } } }
      yield { event: { case: 'data', value: { input: { input: { case: 'stdin', value: Buffer.from('first\n') } } } } }
      yield { event: { case: 'keepalive', value: {} } }
      await gate
      yield { event: { case: 'data', value: { input: { input: { case: 'stdin', value: Buffer.from('second\n') } } } } }
    }
    const sent = c.process.streamInput(input())
    equal(text((await it.next()).value.event.event.value.output.value), 'first\n')
    go()
    equal(text((await it.next()).value.event.event.value.output.value), 'second\n')
    await sent
    await c.process.sendInput({ process: { selector: { case: 'pid', value: pid } }, input: { input: { case: 'stdin', value: Buffer.from('third\n') } } })
    equal(text((await it.next()).value.event.event.value.output.value), 'third\n')
    await c.process.closeStdin({ process: { selector: { case: 'pid', value: pid } } })
    equal((await it.next()).value.event.event.case, 'end')
  })

  test(`${name}: stream input of 8 MiB through a slow reader`, async () => {
    const n = 8 << 20
    const it = c.process.start(sh('sleep 0.3; wc -c', { stdin: true }))[Symbol.asyncIterator]()
    const pid = (await it.next()).value.event.event.value.pid
    const select = { selector: { case: 'pid', value: pid } }
    async function* input() {
      yield { event: { case: 'start', value: { process: select } } }
      for (let i = 0; i < n; i += 65536)
        yield { event: { case: 'data', value: { input: { input: { case: 'stdin', value: Buffer.alloc(65536, 120) } } } } }
    }
    await c.process.streamInput(input())
    await c.process.closeStdin({ process: select })
    equal(text((await it.next()).value.event.event.value.output.value).trim(), String(n))
  })

  test(`${name}: errors carry the contract's codes`, async () => {
    const none = { selector: { case: 'pid', value: 999999 } }
    await fails(c.process.sendSignal({ process: none, signal: 9 }), Code.NotFound)
    await fails(c.process.sendInput({ process: none, input: { input: { case: 'stdin', value: Buffer.from('x') } } }), Code.NotFound)
    await fails(collect(c.process.connect({ process: none })), Code.NotFound)
    await fails(collect(c.process.start({ process: { cmd: '/bin/sh', cwd: '/no/such' } })), Code.InvalidArgument)
    await fails(collect(c.process.start({})), Code.InvalidArgument)
    await fails(collect(c.process.start(sh('true'), { headers: { authorization: 'Basic ' + btoa('nobody-here:') } })), Code.Unauthenticated)
    await fails(c.fs.stat({ path: `${dir}/none` }), Code.NotFound)
    await fails(c.fs.listDir({ path: '/etc/hostname' }), Code.InvalidArgument)
    await fails(c.fs.getWatcherEvents({ watcherId: 'wnone' }), Code.NotFound)
    await fails(c.fs.stat({ path: '~bob/x' }), Code.InvalidArgument)
  })

  test(`${name}: deadline ends the stream with deadline_exceeded and kills the process`, async () => {
    let pid
    await fails((async () => {
      for await (const { event } of c.process.start(sh('sleep 100'), { timeoutMs: 400 }))
        if (event.event.case === 'start') pid = event.event.value.pid
    })(), Code.DeadlineExceeded)
    const until = Date.now() + 20000 // the client's clock may be ahead of the daemon's, and its end takes a moment
    while ((await c.process.list({})).processes.some((p) => p.pid === pid)) ok(Date.now() < until, 'still runs')
  })

  test(`${name}: keep-alives come in silence`, async () => {
    const kinds = [], began = Date.now()
    let pid, count = 0
    for await (const { event } of c.process.start(sh('read x', { stdin: true }), { headers: { 'keepalive-ping-interval': '1' } })) {
      kinds.push(event.event.case)
      if (event.event.case === 'start') pid = event.event.value.pid
      if (event.event.case === 'keepalive' && ++count === 3) // now it may end
        await c.process.sendInput({ process: { selector: { case: 'pid', value: pid } }, input: { input: { case: 'stdin', value: Buffer.from('\n') } } })
    }
    equal(kinds.filter((k) => k !== 'keepalive'), ['start', 'end'])
    const took = Date.now() - began
    ok(count >= 3 && took >= 2900 && count <= took / 1000 + 1, `${count} in ${took} ms`)
  })

  test(`${name}: two subscribers get everything`, async () => {
    const first = c.process.start(sh('read x; seq 20000', { stdin: true }))[Symbol.asyncIterator]()
    const pid = (await first.next()).value.event.event.value.pid
    const select = { selector: { case: 'pid', value: pid } }
    const second = collect(c.process.connect({ process: select }))
    await c.process.sendInput({ process: select, input: { input: { case: 'stdin', value: Buffer.from('\n') } } })
    let out = ''
    for (let r = await first.next(); !r.done; r = await first.next())
      if (r.value.event.event.case === 'data') out += text(r.value.event.event.value.output.value)
    equal([out.length, (await second).out.length], [108894, 108894])
  })

  test(`${name}: pty in one stream`, async () => {
    const r = await collect(c.process.start(sh('stty size; tty', { pty: { size: { cols: 90, rows: 33 } } })))
    ok(r.out.includes('33 90') && r.out.includes('/dev/pts/'), r.out)
  })

  test(`${name}: files: make, stat, list, move, remove`, async () => {
    const e = (await c.fs.makeDir({ path: `${dir}/a/b` })).entry
    equal([e.name, e.type, e.path, e.mode, e.permissions], ['b', 2, `${dir}/a/b`, 0o755, 'drwxr-xr-x'])
    await fails(c.fs.makeDir({ path: `${dir}/a/b` }), Code.AlreadyExists)
    await collect(c.process.start(sh(`ln -s b ${dir}/a/l`)))
    const l = (await c.fs.stat({ path: `${dir}/a/l` })).entry
    equal([l.isSymlink, l.symlinkTarget, l.type], [true, `${dir}/a/b`, 2])
    equal((await c.fs.listDir({ path: dir, depth: 2 })).entries.map((x) => x.name), ['a', 'b', 'l'])
    equal((await c.fs.move({ source: `${dir}/a`, destination: `${dir}/z/y` })).entry.path, `${dir}/z/y`)
    await c.fs.remove({ path: dir })
    await fails(c.fs.stat({ path: dir }), Code.NotFound)
  })

  test(`${name}: names that are not UTF-8 hide nobody else`, async () => {
    await collect(c.process.start(sh(`mkdir -p ${dir}/names && cd ${dir}/names && : > "$(printf 'a\\377\\303(b')" && : > ok`)))
    equal((await c.fs.listDir({ path: `${dir}/names` })).entries.map((e) => e.name), ['a\ufffd\ufffd(b', 'ok'])
    await c.fs.remove({ path: `${dir}/names` })
  })

  test(`${name}: polled watcher`, async () => {
    await c.fs.makeDir({ path: `${dir}/w` })
    const { watcherId } = await c.fs.createWatcher({ path: `${dir}/w`, recursive: true, includeEntry: true })
    ok(/^w[a-z0-9]{20}$/.test(watcherId), watcherId)
    await collect(c.process.start(sh(`mkdir ${dir}/w/d; echo x > ${dir}/w/d/f`)))
    const seen = (await c.fs.getWatcherEvents({ watcherId })).events
    ok(seen.some((e) => e.name === 'd' && e.type === 1 && e.entry.type === 2), JSON.stringify(seen.map((e) => [e.name, e.type])))
    ok(seen.filter((e) => e.name === 'd/f' && e.type === 1).length === 1, 'creation of d/f not exactly once')
    equal((await c.fs.getWatcherEvents({ watcherId })).events, [])
    await c.fs.removeWatcher({ watcherId })
    await fails(c.fs.getWatcherEvents({ watcherId }), Code.NotFound)
    await c.fs.remove({ path: dir })
  })
}

test('1,000 processes at 20 at a time, none lost', async () => {
  let next = 0, good = 0
  await Promise.all(Array.from({ length: 20 }, async () => {
    while (next < 1000) {
      const i = next++
      const r = await collect(clients.binary.process.start({ process: { cmd: '/bin/echo', args: [String(i)] } }))
      good += r.out === `${i}\n` && r.end.exited
    }
  }))
  equal(good, 1000)
  equal((await clients.json.process.list({})).processes.length, 0)
})

await run(process.env.SUITE ?? 'guest connect')
