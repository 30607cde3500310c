// The node's gRPC service from outside our own code, with a real VM: @grpc/grpc-js calls each method of cube.node.v1.Sandboxes as a master would.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { Sandbox } from 'e2b'
import { equal, ok, test, until } from './check.mjs'

const require = createRequire(`${process.env.CUBE_NODE_MODULES}/x.js`)
const grpc = require('@grpc/grpc-js'), loader = require('@grpc/proto-loader')
const root = process.env.CUBE_ROOT, state = process.env.CUBE_STATE_DIR
const protos = grpc.loadPackageDefinition(loader.loadSync([`${root}/proto/node.proto`, `${root}/proto/health.proto`],
  { includeDirs: [root], keepCase: true, longs: Number, enums: String, defaults: true }))
const address = readFileSync(`${state}/cube.yaml`, 'utf8').match(/^node:\n(?: .*\n)*? +listen: "?([^"\n]+)/m)[1]
const key = (role) => readFileSync(`${state}/keys/${role}.key`, 'utf8').trim()
const raw = new protos.cube.node.v1.Sandboxes(address, grpc.credentials.createInsecure())

// Resolves with the answer or with the error, which carries .code and .kind (our error code).
const call = (method, request, role = 'master', secret = key(role)) => new Promise((resolve) => {
  const m = new grpc.Metadata()
  m.set('cube-role', role)
  m.set('cube-key', secret)
  raw[method](request, m, { deadline: Date.now() + 30_000 }, (error, reply) => {
    if (error) error.kind = error.metadata?.get('cube-error-code')[0]
    resolve(error ?? reply)
  })
})

const sandbox = await Sandbox.create('base', { timeoutMs: 600_000 })
await sandbox.pause()
await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 600_000 }) // its second generation
const sandbox_id = sandbox.sandboxId
const row = async () => (await call('List', {})).sandboxes.find((s) => s.spec.sandbox_id === sandbox_id)

await test('node grpc: another role and a wrong key are refused, and a caller without a key', async () => {
  equal((await call('List', {}, 'api')).code, grpc.status.UNAUTHENTICATED, 'another role')
  equal((await call('List', {}, 'master', '0'.repeat(64))).code, grpc.status.UNAUTHENTICATED, 'a wrong key')
  equal((await call('List', {}, 'master', '')).code, grpc.status.UNAUTHENTICATED, 'no key')
})

await test('node grpc: List, Metrics, Network and ReadLog tell of a sandbox', async () => {
  const s = await row()
  equal([s.state, s.gen, s.isolation.length > 0, /^\d+\.\d+\.\d+$/.test(s.envd_version)], ['RUNNING', 2, true, true], 'the row')
  const metrics = await call('Metrics', { sandbox_id })
  ok(!(metrics instanceof Error), `Metrics: ${metrics.message}`)
  const net = await call('Network', { sandbox_id })
  ok(!(net instanceof Error), `Network: ${net.message}`)
  await sandbox.files.write('seen', 'x')
  await until(async () => {
    const log = await call('ReadLog', { sandbox_id, limit: 100 })
    return !(log instanceof Error) && JSON.stringify(log).includes('seen')
  }, 30_000, 'the write being in the log')
})

await test('node grpc: an older generation is refused, names that are none are invalid', async () => {
  for (const [method, more] of [['Pause', {}], ['Update', { remaining_ms: 1000 }], ['Snapshot', { snapshot_id: 'snap-of-nobody' }], ['Kill', {}]]) {
    const e = await call(method, { sandbox_id, gen: 1, ...more })
    equal(e.kind, 'stale_generation', `${method} of generation 1 (${e.code} ${e.message})`)
    ok(/knows gen=2/.test(e.message), e.message)
  }
  for (const method of ['Pause', 'Kill', 'Update', 'Snapshot']) {
    const e = await call(method, { sandbox_id: '../../etc', gen: 1 })
    ok(e instanceof Error && [grpc.status.INVALID_ARGUMENT, grpc.status.NOT_FOUND].includes(e.code), `${method} of ../../etc: ${e.code} ${e.message}`)
  }
  equal((await row()).state, 'RUNNING', 'after all of it')
})

await test('node grpc: Update moves the deadline; Snapshot of a running sandbox and its removal', async () => {
  const before = (await row()).end_ms
  equal((await call('Update', { sandbox_id, gen: 2, remaining_ms: 1_200_000 })).gen, 2, 'Update')
  ok((await row()).end_ms > before + 300_000, 'the deadline moved')
  const snap = await call('Snapshot', { sandbox_id, gen: 2, snapshot_id: 'nodegrpctest' })
  ok(snap.snapshot_id, `Snapshot: ${snap.message}`)
  equal((await call('DeleteSnapshot', { snapshot_id: snap.snapshot_id })).existed, true, 'removed')
  equal((await call('DeleteSnapshot', { snapshot_id: snap.snapshot_id })).existed, false, 'once')
  equal((await sandbox.commands.run('cat seen')).stdout, 'x', 'it goes on')
})

await test('node grpc: Kill is idempotent', async () => {
  equal((await call('Kill', { sandbox_id: 'i0nobodyknowsthisonex', gen: 1 })).existed, false, 'of nobody')
  await Sandbox.kill(sandbox_id)
  equal((await call('Kill', { sandbox_id, gen: 2, reason: 'again' })).existed, false, 'after the end')
})
raw.close()
