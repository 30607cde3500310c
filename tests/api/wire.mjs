// cube-api on the wire: bodies of every framing, limits, half-open connections, clients that leave, masters that die.
import net from 'node:net'
import { equal, ok, test, until } from '../e2e/check.mjs'
import { Control } from '../lib/control.mjs'

const c = await Control.start({ masters: 2, api: { key_ttl: '100ms', incomplete_timeout: '5s', rate_limit: 0, master_wait: '8s' } })
const post = (body, extra = '') => `POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: ${c.apiKey}\r\nContent-Type: application/json\r\n${extra}\r\n${body}`
const metric = async (name) => {
  const text = await (await fetch(c.adminUrl + '/metrics')).text()
  return Number(text.split('\n').find((l) => l.startsWith(name + ' '))?.split(' ').at(-1))
}

// Sends the pieces, each in a packet of its own, and collects the answer until the server closes or `ms` have passed.
function raw(pieces, ms = 30000, to = c) {
  return new Promise((resolve) => {
    let text = '', start = Date.now()
    const s = net.connect(to.apis[0].port, '127.0.0.1')
    const end = (closed) => { clearTimeout(timer); s.destroy(); resolve({ text, closed, ms: Date.now() - start }) }
    const timer = setTimeout(() => end(false), ms)
    s.on('data', (d) => { text += d })
    s.on('close', () => end(true))
    s.on('error', () => {})
    s.setNoDelay(true)
    ;(async () => {
      for (const p of [pieces].flat()) {
        s.write(p)
        await new Promise((r) => setTimeout(r, 5))
      }
    })()
  })
}
const answers = (text) => [...text.matchAll(/HTTP\/1\.1 (\d+) /g)].map((m) => Number(m[1])).filter((s) => s !== 100)
const errorBody = (text) => JSON.parse(text.slice(text.lastIndexOf('\r\n\r\n') + 4))
const call = (method, path, body, headers = {}) => fetch(c.url + path, { method, headers: { 'X-API-Key': c.apiKey, ...headers }, body: body && JSON.stringify(body) })
const killAll = () => c.admin('POST', '/admin/teams/default/sandboxes/kill')

await test('wire: chunked bodies, split anywhere', async () => {
  const body = '{"templateID":"base"}'
  const chunks = [...body].map((ch) => `1\r\n${ch}\r\n`)
  const r = await raw([post('', 'Transfer-Encoding: chunked\r\nConnection: close\r\n'), ...chunks, '0\r\n\r\n'])
  equal(answers(r.text), [201], r.text.slice(0, 200))
  const head = post('', `Content-Length: ${body.length}\r\nConnection: close\r\n`)
  equal(answers((await raw([head.slice(0, 30), head.slice(30), body.slice(0, 5), body.slice(5)])).text), [201], 'content-length in pieces')
})

await test('wire: pipelined requests are answered in order', async () => {
  const get = (path, extra = '') => `GET ${path} HTTP/1.1\r\nHost: x\r\nX-API-Key: ${c.apiKey}\r\n${extra}\r\n`
  const body = '{"templateID":"base"}'
  const r = await raw(get('/health') + post(body, `Content-Length: ${body.length}\r\n`) + get('/nope') + get('/v2/sandboxes', 'Connection: close\r\n'))
  equal(answers(r.text), [200, 201, 404, 200], 'statuses')
})

await test('wire: what comes behind a request does not disturb it', async () => {
  const key = await c.key('default', 'fresh') // not checked yet, so the body waits for a master
  const body = JSON.stringify({ templateID: 'base', metadata: { marker: 'x'.repeat(3000) } })
  const get = `GET /health HTTP/1.1\r\nHost: x\r\nA: ${'y'.repeat(500)}\r\n`
  const first = `POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: ${key}\r\nContent-Length: ${body.length}\r\n\r\n${body}`
  await c.node('delay start 300')
  const r = await raw([first, (get + '\r\n').repeat(300) + get + 'Connection: close\r\n\r\n'], 60000)
  await c.node('delay start 0')
  equal(answers(r.text), [201, ...Array(301).fill(200)], 'statuses')
  const id = /"sandboxID":"(\w+)"/.exec(r.text)[1]
  equal((await (await call('GET', `/sandboxes/${id}`)).json()).metadata.marker, 'x'.repeat(3000), 'metadata')
})

await test('wire: Expect: 100-continue', async () => {
  const body = '{"templateID":"base"}'
  const r = await raw([post('', `Content-Length: ${body.length}\r\nExpect: 100-continue\r\nConnection: close\r\n`), body])
  ok(r.text.startsWith('HTTP/1.1 100'), r.text.slice(0, 40))
  equal(answers(r.text), [201], 'status')
})

await test('wire: a request that does not become complete ends with 408; an idle connection stays open', async () => {
  const before = await metric('cube_api_incomplete_requests_total')
  const idle = raw('GET /health HTTP/1.1\r\nHost: x\r\n\r\n', 9000)
  const parts = ['POST /v2/sand', post('', 'Content-Length: 100\r\n') + '{"a"', post('', 'Transfer-Encoding: chunked\r\n') + '5\r\n{"a']
  for (const r of await Promise.all(parts.map((part) => raw(part, 60000)))) {
    ok(r.closed, 'closed')
    equal(answers(r.text), [408], 'status')
    equal(errorBody(r.text).code, 408, 'code')
  }
  equal(await metric('cube_api_incomplete_requests_total'), before + 3, 'metric')
  const r = await idle
  ok(!r.closed && answers(r.text)[0] === 200, 'the idle connection outlives the limit for incomplete requests')
})

await test('wire: broken requests are refused and harm nobody', async () => {
  const rows = ['GARBAGE\r\n\r\n', 'GET\r\n\r\n', '\x16\x03\x01\x02\x00\x01\x00', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', post('', 'Content-Length: +5\r\n') + 'abcde',
    post('', 'Content-Length: x\r\n'), post('', 'Transfer-Encoding: chunked\r\n') + 'zz\r\n', `GET /${'a'.repeat(9000)} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`,
    `GET / HTTP/1.1\r\n${'A: b\r\n'.repeat(500)}\r\n`, 'GET /%00 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n', 'OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n']
  const all = await Promise.all(rows.map((row) => raw(row, 2000))) // some wait for more, which is fine
  for (const [i, r] of all.entries()) {
    const row = rows[i]
    ok(!answers(r.text).some((s) => s === 201 || s >= 500), `${JSON.stringify(row.slice(0, 30))}: ${r.text.slice(0, 60)}`)
  }
  equal((await fetch(c.url + '/health')).status, 200, 'the server lives')
})

await test('wire: wrong methods name the right ones', async () => {
  const r = await call('PUT', '/v2/sandboxes')
  equal([r.status, r.headers.get('allow'), (await r.json()).code], [405, 'GET, POST', 405], 'answer')
  const head = await raw('HEAD /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n')
  ok(head.text.startsWith('HTTP/1.1 200') && head.text.endsWith('\r\n\r\n'), 'HEAD has no body')
})

await test('wire: a slash at the end of the base URL does no harm', async () => {
  equal((await call('GET', '//v2/sandboxes')).status, 200, 'double slash')
})

await test('wire: when the client leaves, the work for it is cancelled', async () => {
  await killAll()
  const before = await metric('cube_api_client_disconnects_total')
  await c.node('delay start 5000')
  const body = '{"templateID":"base"}'
  const s = net.connect(c.apis[0].port, '127.0.0.1')
  s.write(post(body, `Content-Length: ${body.length}\r\n`))
  await until(async () => await metric('cube_api_requests_in_flight') >= 1, 30000, 'the create is in flight')
  s.destroy()
  await until(async () => await metric('cube_api_client_disconnects_total') === before + 1, 4000, 'the leaving was noticed')
  await until(async () => await metric('cube_api_requests_in_flight') === 0, 4000, 'the request ended')
  await c.node('delay start 0')
  await until(async () => (await c.node('count')).running === 0 && (await (await call('GET', '/v2/sandboxes')).json()).length === 0, 60000, 'no sandbox is left over')
})

await test('wire: when a master dies, another one answers', async () => {
  const one = await (await call('POST', '/v2/sandboxes', { templateID: 'base' })).json()
  await c.crash('master0')
  equal((await call('GET', `/sandboxes/${one.sandboxID}`)).status, 200, 'get')
  equal((await call('POST', '/v2/sandboxes', { templateID: 'base' })).status, 201, 'create')
})

await test('wire: without any master: 503, Retry-After, and the reason', async () => {
  await c.crash('master1')
  const start = Date.now()
  const r = await call('POST', '/v2/sandboxes', { templateID: 'base' })
  const b = await r.json()
  equal([r.status, b.code, b.error_code, r.headers.get('retry-after')], [503, 503, 'unavailable', '1'], JSON.stringify(b))
  ok(Date.now() - start < 30000, 'in time')
  equal((await fetch(c.url + '/health')).status, 200, 'the API itself is well')
})

await test('wire: a request waits for a master that is being restarted', async () => {
  const pending = call('GET', '/v2/sandboxes')
  await new Promise((r) => setTimeout(r, 300))
  await c.master(0)
  equal((await pending).status, 200, 'the slow answer')
})

await test('wire: many connections at once', async () => {
  const all = await Promise.all(Array.from({ length: 300 }, () => raw('GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n', 60000)))
  ok(all.every((r) => r.text.startsWith('HTTP/1.1 200')), 'all are answered')
})

await test('wire: SIGTERM lets a request in flight end', async () => {
  await c.master(1)
  await until(async () => (await call('POST', '/v2/sandboxes', { templateID: 'base' })).status === 201, 60000, 'the masters are back')
  await c.node('delay start 4000')
  const pending = call('POST', '/v2/sandboxes', { templateID: 'base' })
  await until(async () => await metric('cube_api_requests_in_flight') >= 1, 30000, 'in flight')
  c.processes.get('api').kill('SIGTERM')
  equal((await pending).status, 201, 'answered')
  equal(await c.processes.get('api').ended, 0, 'exit status')
})

const left = await c.stop()
const limited = await Control.start({ api: { rate_limit: 5, rate_window: '10s' } })

await test('wire: a body over the limit is 413 in JSON, whatever its framing', async () => {
  const r = await fetch(limited.url + '/v2/sandboxes', { method: 'POST', body: Buffer.alloc(17 << 20, 0x20), headers: { 'X-API-Key': limited.apiKey } })
  equal([r.status, (await r.json()).code], [413, 413], '17 MiB with a length, by fetch')
  const chunked = await fetch(limited.url + '/v2/sandboxes', { method: 'POST', body: new Blob([Buffer.alloc(17 << 20, 0x20)]).stream(), duplex: 'half', headers: { 'X-API-Key': limited.apiKey } })
  equal([chunked.status, (await chunked.json()).code], [413, 413], '17 MiB in chunks, by fetch')
  const big = Buffer.alloc((32 << 20) + 1024, 0x20)
  for (const extra of [`Content-Length: ${big.length}\r\n`, 'Transfer-Encoding: chunked\r\n']) {
    const pieces = extra.startsWith('C') ? [post('', extra)] : [post('', extra), `${big.length.toString(16)}\r\n`, big]
    const far = await raw(pieces, 60000, limited)
    equal(answers(far.text), [413], extra)
    equal(errorBody(far.text).code, 413, 'code')
  }
})

await test('wire: the rate limit answers 429 with when to come back', async () => {
  const get = () => fetch(limited.url + '/teams', { headers: { 'X-API-Key': limited.apiKey } })
  const all = await Promise.all(Array.from({ length: 20 }, get))
  const refused = all.filter((r) => r.status === 429), passed = all.filter((r) => r.status === 200)
  ok(refused.length >= 10 && passed.length >= 5, `${passed.length} passed, ${refused.length} were refused`)
  const r = refused[0], b = await r.json()
  equal([b.code, b.message], [429, 'Rate limit exceeded'], 'body')
  ok(/^([1-9]|10)$/.test(r.headers.get('retry-after')), 'Retry-After')
  equal([r.headers.get('ratelimit-limit'), r.headers.get('ratelimit-remaining')], ['5', '0'], 'RateLimit headers')
  await until(async () => (await get()).status === 200, 60000, 'the next window')
})

await test('wire: a second SIGTERM ends at once, whatever is in flight', async () => {
  await limited.node('delay start 60000')
  const headers = { 'X-API-Key': limited.apiKey, 'Content-Type': 'application/json' }
  const pending = fetch(limited.url + '/v2/sandboxes', { method: 'POST', headers, body: '{"templateID":"base"}' }).then((r) => `answered ${r.status}`, () => 'cut')
  const inFlight = async () => / [1-9]/.test((await (await fetch(limited.adminUrl + '/metrics')).text()).match(/^cube_api_requests_in_flight( .*)$/m)?.[1])
  await until(inFlight, 30000, 'in flight')
  const api = limited.processes.get('api')
  api.kill('SIGTERM')
  await until(() => limited.log('api').includes('finishing what is open'), 8000, 'it drains')
  api.kill('SIGTERM')
  equal([await api.ended, await pending], [0, 'cut'], 'exit status, and the request')
})
left.push(...(await limited.stop()))

await test('api: the wire tests leave no sanitizer report', async () => equal(left, [], 'left'))
