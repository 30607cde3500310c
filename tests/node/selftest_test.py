#!/usr/bin/env python3
"""The node's own self-test: a host that passes starts guests and tests once, one that does not says why and starts none."""
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from stack import BUILD, Stack, run, wait_for  # noqa: E402

PASSED = re.compile(r"self-test with kernel (\w+) passed in (\d+) ms")


def passes_once(s):
    assert len(PASSED.findall(s.log())) == 1, s.log()[-2000:]
    s.ok("start", "i0selftest00000000000", 1)
    for stop in (s.stop_node, s.kill_node):
        stop()
        s.start_node()
        s.ok("start", f"i0selftest{'0' * 10}{1 + (stop == s.kill_node)}", 1)
    assert len(PASSED.findall(s.log())) == 1, "a restart of the node tested again"
    s.stop_node()
    record = s.dir / "state/store/selftest"
    record.write_text("0" * 64 + "\nnonsense\n" + "x" * 5000)  # damage, and what another boot of the host left
    s.start_node()
    s.ok("start", "i0selftest00000000003", 1)
    assert len(PASSED.findall(s.log())) == 2, "what another boot found was believed"


def import_template(s, name, kernel=None, tools=None, memory=512):
    import stack
    done = subprocess.run([BUILD / "node/daemon/cube-node", "template", "import", "--config", s.dir / "cube.yaml", "--name", name, "--root",
                           stack.base_image(), "--kernel", kernel or stack.kernel(), "--tools", tools or BUILD / "guest/tools.erofs", "--memory", str(memory)],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def unfit_until_a_kernel_passes(s):
    """A node whose only template has a kernel for another kind of host, or a probe that fails: refused with the reason, until a good one comes."""
    for what, reason in (({"tools": BUILD / "tests/node/unfit-tools.erofs"}, "user code can read an MSR"),
                         ({"kernel": BUILD / "node/vmm/cube-vmm"}, "self-test with kernel")):
        bad = Stack("unfit")
        try:
            bad.start_jailer()
            bad.template = import_template(bad, "bad", **what)
            bad.start_node(ready=False)
            said = wait_for("the reason on /readyz", lambda: re.search(r"failed its self-test: .*", bad.http("/readyz")), 60)[0]
            assert reason in bad.log(), bad.log()[-2000:]
            refused = bad.refused("unavailable", "start", "i0unfit00000000000000", 1)
            assert "failed its self-test" in refused and reason in refused, (refused, said)
            assert "snapshot" not in " ".join(p.name for p in (bad.dir / "state/store/tpl" / bad.template).iterdir())
            bad.template = import_template(bad, "good", memory=256)  # of the same root, but not the same template
            wait_for("a good template making the node ready", lambda: bad.is_ready() and PASSED.search(bad.log()), 60)
            bad.ok("start", "i0unfit00000000000000", 2)
        except AssertionError as e:
            raise AssertionError(f"{e}; {bad.log()[-3000:]}")
        finally:
            bad.down()


def no_start_without_the_network(s):
    """A node whose network cannot be had refuses sandboxes with the reason, and starts them once it is there."""
    link = "cubenf0"
    bad = Stack("net", uplink=link, service_net="169.254.128.0")
    try:
        bad.start_jailer()
        bad.template = import_template(bad, "base")
        bad.start_node(ready=False)
        wait_for("the reason on /readyz", lambda: link in bad.http("/readyz"), 60)
        refused = bad.refused("unavailable", "start", "i0nonet00000000000000", 1)
        assert "no network here" in refused and link in refused, refused
        for command in ("add {0} type veth peer name {0}p", "set {0} up", "set {0}p up"):
            subprocess.run(["ip", "link", *command.format(link).split()], check=True)
        subprocess.run(["ip", "address", "add", "198.51.100.9/24", "dev", link], check=True)
        wait_for("the network making the node ready", bad.is_ready, 60)
        bad.ok("start", "i0nonet00000000000000", 2)
    except AssertionError as e:
        raise AssertionError(f"{e}; {bad.log()[-3000:]}")
    finally:
        pins = bad.dir / "run/bpf/vs"
        for p in (bad.node, bad.jailer):
            p.terminate()
            p.wait(20)
        subprocess.run([BUILD / "node/net/cube-vs", "--pins", pins, "remove"], capture_output=True)
        bad.down()
        subprocess.run(["ip", "link", "del", link], capture_output=True)


TESTS = [passes_once, unfit_until_a_kernel_passes, no_start_without_the_network]

if __name__ == "__main__":
    chosen = [t for t in TESTS if not sys.argv[1:] or t.__name__ in sys.argv[1:]]
    sys.exit(run(chosen, lambda: Stack("self")))
