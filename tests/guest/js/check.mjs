// A test runner of thirty lines: each test prints PASS or FAIL with its suite's name; the process ends by itself.
const tests = []
export const test = (name, fn) => tests.push([name, fn])

export function equal(got, want, what = 'value') {
  const a = JSON.stringify(got), b = JSON.stringify(want)
  if (a !== b) throw new Error(`${what}: got ${String(a).slice(0, 300)}, want ${String(b).slice(0, 300)}`)
}

export function ok(cond, what) {
  if (!cond) throw new Error(what)
}

export async function throws(promise, name) {
  try {
    await promise
  } catch (e) {
    if (name && e.constructor.name !== name) throw new Error(`threw ${e.constructor.name} (${e.message}), want ${name}`)
    return e
  }
  throw new Error(`did not throw ${name}`)
}

// What is thrown before the tests ends the suite: the line says with what.
process.on('uncaughtException', (e) => {
  console.log(`FAIL ${process.env.SUITE ?? process.argv[1]}: ${String(e?.stack ?? e).split('\n').slice(0, 4).join(' | ').slice(0, 600)}`)
  process.exit(1)
})

// Where in a suite it was thrown: what the line of a failure says beside the reason.
function place(e) {
  const line = String(e.stack).split('\n').find((l) => /mjs:\d+/.test(l) && !/check\.mjs|node_modules/.test(l))
  return line ? `at ${/[^/]*mjs:\d+/.exec(line)[0]}` : ''
}

export async function run(suite) {
  const only = process.env.ONLY
  for (const [name, fn] of tests) {
    if (only && !name.includes(only)) continue
    let timer
    const limit = new Promise((_, no) => { timer = setTimeout(() => no(new Error('took longer than 240 s')), 240000) })
    try {
      await Promise.race([fn(), limit])
      console.log(`PASS ${suite}: ${name}`)
    } catch (e) {
      console.log(`FAIL ${suite}: ${name}: ${String(e.message ?? e).replaceAll('\n', ' ').slice(0, 600)} ${place(e)}`)
      if (process.env.VERBOSE) console.log(e.stack)
    }
    clearTimeout(timer)
  }
  process.exit(0)
}
