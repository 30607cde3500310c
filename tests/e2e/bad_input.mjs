// Wrong requests to the API: the right status and a JSON error of the contract's shape.
import { equal, ok, test } from './check.mjs'

const api = process.env.E2B_API_URL
const key = process.env.E2B_API_KEY

async function call(method, path, { body, headers = {}, auth = key } = {}) {
  const all = { 'Content-Type': 'application/json', ...headers }
  if (auth) all['X-API-KEY'] = auth
  const r = await fetch(api + path, { method, body, headers: all })
  const text = await r.text()
  let json
  try {
    json = JSON.parse(text)
  } catch {
    json = undefined
  }
  return { status: r.status, json, text }
}

function isError(answer, status) {
  equal(answer.status, status, `status (${answer.text.slice(0, 200)})`)
  equal(answer.json?.code, status, 'code in the body')
  ok(typeof answer.json?.message === 'string' && answer.json.message.length > 0, 'message in the body')
}

const cases = [
  ['malformed JSON', 400, () => call('POST', '/v2/sandboxes', { body: '{"templateID":' })],
  ['duplicate keys', 400, () => call('POST', '/v2/sandboxes', { body: '{"templateID":"base","templateID":"base"}' })],
  ['a body that is no object', 400, () => call('POST', '/v2/sandboxes', { body: '[]' })],
  ['no templateID', 400, () => call('POST', '/v2/sandboxes', { body: '{}' })],
  ['templateID of the wrong type', 400, () => call('POST', '/v2/sandboxes', { body: '{"templateID":7}' })],
  ['timeout 0', 400, () => call('POST', '/v2/sandboxes', { body: '{"templateID":"base","timeout":0}' })],
  ['unknown template', 404, () => call('POST', '/v2/sandboxes', { body: '{"templateID":"no-such-template"}' })],
  ['no key', 401, () => call('GET', '/v2/sandboxes', { auth: null })],
  ['wrong key', 401, () => call('GET', '/v2/sandboxes', { auth: `e2b_${'0'.repeat(40)}` })],
  ['a key that is no key', 401, () => call('GET', '/v2/sandboxes', { auth: 'x'.repeat(5000) })],
  ['unknown sandbox', 404, () => call('GET', '/sandboxes/i00000000000000000000')],
  ['kill of an unknown sandbox', 404, () => call('DELETE', '/sandboxes/i00000000000000000000')],
  ['a sandbox ID of another shape', 400, () => call('GET', '/sandboxes/NOT_AN_ID!')],
  ['a body over the limit', 413, () => call('POST', '/v2/sandboxes', { body: `{"templateID":"${'a'.repeat(17 << 20)}"}` })],
  ['a path that nobody knows', 404, () => call('GET', '/no/such/path')],
  ['a path of the contract that is not there yet', 501, () => call('GET', '/volumes')],
]

for (const [name, status, run] of cases) await test(`bad input: ${name} is ${status}`, async () => isError(await run(), status))

await test('bad input: nothing was created', async () => {
  const r = await call('GET', '/v2/sandboxes')
  equal(r.json, [], 'list')
})
