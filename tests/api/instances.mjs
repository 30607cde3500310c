// Several instances of cube-api: they find the masters in Redis and follow their coming and going; request limits, quotas and create rates are
// those of all of them together.
import { equal, ok, test, until } from '../e2e/check.mjs'
import { Control } from '../lib/control.mjs'

const LIMIT = 192, WINDOW_S = 10

const c = await Control.start({ apis: 2, masters: 3, mastersUp: 2, nodes: 2,
  api: { master: 'discover', key_ttl: '100ms', rate_limit: LIMIT, rate_window: `${WINDOW_S}s` } })

const call = (url, method, path, body, key) => fetch(url + path, { method, headers: { 'X-API-Key': key, 'Content-Type': 'application/json' },
  body: body === undefined ? undefined : JSON.stringify(body) })

// A team of its own for each test, so that one test's requests are not in another's limit.
async function team(id, quotas = {}) {
  const r = await c.admin('POST', '/cube/v1/teams', { teamID: id, name: id, slug: id, ...quotas })
  equal(r.status, 201, await r.text())
  return c.key(id)
}

const creates = (key, n) => Promise.all(Array.from({ length: n }, async (_, i) => {
  const r = await call(c.apis[i % 2].url, 'POST', '/v2/sandboxes', { templateID: 'base' }, key)
  return { status: r.status, headers: r.headers, json: await r.json() }
}))

async function refused(all, good, part, what) {
  equal(all.filter((r) => r.status === 201).length, good, `${what}: creates that went through`)
  for (const r of all.filter((x) => x.status !== 201)) {
    equal([r.status, r.json.code, r.json.error_code], [429, 429, 'rate_limited'], `${what}: ${JSON.stringify(r.json)}`)
    ok(part.test(r.json.message), `${what}: ${r.json.message}`)
  }
}

await test('instances: a limit of requests holds for all instances together', async () => {
  const key = await team('limited')
  const seen = { tries: 0 }
  // A window of the limit that ends meanwhile would count anew: such a round is done again.
  await until(async () => {
    const first = await call(c.apis[0].url, 'GET', '/sandboxes', undefined, key)
    const left = Number(first.headers.get('ratelimit-reset'))
    if (first.status !== 200 || left < WINDOW_S / 2) return false
    seen.tries++
    const status = [], remaining = []
    for (let i = 1; i < LIMIT + 60; i++) {
      const r = await call(c.apis[i % 2].url, 'GET', '/sandboxes', undefined, key)
      await r.arrayBuffer()
      if (Number(r.headers.get('ratelimit-reset')) > left) return false
      status.push(r.status)
      remaining.push(Number(r.headers.get('ratelimit-remaining')))
      seen.last = r
    }
    seen.passed = 1 + status.filter((s) => s === 200).length
    seen.remaining = remaining
    return true
  }, 8 * WINDOW_S * 1000, 'a round within one window')
  // What one instance may take before the others hear of it is a 64th of the limit.
  ok(seen.passed >= LIMIT && seen.passed <= LIMIT + LIMIT / 16, `${seen.passed} of ${LIMIT} went through`)
  equal(seen.last.status, 429, 'the last one')
  equal([seen.last.headers.get('ratelimit-limit'), seen.last.headers.get('ratelimit-remaining')], [String(LIMIT), '0'], 'headers')
  const wait = Number(seen.last.headers.get('retry-after'))
  ok(Number.isInteger(wait) && wait >= 1 && wait <= WINDOW_S, `Retry-After: ${wait}`)
  ok(seen.remaining[99] < LIMIT - 85, `after 101 requests over both, the second knows of the first: ${seen.remaining[99]} remain`)
  const other = await call(c.apis[0].url, 'GET', '/sandboxes', undefined, c.apiKey)
  equal(other.status, 200, 'another team is not touched')
})

await test('instances: quotas of sandboxes, vCPUs and memory hold over two instances and two masters, and say what is reached', async () => {
  await refused(await creates(await team('q1', { maxSandboxes: 5 }), 20), 5, /maximum number of concurrent E2B sandboxes \(5\)/, 'sandboxes')
  await refused(await creates(await team('q2', { maxVcpus: 3 }), 12), 3, /limit of vcpus is reached \(limit 3 vCPUs, in use 3\)/, 'vCPUs')
  await refused(await creates(await team('q3', { maxMemoryMB: 600 }), 12), 2, /limit of memory is reached \(limit 600 MiB, in use 512\)/, 'memory')
})

await test('instances: the create rate holds over two instances, and says when to come back', async () => {
  const key = await team('q4', { createsPerSecond: 2 })
  const all = await creates(key, 12)
  const good = all.filter((r) => r.status === 201).length
  ok(good >= 2 && good < 12, `${good} of 12 at a rate of 2 per second`)
  await refused(all, good, /create rate of the team exceeded \(2 per second\)/, 'rate')
  for (const r of all.filter((x) => x.status === 429)) ok(Number(r.headers.get('retry-after')) >= 1, 'Retry-After')
  await until(async () => (await creates(key, 1))[0].status === 201, 10000, 'creates go through again')
})

await test('instances: a master that is new is used, one that is killed is left', async () => {
  const key = await team('found')
  const create = async (what) => {
    for (const [i, api] of c.apis.entries()) {
      const r = await call(api.url, 'POST', '/v2/sandboxes', { templateID: 'base' }, key)
      equal(r.status, 201, `${what}: instance ${i}: ${await r.text()}`)
    }
  }
  await create('with two masters')
  await c.crash('master0')
  await create('after one was killed')
  await c.master(2) // neither instance was ever told its address
  const line = `127.0.0.1:${c.masters[2].port}`
  await until(() => ['api', 'api1'].every((name) => c.log(name).includes(line)), 10000, 'both instances know the new master')
  await until(async () => {
    const nodes = await (await fetch(`http://127.0.0.1:${c.masters[2].admin}/readyz`)).text()
    return /ok|ready/i.test(nodes)
  }, 30000, 'the new master is ready')
  await c.crash('master1')
  await create('with the new master alone')
})

await test('instances: without any master an instance says that it is not ready, and waits', async () => {
  const key = await team('waits')
  await c.crash('api1')
  await c.crash('master2')
  await until(async () => {
    await c.api(1)
    const r = await fetch(`${c.apis[1].adminUrl}/readyz`)
    const text = await r.text()
    if (r.status === 503 && text.includes('no master is known')) return true
    await c.crash('api1') // the announcement of the dead master still stands in Redis
    return false
  }, 20000, 'not ready')
  const early = call(c.apis[1].url, 'POST', '/v2/sandboxes', { templateID: 'base' }, key)
  await c.master(1)
  equal((await early).status, 201, 'a request that came before the master waited for it')
  equal((await fetch(`${c.apis[1].adminUrl}/readyz`)).status, 200, 'ready')
})

await test('instances: all end cleanly', async () => {
  equal(await c.stop(), [], 'what the logs say')
})
