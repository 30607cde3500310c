// Pause, resume, wake by traffic, snapshots and forks with the unmodified SDK.
import { Sandbox } from 'e2b'
import { equal, ok, rejects, test, until } from './check.mjs'

const ingress = process.env.E2B_SANDBOX_URL

await test('lifecycle: pause keeps processes and files, connect resumes them', async () => {
  const s = await Sandbox.create('base', { timeoutMs: 300_000, envs: { KEEP: 'me' } })
  try {
    await s.files.write('/home/user/kept.txt', 'kept')
    const bg = await s.commands.run('sleep 600', { background: true, timeoutMs: 0 })
    const boot = (await s.commands.run('cat /proc/sys/kernel/random/boot_id')).stdout
    ok(await s.pause(), 'pause')
    equal(await s.isRunning(), false, 'isRunning while paused')
    const info = await Sandbox.getInfo(s.sandboxId)
    equal(info.state, 'paused', 'state')
    const again = await Sandbox.connect(s.sandboxId, { timeoutMs: 300_000 })
    equal(await again.files.read('/home/user/kept.txt'), 'kept', 'file')
    ok((await again.commands.list()).some((p) => p.pid === bg.pid), 'the background process is gone')
    equal((await again.commands.run('echo $KEEP; cat /proc/sys/kernel/random/boot_id')).stdout, `me\n${boot}`, 'environment and boot id')
    const least = Date.now(), clock = Number((await again.commands.run('date +%s%3N')).stdout), most = Date.now()
    ok(clock > least - 2000 && clock < most + 2000, `the clock said ${clock} between ${least} and ${most}`)
    await again.commands.kill(bg.pid)
  } finally {
    await s.kill()
  }
})

await test('lifecycle: ten rounds of pause and connect', async () => {
  const s = await Sandbox.create('base', { timeoutMs: 300_000 })
  try {
    for (let i = 1; i <= 10; i++) {
      await s.commands.run(`echo ${i} >> rounds; sync`)
      ok(await s.pause(), `pause ${i}`)
      await Sandbox.connect(s.sandboxId)
    }
    equal((await s.commands.run('cat rounds')).stdout, '1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n', 'rounds')
  } finally {
    await s.kill()
  }
})

await test('lifecycle: on timeout a sandbox that asked for it is paused and wakes by traffic', async () => {
  const s = await Sandbox.create('base', { timeoutMs: 120_000, lifecycle: { onTimeout: 'pause', autoResume: true } })
  try {
    const ask = () => fetch(`${ingress}/`, { headers: { 'E2b-Sandbox-Id': s.sandboxId, 'E2b-Sandbox-Port': '8000' } })
    await s.commands.run('python3 -m http.server 8000 >/dev/null 2>&1 &')
    await until(async () => { const a = await ask(); await a.text(); return a.status === 200 }, 30_000, 'the server')
    await s.setTimeout(1000) // only now, so that everything before it has the time that it needs
    await until(async () => (await Sandbox.getInfo(s.sandboxId)).state === 'paused', 30_000, 'auto-pause')
    const r = await ask()
    equal(r.status, 200, 'status of the request that wakes')
    await r.text()
    equal((await Sandbox.getInfo(s.sandboxId)).state, 'running', 'state after the wake')
  } finally {
    await s.kill()
  }
})

await test('lifecycle: setTimeout ends and extends', async () => {
  const s = await Sandbox.create('base', { timeoutMs: 60_000 })
  await s.setTimeout(120_000)
  const info = await s.getInfo()
  ok(info.endAt - Date.now() > 100_000, `endAt ${info.endAt}`)
  await s.setTimeout(1000)
  await until(async () => !(await s.isRunning()), 30_000, 'end')
})

await test('lifecycle: metrics', async () => {
  const s = await Sandbox.create('base', { timeoutMs: 60_000 })
  try {
    const m = await until(async () => {
      const all = await s.getMetrics()
      return all.length > 0 && all
    }, 30_000, 'first metrics')
    ok(m[0].memTotal > 100e6 && m[0].cpuCount >= 1 && m[0].diskTotal > 1e8, JSON.stringify(m[0]))
  } finally {
    await s.kill()
  }
})

await test('lifecycle: a snapshot of a running sandbox starts others', async () => {
  const s = await Sandbox.create('base', { timeoutMs: 120_000 })
  try {
    await s.files.write('/home/user/base.txt', 'from the source')
    const snapshot = await s.createSnapshot()
    equal((await s.commands.run('cat base.txt')).stdout, 'from the source', 'the source goes on')
    const clone = await Sandbox.create(snapshot.snapshotId, { timeoutMs: 60_000 })
    try {
      equal(await clone.files.read('/home/user/base.txt'), 'from the source', 'file in the clone')
      ok(clone.sandboxId !== s.sandboxId, 'own id')
    } finally {
      await clone.kill()
    }
    ok(await Sandbox.deleteSnapshot(snapshot.snapshotId), 'delete')
  } finally {
    await s.kill()
  }
})

await test('lifecycle: a paused sandbox can be killed', async () => {
  const s = await Sandbox.create('base', { timeoutMs: 60_000 })
  ok(await s.pause(), 'pause')
  equal(await s.kill(), true, 'kill')
  await rejects(Sandbox.connect(s.sandboxId), 'SandboxNotFoundError', 'connect after kill')
})
