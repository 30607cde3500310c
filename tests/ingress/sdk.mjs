// The unmodified JS SDK through the ingress. argv: node_modules, sandbox ID. Environment: E2B_API_KEY and E2B_DOMAIN or the two URLs.
import { createRequire } from 'node:module';
const { Sandbox } = createRequire(process.argv[2] + '/x.js')('e2b');
const t0 = Date.now();
const same = (got, want, why) => {
  if (got !== want) throw new Error(`${why}: got ${JSON.stringify(got)}, want ${JSON.stringify(want)}`);
};
const s = await Sandbox.connect(process.argv[3]);
same(await s.isRunning(), true, 'isRunning');
same((await s.commands.run('echo hi; echo err >&2')).stdout, 'hi\n', 'stdout');
const e = await s.commands.run('exit 3').catch((x) => x);
same(e.exitCode, 3, 'exit code');
let live = '';
await s.commands.run('for i in 1 2 3; do echo $i; sleep 0.05; done', { onStdout: (t) => (live += t) });
same(live, '1\n2\n3\n', 'live output');
const bg = await s.commands.run('cat', { background: true, stdin: true });
await s.commands.sendStdin(bg.pid, 'typed');
await bg.kill();
const dir = process.env.P_DIR;
const big = new Uint8Array(5 << 20).map((_, i) => (i * 7) & 255);
await s.files.write(`${dir}/big`, big.buffer);
const back = await s.files.read(`${dir}/big`, { format: 'bytes' });
same(Buffer.compare(Buffer.from(back), Buffer.from(big)), 0, 'file');
same((await s.files.list(dir)).map((f) => f.name).includes('big'), true, 'list');
const many = await Promise.all(Array.from({ length: 20 }, (_, i) => s.commands.run(`echo ${i}`)));
same(many.map((m) => m.stdout).join(''), Array.from({ length: 20 }, (_, i) => `${i}\n`).join(''), 'parallel');
console.log('ok');
