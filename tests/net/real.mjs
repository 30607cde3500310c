// Real sandboxes and the world behind CubeVS: names, downloads, git, rules at create and later, daemons killed under a download.
import { execFileSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { Sandbox } from 'e2b'
import { equal, ok, rejects, test, until } from './check.mjs'

const sha = process.env.BIG_SHA256
const fetchOk = async (s, url, seconds = 20) => {
  try {
    await s.commands.run(`curl -sS -o /dev/null --fail -m ${seconds} ${url}`)
    return true
  } catch {
    return false
  }
}

const api = async (method, path, body) => {
  const r = await fetch(process.env.E2B_API_URL + path, {
    method,
    headers: { 'X-API-Key': process.env.E2B_API_KEY, 'Content-Type': 'application/json' },
    body: body && JSON.stringify(body)
  })
  const text = await r.text()
  return { status: r.status, body: text ? JSON.parse(text) : null }
}
const net = async (s) => (await api('GET', `/cube/v1/sandboxes/${s.sandboxId}/net`)).body
const metrics = async () => (await fetch(`${process.env.NODE_ADMIN}/metrics`)).text()
const metric = (text, s, name, label) =>
  Number(text.match(new RegExp(`^cube_node_sandbox_net_${name}{sandbox="${s.sandboxId}"${label}} (\\d+)$`, 'm'))?.[1] ?? -1)
const cube = (...words) => execFileSync(process.env.CUBE_CLI, [...words, '--state', process.env.CUBE_STATE_DIR], { encoding: 'utf8' })

const open = await Sandbox.create('base', { timeoutMs: 600_000 })

await test('net: a real sandbox resolves a name and downloads byte-exact', async () => {
  const r = await open.commands.run('curl -sS -m 60 http://www.allowed.test/big | sha256sum')
  equal(r.stdout.split(' ')[0], sha, 'sha256')
})

await test('net: git clone from the world', async () => {
  const r = await open.commands.run('git clone -q http://www.allowed.test/repo.git && cat repo/README')
  equal(r.stdout, 'from the world\n', 'README of the clone')
})

await test('net: pip download from the world', async () => {
  const r = await open.commands.run(
    'cd /tmp && pip download -q --no-deps --no-cache-dir --index-url http://www.allowed.test/simple/ --trusted-host www.allowed.test demo==1.0 && ls demo-1.0-py3-none-any.whl',
    { timeoutMs: 60_000 }
  )
  equal(r.stdout.trim().split('\n').pop(), 'demo-1.0-py3-none-any.whl', 'file')
})

await test('net: bytes and packets are in the metrics of node and sandbox', async () => {
  const before = await metrics()
  await open.commands.run('curl -sS -o /dev/null http://93.184.216.34/big')
  const after = await metrics()
  const down = metric(after, open, 'bytes_total', ',direction="down"') - metric(before, open, 'bytes_total', ',direction="down"')
  ok(down >= 20_000_000 && down < 24_000_000, `20 MB came, ${down} bytes were counted`)
  ok(metric(after, open, 'packets_total', ',direction="up"') > metric(before, open, 'packets_total', ',direction="up"'), 'no packets up')
  const points = (await api('GET', `/cube/v1/sandboxes/${open.sandboxId}/net`)).body
  const late = metric(await metrics(), open, 'bytes_total', ',direction="down"') - points.downBytes
  ok(late >= 0 && late < 100_000, `API and metrics differ by ${late} bytes`)
  await until(async () => {
    const newest = (await api('GET', `/sandboxes/${open.sandboxId}/metrics`)).body.at(-1)
    return newest && newest.networkReceivedBytes > 40_000_000 && newest.networkReceivedPackets > 0 && newest.networkSentPackets > 0
  }, 20_000, 'GET metrics has them')
})

await test('net: cube sandbox net and cube why tell rules, connections and what was denied', async () => {
  await open.commands.run('(exec 3<>/dev/tcp/93.184.216.34/80; sleep 60) >/dev/null 2>&1 & for i in 1 2 3; do curl -s -m 0.3 http://10.0.0.1:443/; done; true')
  const told = await until(async () => {
    const o = await net(open)
    return o.denied.some((d) => d.remote === '10.0.0.1' && d.remotePort === 443 && d.reason === 'denied range') &&
      o.sessions.some((x) => x.remote === '93.184.216.34' && x.state === 'established') && o
  }, 30_000, 'the denial is told')
  ok(told.drops['denied range'] >= 3 && told.sessionCount >= 1 && told.allowInternetAccess, JSON.stringify(told))
  const text = cube('sandbox', 'net', open.sandboxId)
  ok(/to 10\.0\.0\.1:443 \(tcp\) dropped: denied range/.test(text) && /tcp +93\.184\.216\.34:80 .*established/.test(text), text)
  ok(/Network: at least \d+ packets? to 10\.0\.0\.1:443 \(tcp\) dropped: denied range/.test(cube('why', open.sandboxId)), 'cube why')
})

await test('net: what a sandbox sends keeps it awake in idle mode, what is dropped does not', async () => {
  const s = await Sandbox.create('base', { metadata: { 'cube.idle': '6' }, timeoutMs: 120_000 })
  const state = async () => (await api('GET', `/cube/v1/sandboxes/${s.sandboxId}`)).body
  await s.commands.run('(for i in $(seq 20); do echo x > /dev/udp/93.184.216.34/9; sleep 1; done; while :; do echo x > /dev/udp/10.0.0.1/9; sleep 2; done) >/dev/null 2>&1 &')
  let egress = false
  // the command's own stream is a reason, too, for some seconds
  for (const end = Date.now() + 18_000; Date.now() < end && !egress; await new Promise((r) => setTimeout(r, 200))) {
    const o = await state()
    egress ||= o.awake.reason === 'egress'
    equal(o.state, 'running', 'while it sends')
  }
  ok(egress, 'egress was never the reason')
  await until(async () => (await state()).state === 'paused', 60_000, 'only dropped packets: it is paused')
  await s.kill()
})

await test('net: rules of 100 000 entries are refused with a clear word and change nothing', async () => {
  const many = Array.from({ length: 100_000 }, (_, i) => `${20 + (i >> 16)}.${(i >> 8) & 255}.${i & 255}.0/24`)
  const r = await api('PUT', `/sandboxes/${open.sandboxId}/network`, { denyOut: many })
  ok(r.status === 400 || r.status === 413, `status ${r.status}`)
  ok(/denyOut|1024|large/i.test(r.body.message), r.body.message)
  ok(await fetchOk(open, 'http://93.184.216.34/repo.git/HEAD'), 'the network goes on')
})

await test('net: private, metadata and node addresses are out of reach', async () => {
  for (const host of ['10.9.9.9', '169.254.169.254', '93.184.216.1', '198.19.0.1'])
    ok(!(await fetchOk(open, `http://${host}/`, 1)), `${host} answered`)
})

await test('net: allow_internet_access false', async () => {
  const s = await Sandbox.create('base', { allowInternetAccess: false, timeoutMs: 60_000 })
  try {
    ok(!(await fetchOk(s, 'http://93.184.216.34/', 1)), 'the web answered')
  } finally {
    await s.kill()
  }
})

await test('net: allowOut with a name opens that name only', async () => {
  const s = await Sandbox.create('base', { network: { allowOut: ['www.allowed.test'], denyOut: ['0.0.0.0/0'] }, timeoutMs: 60_000 })
  try {
    ok(await fetchOk(s, 'http://www.allowed.test/'), 'the allowed name')
    ok(!(await fetchOk(s, 'http://other.test/', 1)), 'another name')
    ok(!(await fetchOk(s, 'http://1.1.1.1/', 1)), 'an address')
  } finally {
    await s.kill()
  }
})

await test('net: rules by name are not passed by a name server outside, nor by a changed rule', async () => {
  const s = await Sandbox.create('base', { network: { allowOut: ['www.allowed.test', '8.8.8.8'], denyOut: ['0.0.0.0/0'] }, timeoutMs: 60_000 })
  const ask = (server, name, seconds = 20) =>
    s.commands.run(`python3 - <<'PY'
import socket, struct
q = b'\\x12\\x34\\x01\\x00\\x00\\x01\\0\\0\\0\\0\\0\\0' + b''.join(bytes([len(x)]) + x.encode() for x in '${name}'.split('.')) + b'\\0\\0\\x01\\0\\x01'
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(${seconds})
s.sendto(q, ('${server}', 53))
try: print(socket.inet_ntoa(s.recv(512)[-4:]))
except TimeoutError: print('nothing')
PY`)
  try {
    equal((await ask('8.8.8.8', 'other.test')).stdout.trim(), '1.1.1.1', 'an allowed name server outside answers')
    ok(!(await fetchOk(s, 'http://1.1.1.1/', 1)), 'its answer opened an address')
    ok(!(await fetchOk(s, 'http://93.184.216.34/', 1)), 'open before it was asked for')
    ok(await fetchOk(s, 'http://www.allowed.test/repo.git/HEAD'), 'the allowed name')
    await s.updateNetwork({ allowOut: ['another.test'], denyOut: ['0.0.0.0/0'] })
    ok(!(await fetchOk(s, 'http://93.184.216.34/', 1)), 'an address of a name that is no longer allowed')
    equal((await ask('8.8.8.8', 'other.test', 1)).stdout.trim(), 'nothing', 'a name server that is no longer allowed')
  } finally {
    await s.kill()
  }
})

await test('net: rules change on a running sandbox', async () => {
  await open.updateNetwork({ denyOut: ['93.184.216.34'] })
  ok(!(await fetchOk(open, 'http://93.184.216.34/', 1)), 'denied address answered')
  await open.updateNetwork({})
  ok(await fetchOk(open, 'http://93.184.216.34/'), 'cleared rules')
})

await test('net: after pause and resume there is a network, in between nothing of it', async () => {
  const taps = () => execFileSync('ip', ['netns', 'exec', process.env.NET_NS, 'ls', '/sys/class/net'], { encoding: 'utf8' })
  const entries = () => JSON.parse(execFileSync('bpftool', ['-j', 'map', 'dump', 'pinned', `${process.env.CUBE_RUN_DIR}/bpf/vs/vs_forward`], { encoding: 'utf8' })).length
  await open.commands.run('(exec 3<>/dev/tcp/93.184.216.34/80; sleep 1000) >/dev/null 2>&1 &')
  await until(async () => entries() > 0 && metric(await metrics(), open, 'sessions', '') > 0, 20_000, 'a connection being open')
  const before = taps().split('\n').length
  ok(await open.pause(), 'pause')
  await until(async () => entries() === 0, 30_000, 'its sessions are freed')
  equal(metric(await metrics(), open, 'sessions', ''), -1, 'metrics of a paused sandbox')
  await until(async () => taps().split('\n').length <= before, 20_000, 'its TAP is freed')
  equal((await net(open)).away, 'it is paused', 'why it has no network')
  await Sandbox.connect(open.sandboxId, { timeoutMs: 600_000 })
  ok(await fetchOk(open, 'http://www.allowed.test/'), 'download')
})

await test('net: kill -9 of all daemons while a 100 MB download runs: it completes', async () => {
  await open.commands.run('rm -f done; (curl -sS --limit-rate 25M http://93.184.216.34/hundred | sha256sum > sum; touch done) >/dev/null 2>&1 &')
  const names = ['cube-api', 'cube-master', 'cube-lifecycle', 'cube-proxy', 'cube-relay', 'cube-node', 'cube-dns', 'cube-jailer']
  for (const name of names) process.kill(Number(readFileSync(`${process.env.CUBE_RUN_DIR}/pid/${name}`, 'utf8')), 'SIGKILL')
  const sum = await until(async () => {
    try {
      return (await open.commands.run('test -e done && cat sum', { timeoutMs: 3000 })).stdout
    } catch {
      return null
    }
  }, 60_000, 'the download ends')
  equal(sum.split(' ')[0], process.env.HUNDRED_SHA256, 'sha256')
})

await test('net: connections of a dead sandbox go with it', async () => {
  equal(await open.kill(), true, 'kill')
})

await test('net: what CubeVS keeps of a sandbox whose VM ended goes with it', async () => {
  const dump = (map) => JSON.parse(execFileSync('bpftool', ['-j', 'map', 'dump', 'pinned', `${process.env.CUBE_RUN_DIR}/bpf/vs/${map}`], { encoding: 'utf8' })).length
  const taps = () => execFileSync('ip', ['netns', 'exec', process.env.NET_NS, 'ls', '/sys/class/net'], { encoding: 'utf8' }).split('\n').filter((x) => /^c.{4}-/.test(x)).length
  await until(async () => dump('vs_forward') === 0, 30_000, 'no connection is open')
  const s = await Sandbox.create('base', { timeoutMs: 600_000 })
  await s.commands.run('(exec 3<>/dev/tcp/93.184.216.34/80; sleep 1000) >/dev/null 2>&1 &')
  await until(async () => dump('vs_forward') > 0, 20_000, 'a connection being open')
  const vms = `${process.env.CUBE_RUN_DIR}/jailer/vm`
  for (const name of readdirSync(vms)) { // all others are of the pool, or have ended
    if (existsSync(`${process.env.CUBE_RUN_DIR}/warm/${name}`) || existsSync(`${vms}/${name}/exit.json`)) continue
    try {
      process.kill(Number(readFileSync(`${vms}/${name}/record`, 'utf8').split(' ')[1]), 'SIGKILL')
    } catch {} // it was on its way out
  }
  await until(async () => dump('vs_forward') === 0, 20_000, 'its sessions are freed')
  await until(async () => dump('vs_sandboxes') <= taps(), 30_000, 'its entry is freed')
})
