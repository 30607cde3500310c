// Want of memory as the sandbox's story tells it: in its guest, and in its VM's own group. (On the host: tests/node/quota_test.py.)
import { spawn } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { Sandbox } from 'e2b'
import { equal, ok, rejects, test, until } from './check.mjs'
import { vmProcess } from './vm.mjs'

const ours = async (path) => {
  const r = await fetch(`${process.env.E2B_API_URL}/cube/v1/sandboxes/${path}`, { headers: { 'X-API-Key': process.env.E2B_API_KEY } })
  equal(r.status, 200, path)
  return r.json()
}
const told = async (sandbox, what) => (await ours(`${sandbox.sandboxId}/timeline`)).some((event) => what.test(event.text))

// The memory group of a process, and the names of the files that hold its limit and its use (cgroup v1 and v2).
function memoryGroup(pid) {
  const text = readFileSync(`/proc/${pid}/cgroup`, 'utf8'), v1 = /^\d+:(?:.*,)?memory(?:,.*)?:(.*)$/m.exec(text)
  if (v1) return { dir: `/sys/fs/cgroup/memory${v1[1]}`, limit: 'memory.limit_in_bytes', use: 'memory.usage_in_bytes' }
  return { dir: `/sys/fs/cgroup${/^0::(.*)$/m.exec(text)[1]}`, limit: 'memory.max', use: 'memory.current' }
}

await test('memory: the guest runs out of memory: the sandbox goes on, and its story says so', async () => {
  const s = await Sandbox.create('base', { timeoutMs: 300_000 })
  try {
    await rejects(s.commands.run('tail /dev/zero', { timeoutMs: 120_000 }), 'CommandExitError', 'the command that took all memory')
    await until(() => told(s, /out of memory in the guest: its kernel killed \d+ process/), 60_000, 'the story')
    equal((await s.commands.run('echo alive')).stdout, 'alive\n', 'the sandbox')
  } finally {
    await s.kill()
  }
})

await test('memory: the VM meets the limit of its group: the sandbox is lost, and that is the reason', async () => {
  const s = await Sandbox.create('base', { timeoutMs: 300_000 })
  const pid = vmProcess(s.sandboxId).split('@')[0], group = memoryGroup(pid), reason = /out of memory in the VM's cgroup/
  // The VM stands still, else the kernel takes its files from it and it reads them again for as long as it likes. The kernel is told whom to choose.
  writeFileSync(`/proc/${pid}/oom_score_adj`, '1000')
  process.kill(Number(pid), 'SIGSTOP')
  writeFileSync(`${group.dir}/${group.limit}`, String(Number(readFileSync(`${group.dir}/${group.use}`, 'utf8')) + (16 << 20)))
  const hog = spawn('python3', ['-c', `import os, sys
dir, pid = sys.argv[1:]
open(dir + "/cgroup.procs", "w").write(str(os.getpid()))
kept = []
while os.path.exists("/proc/" + pid):
    kept.append(bytearray(b"x") * (1 << 20))
`, group.dir, pid], { stdio: 'inherit' })
  try {
    const d = await until(async () => { const d = await ours(s.sandboxId); return d.state !== 'running' && d }, 60_000, 'its end')
    equal(d.state, 'lost', 'state')
    ok(reason.test(d.reason), `the reason is '${d.reason}'`)
    ok(await told(s, reason), 'the story says something else')
    await rejects(s.getInfo(), 'SandboxNotFoundError', 'its detail')
  } finally {
    hog.kill('SIGKILL')
    await s.kill()
  }
})
