// Every endpoint of cube-api against a real master, Redis and simulated nodes: statuses, bodies, headers.
import { execFileSync } from 'node:child_process'
import { equal, ok, test, until } from '../e2e/check.mjs'
import { Control } from '../lib/control.mjs'

const c = await Control.start({ nodes: 2, api: { key_ttl: '100ms' } })

async function call(method, path, body, headers = {}) {
  const r = await fetch(c.url + path, {
    method,
    headers: { 'X-API-Key': c.apiKey, ...(body === undefined ? {} : { 'Content-Type': 'application/json' }), ...headers },
    body: body === undefined ? undefined : typeof body === 'string' ? body : JSON.stringify(body),
  })
  const text = await r.text()
  let json
  try { json = JSON.parse(text) } catch { json = undefined }
  return { status: r.status, headers: r.headers, text, json }
}

const create = async (body = {}, headers = {}) => {
  const r = await call('POST', '/v2/sandboxes', { templateID: 'base', metadata: {}, envVars: {}, ...body }, headers)
  if (r.status !== 201) throw new Error(`create: ${r.status} ${r.text}`)
  return r.json
}
const teamKey = async (id) => {
  equal((await c.admin('POST', '/cube/v1/teams', { teamID: id, name: id })).status, 201, `team ${id}`)
  return c.key(id)
}
const kill = (id) => call('DELETE', `/sandboxes/${id}`)
const metric = async (name) => {
  const text = await (await fetch(c.adminUrl + '/metrics')).text()
  const line = text.split('\n').find((l) => l.startsWith(name + ' ') || l.startsWith(name + '{'))
  return line === undefined ? undefined : Number(line.split(' ').at(-1))
}
const isError = (r, status, part, what) => {
  equal(r.status, status, `${what}: status`)
  ok(r.json, `${what}: the body is JSON, got ${r.text}`)
  equal(r.json.code, status, `${what}: code is the status as a number`)
  ok(typeof r.json.message === 'string' && r.json.message.includes(part), `${what}: message "${r.json.message}" has "${part}"`)
}

await test('api: health and the OpenAPI document need no key', async () => {
  const h = await fetch(c.url + '/health')
  equal(h.status, 200, 'health')
  const d = await (await fetch(c.url + '/openapi.json')).json()
  equal(d.openapi, '3.0.3', 'version')
  ok(d.paths['/v2/sandboxes'].post, 'create is there')
})

await test('api: every operation of the document is routed; the missing ones answer 501 with their name', async () => {
  const d = await (await fetch(c.url + '/openapi.json')).json()
  let missing = 0, there = 0
  for (const [path, operations] of Object.entries(d.paths))
    for (const [method, operation] of Object.entries(operations)) {
      const concrete = path.replace(/\{[^}]*\}/g, 'x1')
      const anonymous = await fetch(c.url + concrete, { method: method.toUpperCase() })
      const text = await anonymous.text()
      if (operation.security.length) {
        equal(anonymous.status, 401, `${method} ${path} without a key`)
        ok(JSON.parse(text).code === 401, 'the 401 is JSON')
      }
      if (!operation['x-not-implemented']) { there++; continue }
      missing++
      const admin = operation.security.some((s) => s.AdminTokenAuth)
      const r = admin ? await c.admin(method.toUpperCase(), concrete) : await fetch(c.url + concrete, { method: method.toUpperCase(), headers: { 'X-API-Key': c.apiKey } })
      equal(r.status, 501, `${method} ${path}`)
      const body = await r.json()
      ok(body.code === 501 && body.message.includes(operation.operationId), `${method} ${path}: ${body.message}`)
    }
  ok(there >= 50, `${there} operations are there, ${missing} are missing`)
})

// What waits for a later part: all of it, each by name with what it waits for. The day one of them works, this test fails and its name goes.
const LATER = {
  'the template builder': 'template_create_v3 template_file template_build_start template_build_status template_build_logs template_create_v2 ' +
    'template_create_v1 template_rebuild_v1 template_build_start_v1 admin_cancel_builds',
  'template tags': 'template_tags_assign template_tags_remove template_tag_assignments template_tags template_tags_count template_tags_exists ' +
    'template_tags_groups',
  'promoted templates': 'template_defaults',
  'template visibility': 'template_update_v2 template_update_v1',
  volumes: 'volume_list volume_create volume_get volume_delete volume_path_get volume_path_update volume_path_delete volume_dir_list ' +
    'volume_dir_create volume_file_read volume_file_write',
  secrets: 'secret_list secret_create secret_get secret_update secret_delete',
  events: 'event_list event_list_one',
  webhooks: 'webhook_list webhook_create webhook_get webhook_update webhook_delete',
}
await test('api: what waits for a later part is just this, and says so', async () => {
  const later = new Map(Object.entries(LATER).flatMap(([what, names]) => names.split(' ').map((name) => [name, what])))
  const d = await (await fetch(c.url + '/openapi.json')).json()
  const rows = Object.entries(d.paths).flatMap(([path, operations]) => Object.entries(operations).map(([method, o]) => ({ path, method, ...o })))
  const missing = rows.filter((o) => o['x-not-implemented'])
  equal(missing.map((o) => o.operationId).sort(), [...later.keys()].sort(), 'operations that answer 501')
  for (const o of missing) {
    const headers = { 'X-API-Key': c.apiKey, 'Content-Type': 'application/json' }
    if (o.security.some((x) => x.AdminTokenAuth)) headers['X-Admin-Token'] = c.adminToken
    const method = o.method.toUpperCase()
    const r = await fetch(c.url + o.path.replace(/\{[^}]*\}/g, 'x1'), { method, headers, body: method === 'GET' ? undefined : '{}' })
    isError({ status: r.status, json: await r.json() }, 501, `needs ${later.get(o.operationId)}`, o.operationId)
  }
  // Options of operations that are there, whose part is not: 400 that names the option.
  for (const [name, body] of [['volumeMounts', { volumeMounts: [{ name: 'v', path: '/v' }] }],
    ['iam', { iam: { tokens: { t: { audience: 'a', tokenType: 'JWT-SVID' } } } }],
    ['egressProxy', { network: { egressProxy: { address: 'h:1' } } }], ['rules', { network: { rules: { 'a.b': [{}] } } }]])
    isError(await call('POST', '/v2/sandboxes', { templateID: 'base', ...body }), 400, name, name)
})

await test('api: create, get, list, kill', async () => {
  const s = await create({ metadata: { k: 'v"ä\n' }, timeout: 60 })
  ok(/^i[a-z0-9]{20}$/.test(s.sandboxID), s.sandboxID)
  equal(s.clientID, '6532622b', 'clientID')
  ok(/^[0-9a-f]{64}$/.test(s.envdAccessToken), 'token')
  equal(s.trafficAccessToken, null, 'no traffic token')
  equal(s.domain, null, 'no domain')
  const d = await call('GET', `/sandboxes/${s.sandboxID}`)
  equal(d.status, 200, 'get')
  equal(d.json.state, 'running', 'state')
  equal(d.json.metadata, { k: 'v"ä\n' }, 'metadata')
  equal(d.json.envdAccessToken, s.envdAccessToken, 'the token is stable')
  equal(d.json.lifecycle, { autoResume: false, onTimeout: 'kill' }, 'lifecycle')
  ok(!('network' in d.json), 'network is absent')
  equal(Math.round((Date.parse(d.json.endAt) - Date.parse(d.json.startedAt)) / 1000), 60, 'timeout')
  for (const field of ['cpuCount', 'memoryMB', 'diskSizeMB']) ok(Number.isInteger(d.json[field]) && d.json[field] > 0, field)
  const legacy = await call('GET', `/sandboxes/${s.sandboxID}-6532622b`)
  equal(legacy.json.sandboxID, s.sandboxID, 'an ID with the old suffix')
  const list = await call('GET', '/v2/sandboxes')
  equal(list.headers.get('x-total-running'), '1', 'X-Total-Running')
  equal(list.headers.get('x-next-token'), null, 'no further page')
  equal(list.json.length, 1, 'listed')
  ok(!('envdAccessToken' in list.json[0]) && !('lifecycle' in list.json[0]), 'no secrets in lists')
  equal((await kill(s.sandboxID)).status, 204, 'kill')
  isError(await kill(s.sandboxID), 404, 'not found', 'the second kill')
  isError(await call('GET', `/sandboxes/${s.sandboxID}`), 404, 'not found', 'get after kill')
  equal((await c.node('count')).running, 0, 'the node runs nothing')
})

await test('api: the old create has its own defaults', async () => {
  const r = await call('POST', '/sandboxes', { templateID: 'base' })
  equal(r.status, 201, r.text)
  ok(!('envdAccessToken' in r.json), 'not secured, no token')
  const d = (await call('GET', `/sandboxes/${r.json.sandboxID}`)).json
  equal(Math.round((Date.parse(d.endAt) - Date.parse(d.startedAt)) / 1000), 15, 'timeout')
  const secured = await call('POST', '/sandboxes', { templateID: 'base', secure: true, timeout: 300, allow_internet_access: true })
  ok(secured.json.envdAccessToken, 'secured, token')
  await kill(r.json.sandboxID)
  await kill(secured.json.sandboxID)
})

await test('api: wrong bodies are 400 with what is wrong', async () => {
  const rows = [
    ['', 'body is required'], ['{', 'not valid JSON'], ['[]', 'must be a JSON object'], ['{}', "'templateID' is missing"],
    ['{"templateID":"base","timeout":0}', 'Timeout must be greater than 0'],
    ['{"templateID":"base","timeout":"x"}', "'timeout' must be an integer"],
    ['{"templateID":"base","autoPauseMemory":false}', 'autoPauseMemory'],
    ['{"templateID":"base","metadata":{"a":1}}', "'metadata.a' must be a string"],
    ['{"templateID":"base","volumeMounts":[{"name":"a","path":"/a"}]}', "'volumeMounts' is not supported"],
    ['{"templateID":"base","network":{"allowOut":["example.com"]}}', '0.0.0.0/0'],
    ['{"templateID":"base","a":' + '['.repeat(5000) + ']'.repeat(5000) + '}', 'nested deeper'],
    ['{"templateID":"\u0000"}', 'not valid JSON'],
    ['{"templateID":"' + 'a'.repeat(2000) + '"}', 'at most'],
    ['{"templateID":"base","metadata":{"k":"' + 'x'.repeat(10 << 20) + '"}}', "'metadata' is larger"],
  ]
  for (const [body, part] of rows) isError(await call('POST', '/v2/sandboxes', body || undefined), 400, part, body.slice(0, 60))
  isError(await call('POST', '/v2/sandboxes', { templateID: 'nosuch' }), 404, 'nosuch', 'unknown template')
  isError(await call('POST', '/v2/sandboxes', { templateID: 'base' }, { 'Idempotency-Key': 'No!' }), 400, 'Idempotency-Key', 'key')
  equal((await c.node('count')).running, 0, 'nothing was started')
})

await test('api: an unknown field is accepted with a Warning and counted', async () => {
  const before = await metric('cube_api_unknown_fields_total')
  const r = await call('POST', '/v2/sandboxes', { templateID: 'base', brandNew: { a: 1 } })
  equal(r.status, 201, r.text)
  ok(r.headers.get('warning')?.includes('brandNew'), r.headers.get('warning'))
  equal(await metric('cube_api_unknown_fields_total'), before + 1, 'metric')
  await kill(r.json.sandboxID)
})

await test('api: lists are paged, ordered and filtered', async () => {
  const ids = []
  for (let i = 0; i < 5; i++) ids.push((await create({ metadata: { n: String(i), 'a b': 'c&d', group: i < 2 ? 'x' : 'y' } })).sandboxID)
  const pages = async (query) => {
    const found = []
    for (let token = '', n = 0; n < 10; n++) {
      const r = await call('GET', `/v2/sandboxes?limit=2&${query}${token && `&nextToken=${encodeURIComponent(token)}`}`)
      equal(r.status, 200, r.text)
      ok(r.json.length <= 2, 'limit')
      found.push(...r.json.map((s) => s.sandboxID))
      token = r.headers.get('x-next-token') ?? ''
      if (!token) return found
    }
    throw new Error('the pages do not end')
  }
  const all = await pages('')
  equal([...all].sort(), [...ids].sort(), 'all, once')
  const started = Object.fromEntries((await call('GET', '/v2/sandboxes')).json.map((s) => [s.sandboxID, Date.parse(s.startedAt)]))
  ok(all.every((id, i) => i === 0 || started[all[i - 1]] >= started[id]), 'newest first')
  equal(await pages('order=asc'), [...all].reverse(), 'oldest first is the reverse')
  const filter = (o) => encodeURIComponent(new URLSearchParams(Object.entries(o).map((pair) => pair.map(encodeURIComponent))).toString())
  equal((await pages(`metadata=${filter({ group: 'x' })}`)).sort(), ids.slice(0, 2).sort(), 'metadata filter')
  equal(await pages(`metadata=${filter({ group: 'x', n: '1' })}`), [ids[1]], 'metadata filters are joined by AND')
  equal((await pages(`metadata=${filter({ 'a b': 'c&d' })}`)).length, 5, 'metadata with special characters')
  equal(await pages(`metadata=${filter({ group: 'z' })}`), [], 'no match')
  equal((await pages('template=base')).length, 5, 'template filter by alias')
  equal(await pages('template=other'), [], 'template filter without match')
  equal((await pages(`startedAfter=${encodeURIComponent(new Date(started[ids[4]] + 1000).toISOString())}`)).length, 0, 'startedAfter')
  equal((await call('POST', `/sandboxes/${ids[0]}/pause`, {})).status, 204, 'pause')
  equal(await pages('state=paused'), [ids[0]], 'paused')
  equal((await pages('state=running')).length, 4, 'running')
  equal((await pages('state=running,paused')).length, 5, 'both')
  equal((await call('GET', '/sandboxes')).json.length, 4, 'the old list has running ones only')
  const token = (await call('GET', '/v2/sandboxes?limit=1')).headers.get('x-next-token')
  isError(await call('GET', `/v2/sandboxes?order=asc&nextToken=${encodeURIComponent(token)}`), 400, 'Invalid next token', 'token of another order')
  for (const bad of ['x', '%00', 'A'.repeat(600), '!!!!']) equal((await call('GET', `/v2/sandboxes?nextToken=${bad}`)).status, 400, `token ${bad.slice(0, 9)}`)
  for (const bad of ['limit=0', 'limit=101', 'limit=x', 'state=dead', 'order=up', 'startedAfter=yesterday', 'template=a:b', 'metadata=%25', 'metadata=x'])
    equal((await call('GET', `/v2/sandboxes?${bad}`)).status, 400, bad)
  for (const id of ids) await kill(id)
})

await test('api: an idempotency key makes one sandbox', async () => {
  const headers = { 'Idempotency-Key': 'once-' + Date.now() }
  const [a, b] = await Promise.all([create({}, headers), create({}, headers)])
  const again = await create({}, headers)
  equal(new Set([a.sandboxID, b.sandboxID, again.sandboxID]).size, 1, 'one ID')
  equal((await c.node('count')).running, 1, 'one VM')
  await kill(a.sandboxID)
})

await test('api: pause, connect and resume in both generations', async () => {
  const { sandboxID: id, envdAccessToken } = await create({ timeout: 600 })
  isError(await call('POST', `/sandboxes/${id}/resume`, {}), 409, '', 'resume of a running one')
  const before = (await call('GET', `/sandboxes/${id}`)).json
  equal((await call('POST', `/v2/sandboxes/${id}/connect`)).status, 200, 'connect without a body')
  equal((await call('POST', `/v2/sandboxes/${id}/connect`, { timeout: 10 })).status, 200, 'connect')
  equal((await call('GET', `/sandboxes/${id}`)).json.endAt, before.endAt, 'connect does not shorten')
  await call('POST', `/v2/sandboxes/${id}/connect`, { timeout: 1200 })
  ok((await call('GET', `/sandboxes/${id}`)).json.endAt > before.endAt, 'connect extends')
  equal((await call('POST', `/sandboxes/${id}/pause`)).status, 204, 'pause without a body')
  isError(await call('POST', `/sandboxes/${id}/pause`, {}), 409, 'already paused', 'second pause')
  equal((await call('GET', `/sandboxes/${id}`)).json.state, 'paused', 'state')
  isError(await call('POST', `/sandboxes/${id}/timeout`, { timeout: 10 }), 409, '', 'timeout of a paused one')
  const r = await call('POST', `/v2/sandboxes/${id}/connect`, {})
  equal(r.status, 201, 'connect resumes')
  equal(r.json.envdAccessToken, envdAccessToken, 'the token is the same')
  equal((await call('POST', `/sandboxes/${id}/pause`, { memory: true })).status, 204, 'old pause')
  const resumed = await call('POST', `/sandboxes/${id}/resume`, {})
  equal(resumed.status, 201, `old resume: ${resumed.text}`)
  await call('POST', `/sandboxes/${id}/pause`, { memory: false })
  equal((await call('GET', `/sandboxes/${id}`)).json.pauseMode, 'filesystem', 'filesystem-only pause')
  isError(await call('POST', `/sandboxes/${id}/connect`, {}), 400, "'timeout' is missing", 'old connect needs a timeout')
  equal((await call('POST', `/sandboxes/${id}/connect`, { timeout: 300 })).status, 201, 'old connect')
  await call('POST', `/sandboxes/${id}/pause`, {})
  equal((await kill(id)).status, 204, 'kill of a paused one')
  isError(await call('POST', `/v2/sandboxes/${id}/connect`, {}), 404, '', 'connect after kill')
  isError(await call('POST', `/sandboxes/${id}/pause`, {}), 404, '', 'pause after kill')
})

await test('api: timeout sets, refreshes only extend', async () => {
  const { sandboxID: id } = await create({ timeout: 600 })
  const left = async () => Math.round((Date.parse((await call('GET', `/sandboxes/${id}`)).json.endAt) - Date.now()) / 1000)
  equal((await call('POST', `/sandboxes/${id}/timeout`, { timeout: 100 })).status, 204, 'timeout')
  ok(Math.abs(await left() - 100) <= 30, 'shorter')
  equal((await call('POST', `/sandboxes/${id}/refreshes`, { duration: 20 })).status, 204, 'refresh')
  ok(Math.abs(await left() - 100) <= 30, 'a refresh does not shorten')
  equal((await call('POST', `/sandboxes/${id}/refreshes`, { duration: 200 })).status, 204, 'refresh')
  ok(Math.abs(await left() - 200) <= 30, 'a refresh extends')
  isError(await call('POST', `/sandboxes/${id}/refreshes`, { duration: 3601 }), 400, 'duration', 'too long')
  isError(await call('POST', `/sandboxes/${id}/timeout`, {}), 400, 'timeout', 'no timeout')
  isError(await call('POST', `/sandboxes/${id}/timeout`, { timeout: -1 }), 400, 'timeout', 'negative')
  await kill(id)
  isError(await call('POST', `/sandboxes/${id}/timeout`, { timeout: 10 }), 404, '', 'after kill')
  isError(await call('POST', `/sandboxes/${id}/refreshes`, {}), 404, '', 'after kill')
})

await test('api: metrics and logs', async () => {
  const { sandboxID: id } = await create()
  const m = await call('GET', `/sandboxes/${id}/metrics`)
  equal(m.status, 200, m.text)
  for (const f of ['timestamp', 'timestampUnix', 'cpuCount', 'cpuUsedPct', 'memUsed', 'memTotal', 'memCache', 'diskUsed', 'diskTotal'])
    ok(m.json.length === 0 || f in m.json[0], f)
  const many = await call('GET', `/sandboxes/metrics?sandbox_ids=${id},i0aaaaaaaaaaaaaaaaaaa`)
  equal(many.status, 200, many.text)
  ok('sandboxes' in many.json, 'sandboxes')
  isError(await call('GET', '/sandboxes/metrics'), 400, 'sandbox_ids', 'no IDs')
  const v1 = await call('GET', `/sandboxes/${id}/logs?start=0&limit=10`)
  equal(v1.status, 200, v1.text)
  for (const l of v1.json.logs) ok(typeof JSON.parse(l.line).level === 'string', 'each line is JSON with a level')
  ok(Array.isArray(v1.json.logEntries), 'logEntries')
  const v2 = await call('GET', `/v2/sandboxes/${id}/logs?direction=forward&level=info&search=x`)
  equal(v2.status, 200, v2.text)
  ok(Array.isArray(v2.json.logs), 'logs')
  isError(await call('GET', `/v2/sandboxes/${id}/logs?direction=up`), 400, 'direction', 'direction')
  isError(await call('GET', `/v2/sandboxes/${id}/logs?limit=1001`), 400, 'limit', 'limit')
  await kill(id)
})

await test('api: the operator counts what runs, over all teams', async () => {
  const key = await teamKey('counted')
  const counts = async () => (await c.admin('GET', '/admin/sandboxes/running-counts')).json()
  ok(!('counted' in await counts()), 'a team without sandboxes is left out')
  const made = await Promise.all([1, 2].map(() => create({}, { 'X-API-Key': key })))
  equal((await counts()).counted, 2, 'two run')
  await call('POST', `/sandboxes/${made[0].sandboxID}/pause`, {}, { 'X-API-Key': key })
  equal((await counts()).counted, 1, 'a paused one does not count')
  isError(await call('GET', '/admin/sandboxes/running-counts'), 403, 'operator', 'a team key')
  for (const s of made) await call('DELETE', `/sandboxes/${s.sandboxID}`, undefined, { 'X-API-Key': key })
  ok(!('counted' in await counts()), 'none runs')
})

await test('api: metrics of the own team, minute by minute', async () => {
  const headers = { 'X-API-Key': await teamKey('measured') }
  const of = async (query, path = '') => {
    const r = await call('GET', `/teams/measured/metrics${path}?${query}`, undefined, headers)
    equal(r.status, 200, r.text)
    return r.json
  }
  // Three hours ago it had three, in minute 10 two more came and one went, in minute 30 the last four went.
  const hour = Math.floor(Date.now() / 3600000) - 3, at = (minute) => (hour * 60 + minute) * 60
  execFileSync('redis-cli', ['-p', String(c.ports.redis), 'HSET', `{c0}:tm:measured:${hour}`, 'first', '3', '10', '5 4 2', '30', '4 0 0'])
  const then = `start=${at(9)}&end=${at(31) + 59}`
  const minutes = await of(then)
  equal(minutes.map((p) => p.concurrentSandboxes), [3, 5, ...Array(20).fill(4), 0], 'sandboxes at once')
  equal(minutes.map((p) => p.sandboxStartRate), [0, 0.0333, ...Array(21).fill(0)], 'starts per second')
  equal([minutes[1].timestampUnix, minutes[1].timestamp], [at(10), new Date(at(10) * 1000).toISOString()], 'the second minute')
  equal(await of(`${then}&metric=concurrent_sandboxes`, '/max'), { timestamp: new Date(at(10) * 1000).toISOString(), timestampUnix: at(10), value: 5 }, 'most')
  equal((await of(`${then}&metric=sandbox_start_rate`, '/max')).value, 0.0333, 'highest rate')
  equal((await of(`start=${at(40)}&end=${at(41)}`)).map((p) => p.concurrentSandboxes), [0, 0], 'after the last change')
  ok((await of('start=0')).length <= 1000, 'an answer about all time stays small')
  equal(await of(`start=${at(0) + 86400 * 365}&end=${at(0) + 86400 * 366}`), [], 'the future')
  // And what happens now.
  const start = Math.floor(Date.now() / 1000)
  const made = await Promise.all([1, 2].map(() => create({}, headers)))
  for (const s of made) await call('DELETE', `/sandboxes/${s.sandboxID}`, undefined, headers)
  await create({}, headers)
  const now = await of(`start=${start}`)
  equal([Math.max(...now.map((p) => p.concurrentSandboxes)), (await of(`start=${start}&metric=concurrent_sandboxes`, '/max')).value], [2, 2], 'most at once')
  ok((await of(`start=${start}&metric=sandbox_start_rate`, '/max')).value > 0, 'starts are counted')
  for (const query of ['start=x', 'start=5&end=4', 'end=-1']) isError(await call('GET', `/teams/measured/metrics?${query}`, undefined, headers), 400, 'validation error', query)
  isError(await call('GET', '/teams/measured/metrics/max', undefined, headers), 400, "'metric'", 'no metric')
  isError(await call('GET', '/teams/measured/metrics/max?metric=cpu', undefined, headers), 400, "'metric'", 'unknown metric')
  isError(await call('GET', '/teams/measured/metrics'), 403, 'another team', 'of another team')
})

await test('api: keys are made, used, listed and revoked', async () => {
  const made = await call('POST', '/api-keys', { name: 'second' })
  equal(made.status, 201, made.text)
  ok(/^e2b_[0-9a-f]{40}$/.test(made.json.key), 'key')
  equal((await call('GET', '/v2/sandboxes', undefined, { 'X-API-Key': made.json.key })).status, 200, 'the new key works')
  const listed = (await call('GET', '/api-keys')).json.find((k) => k.id === made.json.id)
  ok(listed && !('key' in listed), 'listed without its text')
  ok(made.json.key.startsWith('e2b_' + listed.mask.maskedValuePrefix) && made.json.key.endsWith(listed.mask.maskedValueSuffix), 'mask')
  const renamed = await call('PATCH', `/api-keys/${made.json.id}`, { name: 'zweiter' })
  equal([renamed.status, renamed.json.name, renamed.json.id, 'key' in renamed.json], [200, 'zweiter', made.json.id, false], renamed.text)
  equal((await call('GET', '/api-keys')).json.find((k) => k.id === made.json.id).name, 'zweiter', 'the new name stays')
  equal((await call('GET', '/v2/sandboxes', undefined, { 'X-API-Key': made.json.key })).status, 200, 'it works under its new name')
  isError(await call('PATCH', `/api-keys/${made.json.id}`, {}), 400, 'name', 'renamed to nothing')
  isError(await call('PATCH', `/api-keys/${made.json.id}`, { name: 'x'.repeat(129) }), 400, 'name', 'renamed to too much')
  equal((await call('PATCH', '/api-keys/nosuch', { name: 'x' })).status, 404, 'no such key')
  equal((await call('PATCH', `/api-keys/${made.json.id}`, { name: 'x' }, { 'X-API-Key': await teamKey('renamer') })).status, 404, "another team's key")
  equal((await call('DELETE', `/api-keys/${made.json.id}`)).status, 204, 'revoke')
  await until(async () => (await call('GET', '/v2/sandboxes', undefined, { 'X-API-Key': made.json.key })).status === 401, 30000, 'the key is dead')
  equal((await call('DELETE', `/api-keys/${made.json.id}`)).status, 404, 'revoke again')
  isError(await call('POST', '/api-keys', {}), 400, 'name', 'no name')
  for (const wrong of ['', 'e2b_', 'x'.repeat(300), 'e2b_' + '0'.repeat(40)]) equal((await call('GET', '/v2/sandboxes', undefined, { 'X-API-Key': wrong })).status, 401, `key ${wrong.slice(0, 9)}`)
  const bearer = await fetch(c.url + '/teams', { headers: { Authorization: `Bearer ${c.apiKey}` } })
  equal((await bearer.json())[0], { teamID: 'default', name: 'Default', apiKey: c.apiKey, isDefault: true }, 'team')
  equal((await call('POST', '/access-tokens', { name: 'x' })).status, 410, 'access tokens are gone')
  equal((await call('DELETE', '/access-tokens/x')).status, 410, 'access tokens are gone')
})

await test('api: teams are kept apart', async () => {
  await c.admin('POST', '/cube/v1/teams', { teamID: 'other', name: 'Other' })
  const other = await c.key('other')
  const { sandboxID: id } = await create()
  const as = { 'X-API-Key': other }
  for (const [method, path, body] of [['GET', '', undefined], ['DELETE', '', undefined], ['POST', '/timeout', { timeout: 5 }], ['POST', '/pause', {}], ['POST', '/connect', { timeout: 5 }],
    ['GET', '/metrics', undefined], ['GET', '/logs', undefined]])
    ok([404].includes((await call(method, `/sandboxes/${id}${path}`, body, as)).status), `${method} ${path || '/'} of another team's sandbox is 404`)
  equal((await call('GET', '/v2/sandboxes', undefined, as)).json, [], 'the other team sees nothing')
  equal((await call('GET', `/sandboxes/${id}`)).json.state, 'running', 'untouched')
  const acting = await fetch(c.url + `/sandboxes/${id}`, { headers: { 'X-Admin-Token': c.adminToken, 'X-Team-ID': 'default' } })
  equal(acting.status, 200, 'the operator may act for a team')
  await kill(id)
})

await test('api: quotas answer 429 with the reason', async () => {
  await c.admin('POST', '/cube/v1/teams', { teamID: 'small', name: 'Small', maxSandboxes: 1, maxTimeout: 3600 })
  const key = { 'X-API-Key': await c.key('small') }
  const first = await call('POST', '/v2/sandboxes', { templateID: 'base' }, key)
  equal(first.status, 201, first.text)
  const second = await call('POST', '/v2/sandboxes', { templateID: 'base' }, key)
  isError(second, 429, 'maximum number of concurrent', 'one too many')
  equal(second.headers.get('retry-after'), null, 'no Retry-After: waiting does not help')
  isError(await call('POST', '/v2/sandboxes', { templateID: 'base', timeout: 3601 }, key), 400, 'Timeout cannot be greater than 1 hours', 'too long')
  await call('DELETE', `/sandboxes/${first.json.sandboxID}`, undefined, key)
  await c.admin('POST', '/cube/v1/teams', { teamID: 'slow', name: 'Slow', createsPerSecond: 1 })
  const slow = { 'X-API-Key': await c.key('slow') }
  const burst = await Promise.all(Array.from({ length: 20 }, () => call('POST', '/v2/sandboxes', { templateID: 'base' }, slow)))
  const refused = burst.filter((r) => r.status === 429)
  ok(refused.length >= 1, 'of twenty creates at once some are refused')
  for (const r of refused) ok(Number(r.headers.get('retry-after')) >= 1, 'Retry-After')
  for (const r of burst) if (r.status === 201) await call('DELETE', `/sandboxes/${r.json.sandboxID}`, undefined, slow)
})

await test('api: the operator sees and cordons nodes', async () => {
  isError(await call('GET', '/nodes'), 403, 'operator', 'a team key')
  const nodes = await (await c.admin('GET', '/nodes')).json()
  equal(nodes.map((n) => n.id).sort(), ['sim-1', 'sim-2'], 'nodes')
  equal((await c.admin('GET', '/nodes/sim-1')).status, 200, 'one node')
  equal((await c.admin('GET', '/nodes/nosuch')).status, 404, 'no such node')
  equal((await c.admin('POST', '/nodes/sim-1', { status: 'standby' })).status, 204, 'standby')
  equal((await c.admin('POST', '/cube/v1/nodes/sim-2/cordon')).status, 204, 'cordon')
  await until(async () => (await (await c.admin('GET', '/nodes')).json()).every((n) => n.status === 'standby'), 30000, 'both are cordoned')
  const r = await call('POST', '/v2/sandboxes', { templateID: 'base' })
  equal(r.status, 503, 'no node')
  ok(['sandbox_capacity_unavailable', 'sandbox_no_compatible_node'].includes(r.json.error_code), r.text)
  equal((await c.admin('POST', '/nodes/sim-1', { status: 'nonsense' })).status, 400, 'bad status')
  await c.admin('POST', '/nodes/sim-1', { status: 'ready' })
  await c.admin('POST', '/cube/v1/nodes/sim-2/uncordon')
  await until(async () => (await call('POST', '/v2/sandboxes', { templateID: 'base' })).status === 201, 30000, 'creates work again')
})

await test('api: the operator ends all sandboxes of a team', async () => {
  await create(); await create()
  const r = await c.admin('POST', '/admin/teams/default/sandboxes/kill')
  const body = await r.json()
  ok(r.status === 200 && body.killedCount >= 2 && body.failedCount === 0, JSON.stringify(body))
  equal((await call('GET', '/v2/sandboxes')).json, [], 'none is left')
})

await test('api: a sandbox tells its story, with the trace of the request', async () => {
  const trace = '0af7651916cd43dd8448eb211c80319c'
  const { sandboxID: id } = await create({ metadata: { 'cube.idle': '60' } }, { traceparent: `00-${trace}-b7ad6b7169203331-01` })
  const t = await call('GET', `/cube/v1/sandboxes/${id}/timeline`)
  equal(t.status, 200, t.text)
  ok(t.json.some((e) => e.trace?.includes(trace)), 'the trace of the create')
  const why = await call('GET', `/cube/v1/sandboxes/${id}/why`)
  ok(why.json.sentences.some((s) => s.includes('sim-')), 'the node is named')
  const d = (await call('GET', `/cube/v1/sandboxes/${id}`)).json
  equal([d.state, d.generation, d.mode], ['running', 1, 'idle'], 'detail')
  ok(/^sim-/.test(d.nodeID), d.nodeID)
  equal((await call('POST', `/cube/v1/sandboxes/${id}/lease`, { seconds: 120 })).status, 204, 'lease')
  isError(await call('POST', `/cube/v1/sandboxes/${id}/lease`, {}), 400, 'Timeout', 'lease without seconds')
  await kill(id)
})

await test('api: snapshots are made, listed, used and deleted', async () => {
  const { sandboxID: id } = await create()
  const made = await call('POST', `/sandboxes/${id}/snapshots`, {})
  equal(made.status, 201, made.text)
  ok(typeof made.json.snapshotID === 'string' && Array.isArray(made.json.names), made.text)
  const named = await call('POST', `/sandboxes/${id}/snapshots`, { name: 'saved' })
  equal(named.status, 201, named.text)
  const list = await call('GET', `/snapshots?sandboxID=${id}`)
  equal(list.json.map((s) => s.snapshotID).sort(), [made.json.snapshotID, named.json.snapshotID].sort(), 'listed')
  const from = await call('POST', '/v2/sandboxes', { templateID: made.json.snapshotID })
  equal(from.status, 201, from.text)
  const back = await call('POST', `/cube/v1/sandboxes/${id}/rollback`, { snapshotID: made.json.snapshotID })
  ok([200, 409].includes(back.status), `rollback: ${back.text}`)
  await kill(from.json.sandboxID)
  await kill(id)
  for (const s of [made, named]) equal((await call('DELETE', `/templates/${encodeURIComponent(s.json.snapshotID)}`)).status, 204, `delete ${s.json.snapshotID}`)
  equal((await call('GET', '/snapshots')).json, [], 'none is left')
  equal((await call('POST', `/sandboxes/${id}/snapshots`, {})).status, 404, 'of a dead sandbox')
})

await test('api: forks', async () => {
  const { sandboxID: id } = await create()
  const r = await call('POST', `/sandboxes/${id}/fork`, { count: 3, timeout: 60 })
  equal(r.status, 201, r.text)
  equal(r.json.length, 3, 'three')
  for (const f of r.json) ok(/^i[a-z0-9]{20}$/.test(f.sandbox?.sandboxID) && f.sandbox.sandboxID !== id, JSON.stringify(f))
  equal(new Set(r.json.map((f) => f.sandbox.envdAccessToken)).size, 3, 'each has its own token')
  for (const bad of [{ count: 0 }, { count: 101 }, { count: 'x' }, { timeout: 0 }]) equal((await call('POST', `/sandboxes/${id}/fork`, bad)).status, 400, JSON.stringify(bad))
  for (const f of r.json) await kill(f.sandbox.sandboxID)
  await kill(id)
  equal((await call('POST', `/sandboxes/${id}/fork`, {})).status, 404, 'of a dead sandbox')
})

await test('api: network rules are set and replaced', async () => {
  const r = await call('POST', '/v2/sandboxes', { templateID: 'base', network: { allowOut: ['1.1.1.1', '*.example.com'], denyOut: ['0.0.0.0/0'] } })
  equal(r.status, 201, r.text)
  const id = r.json.sandboxID
  equal((await call('GET', `/sandboxes/${id}`)).json.network.allowOut, ['1.1.1.1', '*.example.com'], 'shown')
  equal((await call('PUT', `/sandboxes/${id}/network`, { denyOut: ['8.8.8.8'] })).status, 204, 'replaced')
  equal((await call('GET', `/sandboxes/${id}`)).json.network, { denyOut: ['8.8.8.8'] }, 'what is not named is cleared')
  equal((await call('PUT', `/sandboxes/${id}/network`, { allow_internet_access: false })).status, 204, 'no internet')
  equal((await call('GET', `/sandboxes/${id}`)).json.allowInternetAccess, false, 'shown')
  const odd = await call('PUT', `/sandboxes/${id}/network`, { denyOut: ['9.9.9.9'], allowPublicTraffic: false })
  equal(odd.status, 204, odd.text)
  ok(/allowPublicTraffic/.test(odd.headers.get('warning')), 'a field that is none of this call is named')
  equal((await call('GET', `/sandboxes/${id}`)).json.network, { denyOut: ['9.9.9.9'] }, 'and is not shown as if it were in force')
  isError(await call('PUT', `/sandboxes/${id}/network`, { allowOut: ['example.com'] }), 400, '0.0.0.0/0', 'a name without deny-all')
  isError(await call('PUT', `/sandboxes/${id}/network`, { dnsServers: ['1.1.1.1'] }), 400, 'dnsServers', 'not supported')
  await kill(id)
  equal((await call('PUT', `/sandboxes/${id}/network`, {})).status, 404, 'of a dead sandbox')
  const priv = await call('POST', '/v2/sandboxes', { templateID: 'base', network: { allowPublicTraffic: false, maskRequestHost: 'x.example' } })
  equal((await call('PUT', `/sandboxes/${priv.json.sandboxID}/network`, { denyOut: ['8.8.8.8'] })).status, 204, 'the way out of a private one')
  equal((await call('GET', `/sandboxes/${priv.json.sandboxID}`)).json.network, { denyOut: ['8.8.8.8'], allowPublicTraffic: false, maskRequestHost: 'x.example' },
    'the way in stays what it is, and is shown')
  await kill(priv.json.sandboxID)
})

await test('api: templates are read by ID and alias', async () => {
  const alias = await call('GET', '/templates/aliases/base')
  equal(alias.json, { templateID: c.template, public: true }, 'alias')
  isError(await call('GET', '/templates/aliases/nosuch'), 404, 'nosuch', 'unknown alias')
  const one = await call('GET', `/templates/${c.template}`)
  equal(one.json.templateID, c.template, 'by ID')
  equal(one.json.builds.length, 1, 'builds')
  ok(Array.isArray((await call('GET', '/templates')).json), 'list')
  ok(Array.isArray((await call('GET', '/v2/templates')).json), 'list v2')
})

await test('api: browsers may call', async () => {
  const pre = await fetch(c.url + '/v2/sandboxes', { method: 'OPTIONS', headers: { Origin: 'https://app.example', 'Access-Control-Request-Method': 'POST' } })
  equal(pre.status, 204, 'preflight')
  for (const h of ['X-API-Key', 'lang', 'browser', 'sdk_runtime', 'package_version', 'Idempotency-Key'])
    ok(pre.headers.get('access-control-allow-headers').toLowerCase().includes(h.toLowerCase()), h)
  const r = await call('GET', '/v2/sandboxes', undefined, { Origin: 'https://app.example' })
  equal(r.headers.get('access-control-allow-origin'), '*', 'origin')
  ok(r.headers.get('access-control-expose-headers').includes('X-Next-Token'), 'exposed')
})

const left = await c.stop()
await test('api: endpoints leave no sanitizer report and end cleanly', async () => equal(left, [], 'left'))
