// Real sandboxes and the world behind CubeVS: names, downloads, git, rules at create and later, daemons killed under a download.
import { readFileSync } from 'node:fs'
import { Sandbox } from 'e2b'
import { equal, ok, rejects, test, until } from './check.mjs'

const sha = process.env.BIG_SHA256
const fetchOk = async (s, url, seconds = 5) => {
  try {
    await s.commands.run(`curl -sS -o /dev/null --fail -m ${seconds} ${url}`)
    return true
  } catch {
    return false
  }
}

const open = await Sandbox.create('base', { timeoutMs: 600_000 })

await test('net: a real sandbox resolves a name and downloads byte-exact', async () => {
  const r = await open.commands.run('curl -sS -m 60 http://www.allowed.test/big | sha256sum')
  equal(r.stdout.split(' ')[0], sha, 'sha256')
})

await test('net: git clone from the world', async () => {
  const r = await open.commands.run('git clone -q http://www.allowed.test/repo.git && cat repo/README')
  equal(r.stdout, 'from the world\n', 'README of the clone')
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

await test('net: rules change on a running sandbox', async () => {
  await open.updateNetwork({ denyOut: ['93.184.216.34'] })
  ok(!(await fetchOk(open, 'http://93.184.216.34/', 1)), 'denied address answered')
  await open.updateNetwork({})
  ok(await fetchOk(open, 'http://93.184.216.34/'), 'cleared rules')
})

await test('net: after pause and resume there is a network', async () => {
  ok(await open.pause(), 'pause')
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
