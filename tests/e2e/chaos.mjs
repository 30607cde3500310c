// kill -9 of each daemon in turn (proof c): the sandbox answers again and its VM process is the same one.
import { readFileSync } from 'node:fs'
import { Sandbox } from 'e2b'
import { equal, ok, test, until } from './check.mjs'

const run = process.env.CUBE_RUN_DIR

// The VM process of a sandbox as the node's record names it (proto/node.proto, Record: 9 vm_pid, 10 vm_start_time), with the start time that
// the kernel shows for that pid now; throws when it is another process.
function vmProcess(id) {
  const record = readFileSync(`${process.env.CUBE_STATE_DIR}/sandboxes/${id}/record`).subarray(8) // behind the checksum
  const fields = {}
  let at = 0
  const varint = () => {
    let value = 0n
    for (let shift = 0n; ; shift += 7n) {
      const byte = record[at++]
      value |= BigInt(byte & 0x7f) << shift
      if (!(byte & 0x80)) return value
    }
  }
  while (at < record.length) {
    const tag = Number(varint())
    if ((tag & 7) === 0) fields[tag >> 3] = varint()
    else if ((tag & 7) === 2) {
      const length = Number(varint()) // apart: += would read `at` before it
      at += length
    } else throw new Error(`record of ${id}: wire type ${tag & 7}`)
  }
  const stat = readFileSync(`/proc/${fields[9]}/stat`, 'utf8')
  const start = stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]
  ok(stat.includes('(cube-vmm)') && start === String(fields[10]), `pid ${fields[9]} is another process: ${stat.slice(0, 60)}`)
  return `${fields[9]}@${start}`
}

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
