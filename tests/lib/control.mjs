// A control plane of real daemons on free ports: Redis, cube-master, simulated nodes, cube-api (and cube-lifecycle when asked). Everything lives
// in one temporary directory and ends with stop(), also when the test fails.
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { mkdtempSync, mkdirSync, rmSync, writeFileSync, readFileSync, openSync, existsSync } from 'node:fs'
import { createServer, connect } from 'node:net'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))))
const build = process.env.CUBE_BUILD_DIR ?? join(root, 'build')

// Below the ephemeral range, so that no outgoing connection and no other listener on port 0 takes one meanwhile.
async function freePorts(n) {
  const ports = new Set()
  while (ports.size < n) {
    const port = 15000 + Math.floor(Math.random() * 17000)
    const s = createServer()
    const free = await new Promise((resolve) => s.once('error', () => resolve(false)).listen(port, '127.0.0.1', () => resolve(true)))
    if (free) {
      await new Promise((resolve) => s.close(resolve))
      ports.add(port)
    }
  }
  return [...ports]
}

async function until(condition, ms, what) {
  const end = Date.now() + ms
  for (;;) {
    const value = await Promise.resolve(condition()).catch(() => null)
    if (value) return value
    if (Date.now() > end) throw new Error(`${what}: not within ${ms} ms`)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

// A timer that was not needed would keep the test's process until it fires.
function within(ms, promise) {
  let timer
  return Promise.race([promise, new Promise((resolve) => { timer = setTimeout(resolve, ms) })]).finally(() => clearTimeout(timer))
}

function listening(port) {
  return new Promise((resolve) => {
    const s = connect(port, '127.0.0.1', () => { s.destroy(); resolve(true) })
    s.on('error', () => resolve(false))
  })
}

export class Control {
  // options: nodes, nodeArgs, api (extra keys of the section), apis (how many), master (extra keys), lifecycle (true: start it), masters (how many
  // addresses there are for masters), mastersUp (how many of them are started)
  static async start(options = {}) {
    const c = new Control()
    c.options = options
    c.dir = mkdtempSync('/tmp/cube-control-')
    c.processes = new Map()
    process.on('exit', () => c.kill())
    try {
      await c.begin()
    } catch (error) {
      console.error(c.logs())
      const ended = [...c.processes].filter(([, p]) => p.code !== undefined).map(([name, p]) => `${name} ended with ${p.code}: ${c.log(name).trim().split('\n').at(-1)}`)
      console.log(`FAIL control plane of ${process.argv[1].split('/').at(-1)}: ${error.message}; ${ended.join('; ') || 'every process runs'}`.slice(0, 700))
      await c.stop()
      throw error
    }
    return c
  }

  async begin() {
    const masters = this.options.masters ?? 1
    const apis = this.options.apis ?? 1
    const ports = await freePorts(7 + 2 * (masters + apis))
    this.ports = { redis: ports[0], lifecycle: ports[3], lifecycleAdmin: ports[4] }
    this.masters = []
    for (let i = 0; i < masters; i++) this.masters.push({ port: ports[7 + 2 * i], admin: ports[8 + 2 * i] })
    this.apis = []
    for (let i = 0, at = 7 + 2 * masters; i < apis; i++, at += 2)
      this.apis.push({ port: ports[at], url: `http://127.0.0.1:${ports[at]}`, adminUrl: `http://127.0.0.1:${ports[at + 1]}` })
    this.url = this.apis[0].url
    this.adminUrl = this.apis[0].adminUrl
    this.keys = join(this.dir, 'keys')
    mkdirSync(this.keys, { mode: 0o700 })
    for (const name of ['api', 'master', 'node', 'lifecycle', 'proxy', 'admin'])
      writeFileSync(join(this.keys, `${name}.key`), randomBytes(32).toString('hex') + '\n', { mode: 0o600 })
    writeFileSync(join(this.keys, 'seed'), randomBytes(32).toString('hex') + '\n', { mode: 0o600 })
    this.adminToken = randomBytes(32).toString('hex')
    writeFileSync(join(this.keys, 'admin_token'), this.adminToken + '\n', { mode: 0o600 })
    mkdirSync(join(this.dir, 'redis'))
    mkdirSync(join(this.dir, 'store'))
    await this.redis()
    await Promise.all(this.masters.slice(0, this.options.mastersUp).map((_, i) => this.master(i)))
    await this.simulate()
    await Promise.all(this.apis.map((_, i) => this.api(i)))
    if (this.options.lifecycle) await this.lifecycle()
    await this.bootstrap()
  }

  yaml(section, keys) {
    const path = join(this.dir, `${section}.yaml`)
    const body = Object.entries(keys).map(([k, v]) => `  ${k}: ${JSON.stringify(v)}`).join('\n')
    writeFileSync(path, `common:\n  redis: "127.0.0.1:${this.ports.redis}"\n  state_dir: "${this.dir}"\n  run_dir: "${this.dir}/run"\n` +
      `  key_dir: "${this.keys}"\n${section.replace(/[0-9]+$/, '')}:\n${body}\n`)
    return path
  }

  run(name, program, args, stdin = 'ignore') {
    const log = openSync(join(this.dir, `${name}.log`), 'a')
    const child = spawn(program, args, { stdio: [stdin, stdin === 'pipe' ? 'pipe' : log, log], cwd: this.dir })
    child.ended = new Promise((resolve) => child.on('exit', (code, signal) => { child.code = code ?? signal; resolve(child.code) }))
    this.processes.set(name, child)
    return child
  }

  async redis() {
    this.run('redis', 'redis-server', ['--port', String(this.ports.redis), '--bind', '127.0.0.1', '--dir', join(this.dir, 'redis'),
      '--appendonly', 'yes', '--save', ''])
    await until(() => listening(this.ports.redis), 30000, 'redis')
  }

  async master(i = 0) {
    const m = this.masters[i]
    this.run(`master${i}`, process.env.CUBE_MASTER_PROGRAM ?? join(build, 'master/cube-master'), ['--config', this.yaml(`master${i}`, {
      listen: `127.0.0.1:${m.port}`, admin_listen: `127.0.0.1:${m.admin}`, report_interval: '200ms', ...this.options.master })])
    await until(() => listening(m.port), 30000, 'cube-master')
  }

  // The first is named "api", the others "api1" ….
  async api(i = 0) {
    const name = i ? `api${i}` : 'api'
    this.run(name, process.env.CUBE_API_PROGRAM ?? join(build, 'api/cube-api'), ['--config', this.yaml(name, {
      listen: `127.0.0.1:${this.apis[i].port}`, admin_listen: this.apis[i].adminUrl.slice('http://'.length),
      master: this.masters.map((m) => `127.0.0.1:${m.port}`).join(','), ...this.options.api })])
    await until(() => listening(this.apis[i].port), 30000, 'cube-api')
  }

  async lifecycle() {
    this.run('lifecycle', process.env.CUBE_LIFECYCLE_PROGRAM ?? join(build, 'lifecycle/cube-lifecycle'), ['--config', this.yaml('lifecycle', {
      listen: `127.0.0.1:${this.ports.lifecycle}`, admin_listen: `127.0.0.1:${this.ports.lifecycleAdmin}`,
      master: this.masters.map((m) => `127.0.0.1:${m.port}`).join(',') })])
    await until(() => listening(this.ports.lifecycle), 30000, 'cube-lifecycle')
  }

  async simulate() {
    this.template = 'abcdefghij0123456789'
    const child = this.run('simnode', join(build, 'bench/simnode/cube-simnode'), ['--nodes', String(this.options.nodes ?? 1),
      '--master', this.masters.map((m) => `127.0.0.1:${m.port}`).join(','), '--key-dir', this.keys, '--template', this.template,
      ...(this.options.nodeArgs ?? [])], 'pipe')
    this.waiting = []
    let text = ''
    child.stdout.on('data', (d) => {
      text += d
      for (let at; (at = text.indexOf('\n')) >= 0; text = text.slice(at + 1)) this.waiting.shift()?.(text.slice(0, at))
    })
  }

  // One control line to the simulated nodes; resolves with {running, started, killed}.
  node(line) {
    return new Promise((resolve) => {
      this.waiting.push((answer) => resolve(Object.fromEntries([...answer.matchAll(/(\w+)=(\d+)/g)].map((m) => [m[1], Number(m[2])]))))
      this.processes.get('simnode').stdin.write(line + '\n')
    })
  }

  // A call with the operator's token.
  admin(method, path, body) {
    return fetch(this.url + path, { method, headers: { 'X-Admin-Token': this.adminToken, 'Content-Type': 'application/json' },
      body: body === undefined ? undefined : JSON.stringify(body) })
  }

  async key(team, name = 'test', admin = false) {
    const r = await this.admin('POST', '/cube/v1/keys', { teamID: team, name, admin })
    if (r.status !== 201) throw new Error(`key: ${r.status} ${await r.text()}`)
    return (await r.json()).key
  }

  async bootstrap() {
    const expect = async (status, r) => {
      if (r.status !== status) throw new Error(`bootstrap: ${r.url} answered ${r.status}: ${await r.text()}`)
      return r.json()
    }
    await expect(201, await this.admin('POST', '/cube/v1/teams', { teamID: 'default', name: 'Default', slug: 'default' }))
    this.apiKey = await this.key('default')
    await expect(201, await this.admin('POST', '/cube/v1/templates', { templateID: this.template, aliases: ['base'], public: true,
      cpuCount: 1, memoryMB: 256, diskSizeMB: 1024, envdVersion: '0.6.13', defaultUser: 'user', defaultWorkdir: '/home/user' }))
    await until(async () => {
      const nodes = await (await this.admin('GET', '/cube/v1/nodes')).json()
      return nodes.length === (this.options.nodes ?? 1) && nodes.every((n) => n.status === 'ready')
    }, 60000, 'nodes are ready')
  }

  // kill -9 and wait for the end.
  async crash(name) {
    const child = this.processes.get(name)
    child.kill('SIGKILL')
    await child.ended
  }

  log(name) {
    return readFileSync(join(this.dir, `${name}.log`), 'utf8')
  }

  logs() {
    return [...this.processes.keys()].map((name) => {
      const path = join(this.dir, `${name}.log`)
      return existsSync(path) ? `--- ${name}\n${readFileSync(path, 'utf8').split('\n').slice(-15).join('\n')}` : ''
    }).join('\n')
  }

  kill() {
    for (const child of this.processes.values()) if (child.code === undefined) child.kill('SIGKILL')
  }

  // Ends every process, api first and by SIGTERM; returns what a sanitizer or a crash left in the logs.
  async stop() {
    const api = this.processes.get('api')
    if (api && api.code === undefined) {
      api.kill('SIGTERM')
      await within(30000, api.ended)
    }
    // Masters and lifecycle end by themselves, so that a sanitizer can say what they leave.
    const daemons = [...this.processes].filter(([name, p]) => /^(master\d|lifecycle)/.test(name) && p.code === undefined).map(([, p]) => p)
    for (const p of daemons) p.kill('SIGTERM')
    await within(20000, Promise.all(daemons.map((p) => p.ended)))
    const found = daemons.filter((p) => p.code !== 0).map((p) => `a daemon ended with ${p.code} after SIGTERM`)
    this.kill()
    await Promise.all([...this.processes.values()].map((p) => p.ended))
    for (const name of this.processes.keys()) {
      const text = readFileSync(join(this.dir, `${name}.log`), 'utf8')
      const at = text.search(/ERROR: AddressSanitizer|ERROR: LeakSanitizer|WARNING: ThreadSanitizer|runtime error:/)
      if (at >= 0) found.push(`${name}: ${text.slice(at, at + 4000)}`)
    }
    if (api && api.code !== 0) found.push(`api ended with ${api.code}`)
    if (!process.env.KEEP) rmSync(this.dir, { recursive: true, force: true })
    return found
  }
}

export { until }
