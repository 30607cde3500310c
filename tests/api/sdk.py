# The control plane through PyPI e2b 2.63.0; started by sdk.mjs, which sets the environment.
from e2b import (
    AuthenticationException,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxNotFoundException,
    SandboxQuery,
    SandboxState,
)


def refused(call, kind):
    try:
        call()
    except kind as e:
        return e
    raise SystemExit(f"{kind.__name__} was due")


s = Sandbox.create(metadata={"lang": "py", "a b": "c&d"}, envs={"A": "b"}, timeout=120)
info = s.get_info()
assert info.state == SandboxState.RUNNING and info.metadata["lang"] == "py", info
assert round((info.end_at - info.started_at).total_seconds()) == 120, info
found = Sandbox.list(query=SandboxQuery(metadata={"a b": "c&d"})).next_items()
assert [x.sandbox_id for x in found] == [s.sandbox_id], found
s.set_timeout(60)
Sandbox.connect(s.sandbox_id, timeout=300)
assert s.get_info().end_at > info.end_at
assert s.pause() is True
assert s.get_info().state == SandboxState.PAUSED
assert s.pause() is False
again = Sandbox.connect(s.sandbox_id)
assert again.get_info().state == SandboxState.RUNNING
s.get_metrics()
assert s.kill() is True
assert Sandbox.kill(s.sandbox_id) is False
refused(lambda: Sandbox.get_info(s.sandbox_id), NotFoundException)
refused(lambda: Sandbox.connect(s.sandbox_id), SandboxNotFoundException)
refused(lambda: Sandbox.create("nosuch"), SandboxException)
refused(lambda: Sandbox.create(api_key="e2b_" + "0" * 40), AuthenticationException)
refused(lambda: Sandbox.create(timeout=0), SandboxException)
# several pages
made = [Sandbox.create(metadata={"page": "py"}) for _ in range(3)]
pages, ids = Sandbox.list(query=SandboxQuery(metadata={"page": "py"}), limit=1), []
while pages.has_next:
    ids += [x.sandbox_id for x in pages.next_items()]
assert sorted(ids) == sorted(x.sandbox_id for x in made), ids
for x in made:
    x.kill()
print("done")
