// A small test harness: each test prints PASS or FAIL in the form that tests/run.sh counts.
import { isDeepStrictEqual } from 'node:util'

// Nothing in the suite takes a third of it, on one processor that others use, too. Soaks and the like may be told to take longer.
const HANGS_MS = 300000 * (process.env.LONG ? 24 : 1) + 1000 * Number(process.env.CUBE_SOAK_SECONDS ?? 0)

export function equal(got, want, what) {
  if (!isDeepStrictEqual(got, want))
    throw new Error(`${what}: got ${JSON.stringify(got)}, want ${JSON.stringify(want)}`)
}

export function ok(value, what) {
  if (!value) throw new Error(what)
}

export async function rejects(promise, name, what) {
  try {
    await promise
  } catch (error) {
    if (name && error.constructor.name !== name)
      throw new Error(`${what}: rejected with ${error.constructor.name} (${error.message}), want ${name}`)
    return error
  }
  throw new Error(`${what}: did not reject`)
}

export async function test(name, run) {
  const start = performance.now()
  // A test that hangs cannot be ended; what comes after it would not mean anything.
  const hangs = setTimeout(() => {
    console.log(`FAIL ${name}: not done in ${HANGS_MS / 1000} s; it waits for: ${process.getActiveResourcesInfo().join(' ').slice(0, 400)}`)
    process.exit(1)
  }, HANGS_MS)
  try {
    await run()
    console.log(`PASS ${name}`)
    console.log(`     ${(performance.now() - start).toFixed(0)} ms`)
    return true
  } catch (error) {
    console.log(`FAIL ${name}: ${String(error.message).replaceAll('\n', ' | ')}`)
    console.log(error.stack)
    process.exitCode = 0 // the line above is the verdict
    return false
  } finally {
    clearTimeout(hangs)
  }
}

// What is thrown between the tests ends the suite: the line says with what.
process.on('uncaughtException', (error) => {
  const text = String(error?.stack ?? error)
  console.error(text)
  console.log(`FAIL ${process.argv[1].split('/').at(-1)}: ${text.split('\n').slice(0, 4).join(' | ').slice(0, 600)}`)
  process.exit(1)
})

// Waits for a condition of another process that sends no event; fails after `ms`.
export async function until(condition, ms, what) {
  const end = Date.now() + ms
  for (;;) {
    const value = await condition()
    if (value) return value
    if (Date.now() > end) throw new Error(`${what}: not within ${ms} ms`)
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}
