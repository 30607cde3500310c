// The operator's authentication service: asked about unknown keys, believed only when it says so properly.
import http from 'node:http'
import { equal, ok, test, until } from '../e2e/check.mjs'
import { Control } from '../lib/control.mjs'

const WINDOW_MS = 3600000
const asked = []
const service = http.createServer((req, res) => {
  let text = ''
  req.on('data', (d) => { text += d })
  req.on('end', () => {
    const q = JSON.parse(text)
    asked.push({ ...q, url: req.url, trace: req.headers.traceparent })
    const answers = {
      good: [200, '{"teamID":"default"}'], boss: [200, '{"teamID":"default","admin":true}'], denied: [401, ''], forbidden: [403, '{}'],
      nonsense: [200, 'hello'], noteam: [200, '{}'], wrongtype: [200, '{"teamID":5}'], stranger: [200, '{"teamID":"nosuch"}'],
      broken: [500, 'oops'], long: [200, JSON.stringify({ teamID: 'default', x: 'y'.repeat(100000) })],
    }
    if (q.key === 'silent') return
    if (q.key === 'cut') return res.destroy()
    const [status, body] = answers[q.key] ?? [401, '']
    res.writeHead(status, { 'Content-Type': 'application/json' })
    for (const piece of body.match(/[^]{1,3}/g) ?? []) res.write(piece)
    res.end()
  })
})
await new Promise((resolve) => service.listen(0, '127.0.0.1', resolve))
const c = await Control.start({ api: { auth_url: `http://127.0.0.1:${service.address().port}/check?a=b`, auth_timeout: '3s', key_ttl: '5s', wrong_keys: 40, rate_window: `${WINDOW_MS}ms` } })
const as = (key, path = '/v2/sandboxes') => fetch(c.url + path, { headers: { 'X-API-Key': key } })

await test('callback: a key that the service knows is let in, as its team', async () => {
  const r = await as('good', '/teams')
  equal([r.status, (await r.json())[0].teamID], [200, 'default'], 'answer')
  equal([asked.at(-1).method, asked.at(-1).path, asked.at(-1).url], ['GET', '/teams', '/check?a=b'], 'question')
  ok(/^00-[0-9a-f]{32}-/.test(asked.at(-1).trace), 'trace')
  const n = asked.length
  equal((await as('good')).status, 200, 'again')
  equal(asked.length, n, 'the answer is remembered for a moment')
})

await test('callback: the platform knows its own keys without asking', async () => {
  const n = asked.length
  equal((await as(c.apiKey)).status, 200, 'own key')
  equal(asked.length, n, 'not asked')
})

await test('callback: an operator by the word of the service', async () => {
  equal((await as('boss', '/nodes')).status, 200, 'boss')
  equal((await as('good', '/nodes')).status, 403, 'good')
})

for (const [key, status] of [['denied', 401], ['forbidden', 403], ['unknown', 401], ['nonsense', 503], ['noteam', 503], ['wrongtype', 503], ['stranger', 404],
  ['broken', 503], ['long', 503], ['silent', 503], ['cut', 503]])
  await test(`callback: ${key} is ${status}`, async () => {
    const r = await as(key)
    equal([r.status, (await r.json()).code], [status, status], 'status')
  })

await test('callback: many at once, some leaving', async () => {
  const all = await Promise.allSettled(Array.from({ length: 100 }, (_, i) => {
    const stop = new AbortController()
    if (i % 3 === 0) setTimeout(() => stop.abort(), 20)
    return fetch(c.url + '/v2/sandboxes', { headers: { 'X-API-Key': i % 2 ? 'good' : 'silent' }, signal: stop.signal })
  }))
  // On a busy machine the service may be late, which is said; nobody waits for ever, and nothing stays behind.
  for (const r of all.filter((x) => x.status === 'fulfilled' && x.value.status !== 200)) {
    const text = await r.value.text()
    ok(r.value.status === 503 && /no answer in time|timeout/.test(text), `${r.value.status} ${text}`)
  }
  await until(async () => (await as('good')).status === 200, 20000, 'the good key is let in')
})

await test('callback: an address with many wrong keys is not asked about any more; keys that were good are', async () => {
  const window = () => Math.floor(Date.now() / WINDOW_MS)
  for (;;) { // again, when a new window began meanwhile
    const began = window()
    let r, refused = 0 // a 503 is the service's lateness on a busy machine, and no guess
    for (let i = 0; i < 100 && r?.status !== 429; i++) {
      r = await as(`guess-${i}`)
      refused += r.status === 401
    }
    await until(async () => (await as('good')).status === 200, 20000, 'a key that was good before')
    const own = (await as(c.apiKey)).status
    const next = await as('guess-next'), body = await next.json()
    if (window() !== began) continue
    equal(r.status, 429, `after ${refused} keys`)
    ok(refused <= 40, `${refused} keys were refused before`)
    equal(own, 200, 'a key of the platform')
    equal([next.status, body.code, body.error_code], [429, 429, 'rate_limited'], 'one more')
    const wait = Number(next.headers.get('retry-after'))
    ok(wait >= 1 && wait <= WINDOW_MS / 1000, `Retry-After: ${wait}`)
    equal(asked.some((q) => q.key === 'guess-next'), false, 'the service was asked')
    break
  }
})

await test('callback: when the service is away, only its keys suffer', async () => {
  service.closeAllConnections()
  await new Promise((resolve) => service.close(resolve))
  await until(async () => (await as('good')).status === 503, 30_000, 'its key being forgotten and refused')
  equal((await as(c.apiKey)).status, 200, 'own key')
})

const left = await c.stop()
await test('api: the callback tests leave no sanitizer report', async () => equal(left, [], 'left'))
