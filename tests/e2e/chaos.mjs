// kill -9 of each daemon in turn (proof c): the sandbox answers again and its VM process is the same one.
import { readFileSync } from 'node:fs'
import { Sandbox } from 'e2b'
import { equal, ok, rejects, test, until } from './check.mjs'
import { vmProcess } from './vm.mjs'

const run = process.env.CUBE_RUN_DIR

// 0 while the supervisor starts it again.
function pidOf(name) {
  try {
    return Number(readFileSync(`${run}/pid/${name}`, 'utf8'))
  } catch {
    return 0
  }
}

const sandbox = await Sandbox.create('base', { timeoutMs: 600_000 })
await sandbox.files.write('marker', 'still here')
const bootId = (await sandbox.commands.run('cat /proc/sys/kernel/random/boot_id')).stdout
const before = vmProcess(sandbox.sandboxId)

for (const name of ['cube-api', 'cube-master', 'cube-proxy', 'cube-lifecycle', 'cube-relay', 'cube-node', 'cube-jailer']) {
  await test(`chaos: kill -9 ${name}; the sandbox answers again from the same VM`, async () => {
    const old = pidOf(name)
    ok(old > 0, `${name} does not run`)
    process.kill(old, 'SIGKILL')
    await until(() => pidOf(name) > 0 && pidOf(name) !== old, 60_000, `${name} started again`)
    const text = await until(async () => {
      try {
        return (await sandbox.commands.run('cat marker /proc/sys/kernel/random/boot_id', { timeoutMs: 5000 })).stdout
      } catch {
        return null
      }
    }, 60_000, 'the sandbox answers')
    equal(text, `still here${bootId}`, 'the same guest')
    const info = await until(async () => {
      try {
        return await sandbox.getInfo()
      } catch {
        return null
      }
    }, 60_000, 'the API knows it')
    equal(info.state, 'running', 'state')
    equal(vmProcess(sandbox.sandboxId), before, 'VM process')
  })
}

await test('chaos: what ends while cube-node is away: Connect finds its end, the log tells it once the node is back', async () => {
  const { pid } = await sandbox.commands.run('until [ -e go ]; do sleep 0.01; done; exit 7', { background: true, timeoutMs: 0 })
  const node = await until(() => pidOf('cube-node'), 60_000, 'cube-node')
  process.kill(node, 'SIGKILL')
  await sandbox.files.write('go', '') // the way in does not need the node
  await until(async () => !(await sandbox.commands.list()).some((p) => p.pid === pid), 20_000, 'its end')
  const late = await sandbox.commands.connect(pid)
  equal((await rejects(late.wait(), 'CommandExitError', 'the late handle')).exitCode, 7, 'exit code')
  const log = async () => {
    const r = await fetch(`${process.env.E2B_API_URL}/v2/sandboxes/${sandbox.sandboxId}/logs`, { headers: { 'X-API-Key': process.env.E2B_API_KEY } })
    return r.status === 200 ? (await r.json()).logs : []
  }
  await until(async () => (await log()).some((l) => l.message === 'process ended' && l.fields.pid === String(pid) && l.fields.exit_code === '7'), 60_000, 'its end in the log')
})

await test('chaos: create and kill work after all of it', async () => {
  const other = await until(async () => {
    try {
      return await Sandbox.create('base')
    } catch {
      return null
    }
  }, 60_000, 'create')
  equal((await other.commands.run('echo ok')).stdout, 'ok\n', 'run')
  equal(await other.kill(), true, 'kill')
  equal(await sandbox.kill(), true, 'kill of the first')
})
