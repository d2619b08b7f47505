"""Typed code that uses the package, for mypy --strict: the stub must accept it as it stands."""

from datetime import timedelta

import c10d_rs


def lead(host: str, port: int, rank: int) -> str:
    """Elect the first worker that arrives, and return its name."""
    with c10d_rs.TCPStore(host, port, timeout=timedelta(seconds=30)) as store:
        names = c10d_rs.PrefixStore("names", store)
        leader: bytes = names.compare_set("leader", "", f"worker {rank}")
        store.set_timeout(5.0)
        store.wait(["ready"], timedelta(minutes=1))
        try:
            task = store.queue_pop("tasks", block=False)
        except c10d_rs.QueueEmptyError:
            task = b""
        clone: c10d_rs.TCPStore = store.clone()
        values: list[bytes] = clone.multi_get(["a", "b"])
        clone.close()
        base: c10d_rs.Store = names.underlying_store
        total: int = base.add("total", len(task) + len(values))
        left: timedelta = base.timeout
        holder: bytes | None = base.set_ephemeral("lock", b"", ("left", f"worker {rank}"))
        if holder is None and not base.keep_alive(timedelta(seconds=10)):
            total += base.end_waits("round/") + base.delete_prefix("round/", delay=60.0)
        return f"{leader.decode()} {total} {left}"
