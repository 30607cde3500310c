// Sandbox.create until the answer, and until the first command has run; one after another, as one user sees it. The parts come from the
// daemons' own histograms, whose sums are read before and after each create: nothing else creates in this cluster meanwhile.
// Options: --json (always prints the object), --n N.
import { Sandbox } from 'e2b'
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import os from 'node:os'

const at = process.argv.indexOf('--n')
const rounds = at > 0 ? Number(process.argv[at + 1]) : 100
const base = Number(new URL(process.env.E2B_API_URL).port)
const load = os.loadavg()[0]

// Sum in milliseconds of a histogram over all its labels that match.
async function sum(port, name, match = '') {
  const text = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text()
  let total = 0
  for (const line of text.split('\n'))
    if (line.startsWith(`${name}_sum`) && line.includes(match)) total += Number(line.split(' ').at(-1)) * 1000
  return total
}
const sums = async () => ({
  api: await sum(base + 100, 'cube_api_request_seconds', 'route="sandbox_create_'),
  master: await sum(base + 110, 'cube_master_create_us'),
  start: await sum(base + 110, 'cube_master_node_start_us'),
  node: await sum(base + 140, 'cube_node_start_seconds'),
  vmm: await sum(base + 140, 'cube_node_vmm_seconds'),
  init: await sum(base + 140, 'cube_node_init_seconds'),
})

const seen = { create: [], 'first-command': [], sdk: [], api: [], master: [], node: [], vmm: [], init: [] }
for (let i = 0; i < rounds + 5; i++) {
  const before = await sums()
  const t0 = performance.now()
  const sandbox = await Sandbox.create('base', { timeoutMs: 60000 })
  const t1 = performance.now()
  const r = await sandbox.commands.run('echo hi')
  const t2 = performance.now()
  if (r.stdout !== 'hi\n') throw new Error(`the first command printed ${JSON.stringify(r.stdout)}`)
  const after = await sums()
  await sandbox.kill()
  if (i < 5) continue // connections and caches
  const d = Object.fromEntries(Object.keys(after).map((k) => [k, after[k] - before[k]]))
  seen.create.push(t1 - t0)
  seen['first-command'].push(t2 - t0)
  seen.sdk.push(t1 - t0 - d.api) // SDK, its HTTP client and loopback
  seen.api.push(d.api - d.master)
  seen.master.push(d.master - d.start)
  const node = d.node > 0 ? d.node : d.start
  seen.node.push(node - d.vmm - d.init)
  if (d.vmm > 0) seen.vmm.push(d.vmm)
  if (d.init > 0) seen.init.push(d.init)
}

const results = []
for (const [metric, values] of Object.entries(seen)) {
  if (values.length === 0) continue
  values.sort((a, b) => a - b)
  const p = (q) => Math.round(values[Math.round(q * (values.length - 1))] * 1000) / 1000
  results.push({ metric, unit: 'ms', n: values.length, p50: p(0.5), p99: p(0.99), max: p(1) })
}
let kvm = 'unknown'
try {
  kvm = execFileSync(`${process.env.CUBE_BUILD_DIR}/cli/cube`, ['doctor', '--kind']).toString().trim()
} catch {}
console.log(JSON.stringify({
  name: 'sdk-create',
  environment: { cores: os.cpus().length, kernel: readFileSync('/proc/sys/kernel/osrelease', 'utf8').trim(), kvm, load },
  busy: load > os.cpus().length / 2,
  results,
}))
