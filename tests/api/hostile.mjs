// A hostile client against the whole table of routes: every field of every body and every parameter with values that do not fit, bodies that are
// no JSON, races of many clients for one sandbox and for one idempotency key. What it may not do: get an answer that is no JSON error of the
// contract, an internal error, a slow server, or anything that stays behind.
import net from 'node:net'
import { equal, ok, test, until } from '../e2e/check.mjs'
import { Control } from '../lib/control.mjs'

const c = await Control.start({ nodes: 2, masters: 2, apis: 2, api: { rate_limit: 0, threads: 2 }, lifecycle: true })
const doc = await (await fetch(c.url + '/openapi.json')).json()
const operations = Object.entries(doc.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, o]) =>
  ({ path, method: method.toUpperCase(), admin: o.security.some((s) => s.AdminTokenAuth), ...o })))
const schemaOf = (s) => s?.$ref ? doc.components.schemas[s.$ref.split('/').pop()] : s
const bodyOf = (o) => schemaOf(o.requestBody?.content['application/json'].schema)

async function send(o, path, body, headers = {}, api = 0) {
  const r = await fetch(c.apis[api].url + path, { method: o.method, body,
    headers: { 'X-API-Key': c.apiKey, ...(o.admin ? { 'X-Admin-Token': c.adminToken } : {}), ...(body === undefined ? {} : { 'Content-Type': 'application/json' }), ...headers } })
  const text = await r.text()
  let json
  try { json = JSON.parse(text) } catch { json = undefined }
  return { status: r.status, headers: r.headers, text, json }
}
const get = async (path) => send({ method: 'GET' }, path)

// What any answer must be. 501 is named by the routes; 503 says why and when to come back.
function decent(r, what) {
  const where = `${what}: ${r.status} ${r.text.slice(0, 200)}`
  ok(r.status < 500 || r.status === 501 || (r.status === 503 && r.headers.get('retry-after')), where)
  if (r.status < 400) return
  ok(r.json && r.json.code === r.status && typeof r.json.message === 'string' && r.json.message.length > 0, `no error of the contract: ${where}`)
  ok(!/[\u0000-\u001f]/.test(r.json.message), `control characters in the message: ${where}`)
  ok(r.text.length < 8192, `an error repeats what it was sent: ${where}`)
}

const long = (n, s = 'a') => s.repeat(n)
const VALUES = [null, true, 0, -1, -0.5, 1e300, 2 ** 31, 2 ** 53, '', ' ', long(70_000), '\u0000', 'a\u0000b', '\r\nX-Injected: 1', '\u202e\ufeff', '\ud800', '../../etc', '%00', [], [[]], {}, { '': '' },
  { a: { a: {} } }, [null, 1, 'x'], { toString: 1, __proto__x: 2 }]
const path = (o, value = 'i0000000000000000000x') => o.path.replace(/\{[^}]*\}/g, () => encodeURIComponent(value))
const pick = (type) => type === 'integer' ? 1 : type === 'boolean' ? false : type === 'array' ? [] : type === 'object' ? {} : 'x'
async function pool(jobs, n = 24) {
  let at = 0
  await Promise.all(Array.from({ length: n }, async () => { while (at < jobs.length) await jobs[at++]() }))
}

await test('hostile: every field of every body with values that do not fit', async () => {
  const jobs = []
  for (const o of operations) {
    const schema = bodyOf(o)
    if (!schema?.properties) continue
    const whole = Object.fromEntries(Object.entries(schema.properties).filter(([k]) => schema.required?.includes(k)).map(([k, v]) => [k, k === 'templateID' ? 'no-such' : pick(schemaOf(v)?.type)]))
    for (const [name, property] of Object.entries(schema.properties)) {
      const inner = Object.keys(schemaOf(property)?.properties ?? {})
      for (const v of VALUES) {
        const bodies = [{ ...whole, [name]: v }, ...inner.map((k) => ({ ...whole, [name]: { [k]: v } }))]
        for (const b of bodies) jobs.push(async () => decent(await send(o, path(o), JSON.stringify(b)), `${o.operationId} ${JSON.stringify(b).slice(0, 90)}`))
      }
    }
  }
  ok(jobs.length > 1500, `${jobs.length} requests`)
  await pool(jobs)
})

await test('hostile: bodies that are no JSON object', async () => {
  const deep = long(100_000, '['), bodies = ['', 'null', '[]', '"x"', '1', '{', '{"a"', '{"a":1,}', '{"a":1}{', '\u0000', '\ufeff{}', '{"a":"\\u0000"}', '{"a":"\\ud800"}', "{'a':1}", 'NaN',
    '{"templateID":"base","templateID":1}', '{"a":1e999}', `{"a":${long(5000, '9')}}`, deep, `{"a":${deep}`, long(100_000, '{"a":'), Buffer.from([0x7b, 0x22, 0xff, 0xfe, 0x22, 0x3a, 0x31, 0x7d]), Buffer.alloc(1000, 0xff)]
  const jobs = []
  for (const o of operations.filter(bodyOf))
    for (const b of bodies)
      jobs.push(async () => {
        const r = await send(o, path(o), b)
        decent(r, `${o.operationId} with ${String(b).slice(0, 30)}`)
        ok(r.status >= 400 || r.status === 204, `${o.operationId} took ${String(b).slice(0, 30)}: ${r.status}`)
      })
  await pool(jobs)
  const create = operations.find((o) => o.operationId === 'sandbox_create_v2'), connect = operations.find((o) => o.operationId === 'sandbox_connect_v2')
  for (const o of [create, connect]) { // 10 MB is below the limit of a body, so its content is judged
    decent(await send(o, path(o), `{"templateID":"base","metadata":{"k":"${long(10 << 20)}"}}`), `${o.operationId} with 10 MB`)
    decent(await send(o, path(o), `{"templateID":"base","x":[${long(5 << 20, '1,')}1]}`), `${o.operationId} with 10 MB of numbers`)
  }
})

await test('hostile: parameters in path and query', async () => {
  const TEXTS = ['', ' ', '%', '\u0000', 'a/b', '..', '-', 'a-b-c', long(3000), 'ü', '\u202e', "'--", '*', '[a]', '{c0}', '0', '-1', '1e3', '99999999999999999999', 'true', 'null', long(25, 'i'), '\r\n']
  const jobs = []
  for (const o of operations) {
    if (o.path.includes('{'))
      for (const v of TEXTS)
        for (const p of [path(o, v), o.path.replace(/\{[^}]*\}/g, v.replace(/[^!-~]/g, '%ff'))])
          jobs.push(async () => decent(await send(o, p.replace(/[#?]/g, ''), bodyOf(o) ? '{}' : undefined), `${o.operationId} ${p.slice(0, 80)}`))
    for (const q of (o.parameters ?? []).filter((q) => q.in === 'query'))
      for (const v of [...TEXTS, 'bm90LWEtY3Vyc29y', Buffer.from('2026-01-01T00:00:00Z__i0000000000000000000x').toString('base64url'), '=&=&=', 'a=%ff', long(40, 'a=b&')])
        for (const text of [encodeURIComponent(v), '%zz', '%', '+++', '%00%ff%fe'])
          jobs.push(async () => decent(await send(o, `${path(o)}?${q.name}=${text}&${q.name}=${text}`), `${o.operationId} ?${q.name}=${text.slice(0, 60)}`))
  }
  ok(jobs.length > 1500, `${jobs.length} requests`)
  await pool(jobs)
})

await test('hostile: headers', async () => {
  const list = operations.find((o) => o.operationId === 'sandbox_list_v2'), create = operations.find((o) => o.operationId === 'sandbox_create_v2')
  for (const v of ['x', long(7000), 'e2b_' + long(40, 'g'), 'e2b_' + long(4000, '0'), "' or 1=1", 'e2b_\u00ff'])
    for (const name of ['X-API-Key', 'Authorization', 'X-Admin-Token', 'X-Team-ID', 'traceparent', 'Idempotency-Key', 'Content-Type', 'Accept-Encoding'])
      for (const o of [list, create]) decent(await send(o, path(o), o === create ? '{"templateID":"no-such"}' : undefined, { [name]: v }), `${o.operationId} ${name}: ${v.slice(0, 20)}`)
})

await test('hostile: one idempotency key from 50 clients at once is one sandbox', async () => {
  const create = operations.find((o) => o.operationId === 'sandbox_create_v2')
  for (let round = 0; round < 3; round++) {
    const all = await Promise.all(Array.from({ length: 50 }, (_, i) => send(create, '/v2/sandboxes', '{"templateID":"base","timeout":600}', { 'Idempotency-Key': `race-${round}` }, i % 2)))
    equal([...new Set(all.map((r) => r.status))], [201], all.find((r) => r.status !== 201)?.text ?? 'statuses')
    equal(new Set(all.map((r) => r.json.sandboxID)).size, 1, 'sandboxes')
    equal((await send({ method: 'DELETE' }, `/sandboxes/${all[0].json.sandboxID}`)).status, 204, 'kill')
  }
})

await test('hostile: 50 clients pause, connect, set timeouts, snapshot and kill the same five sandboxes', async () => {
  const made = await Promise.all(Array.from({ length: 5 }, async () => (await send({ method: 'POST' }, '/v2/sandboxes', '{"templateID":"base","timeout":600}')).json.sandboxID))
  const allowed = { pause: [204, 404, 409], connect: [200, 201, 404, 409], resume: [201, 404, 409], timeout: [204, 404, 409], refreshes: [204, 404, 409], snapshots: [201, 404, 409], get: [200, 404], kill: [204, 404] }
  const bodies = { connect: '{"timeout":600}', resume: '{"timeout":600}', timeout: '{"timeout":600}', snapshots: '{}' }
  const kills = new Map(made.map((id) => [id, 0])), tally = {}
  let seed = 7, left = 1500
  const random = (n) => { seed = (seed * 1103515245 + 12345) & 0x7fffffff; return (seed >> 8) % n }
  await Promise.all(Array.from({ length: 50 }, async (_, client) => {
    while (left-- > 0) {
      const id = made[random(5)], dice = random(100)
      // The kills come near the end, so that there is something to fight for.
      const what = dice < 28 ? 'pause' : dice < 56 ? 'connect' : dice < 62 ? 'resume' : dice < 72 ? 'timeout' : dice < 76 ? 'refreshes' : dice < 79 ? 'snapshots' : dice < 97 || left > 300 ? 'get' : 'kill'
      const r = await send({ method: what === 'get' ? 'GET' : what === 'kill' ? 'DELETE' : 'POST' }, `/sandboxes/${id}${what === 'get' || what === 'kill' ? '' : `/${what}`}`, bodies[what], {}, client % 2)
      decent(r, what)
      ok(allowed[what].includes(r.status), `${what}: ${r.status} ${r.text}`)
      if (what === 'kill' && r.status === 204) kills.set(id, kills.get(id) + 1)
      tally[`${what} ${r.status}`] = (tally[`${what} ${r.status}`] ?? 0) + 1
    }
  }))
  console.log(`     ${JSON.stringify(tally)}`)
  ok(tally['pause 204'] > 20 && (tally['connect 201'] ?? 0) > 20, 'something was paused and resumed')
  for (const id of made) {
    const r = await send({ method: 'DELETE' }, `/sandboxes/${id}`)
    equal([r.status === 204 ? 1 : 0, r.status].join(), [1 - Math.min(1, kills.get(id)), kills.get(id) ? 404 : 204].join(), `${id} was killed ${kills.get(id)} times`)
    ok(kills.get(id) <= 1, `${id}: ${kills.get(id)} kills were told that they killed it`)
    equal((await get(`/sandboxes/${id}`)).status, 404, 'and it is gone')
  }
})

await test('hostile: 400 half-open and half-sent connections do not slow the others', async () => {
  // Two instances are asked in turn, so that what else the machine does meets both: one with those connections, one without.
  const medians = async () => {
    const times = [[], []]
    for (let i = 0; i < 100; i++) {
      const t = performance.now()
      equal((await send({ method: 'GET' }, '/v2/sandboxes', undefined, {}, i % 2)).status, 200, 'list')
      times[i % 2].push(performance.now() - t)
    }
    return times.map((x) => x.sort((a, b) => a - b)[25])
  }
  const sockets = Array.from({ length: 400 }, (_, i) => {
    const s = net.connect(c.apis[0].port, '127.0.0.1')
    s.on('error', () => {})
    s.write(['', 'G', 'GET /sandboxes HTTP/1.1\r\nX-API-Key: ', `POST /v2/sandboxes HTTP/1.1\r\nX-API-Key: ${c.apiKey}\r\nContent-Length: 1000000\r\n\r\n{"a":"`][i % 4])
    return s
  })
  const [beside, alone] = await medians()
  ok(beside < Math.max(100, 10 * alone), `the median of others' answers is ${beside} ms, on the other instance it is ${alone} ms`)
  for (const s of sockets) s.destroy()
  const slow = net.connect(c.apis[0].port, '127.0.0.1') // asks a thousand times and reads nothing
  slow.pause()
  slow.on('error', () => {})
  slow.write(`GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n`.repeat(1000))
  equal((await get('/v2/sandboxes')).status, 200, 'list beside a client that does not read')
  slow.destroy()
})

await test('hostile: nothing is left behind', async () => {
  for (const s of (await get('/v2/sandboxes')).json) await send({ method: 'DELETE' }, `/sandboxes/${s.sandboxID}`)
  await until(async () => (await c.node('count')).running === 0, 30_000, 'the nodes run nothing')
  await until(async () => {
    const nodes = (await send({ method: 'GET', admin: true }, '/cube/v1/nodes')).json
    return nodes.every((n) => Object.values(n.reserved).every((v) => v === 0))
  }, 30_000, 'nothing is reserved')
  for (const { adminUrl } of c.apis)
    await until(async () => /^cube_api_requests_in_flight 0$/m.test(await (await fetch(adminUrl + '/metrics')).text()), 30_000, 'no request is in flight')
})
const left = await c.stop()
await test('api: the hostile client leaves no sanitizer report', async () => equal(left, [], 'left'))
