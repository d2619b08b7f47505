"""The ranks of a group meet, and errors name those that do not come."""

import os
import subprocess
import sys
import unittest
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from unittest.mock import patch

from c10d_rs import (
    DistError,
    DistNetworkError,
    Group,
    GroupError,
    HashStore,
    MissingRanksError,
    StoreServer,
    TCPStore,
    init_from_env,
)
from servers import new_secret

T = TypeVar("T")

WORKER = """
import c10d_rs, os
with c10d_rs.init_from_env(timeout=60) as group:
    secret = group.broadcast("id" if group.rank == 0 else None)
    names = group.all_gather(f"worker {group.rank}")
    group.barrier()
    assert (secret, names) == (b"id", [b"worker %d" % rank for rank in range(group.world_size)])
    print(group.rank, "of", group.world_size)
"""


def on_all_ranks(world_size: int, work: Callable[[Group], T]) -> list[T]:
    """Run work on a thread for each rank of a group, and return the results in order of rank."""
    store = HashStore()

    def join(rank: int) -> T:
        return work(Group.join(store.clone(), rank, world_size, timeout=60))

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(join, range(world_size), timeout=60))


class TestGroup(unittest.TestCase):
    def test_calls(self) -> None:
        def work(group: Group) -> tuple[bytes, bytes, list[bytes]]:
            first = group.broadcast(b"first" if group.rank == 0 else None)
            second = group.broadcast("second" if group.rank == 2 else None, root=2)
            group.barrier(60)
            group.store.add("n", 1)
            values = group.all_gather(str(group.rank))
            self.assertEqual(group.store.get("n"), b"3")
            self.assertIn(f"rank={group.rank}, world_size=3", repr(group))
            group.finish()
            with self.assertRaisesRegex(DistError, "closed"):
                group.barrier()
            return first, second, values

        self.assertEqual(on_all_ranks(3, work), [(b"first", b"second", [b"0", b"1", b"2"])] * 3)

    def test_split(self) -> None:
        def work(group: Group) -> list[bytes]:
            ranks = [rank for rank in range(4) if rank % 2 == group.rank % 2]
            with group.split(f"parity-{group.rank % 2}", ranks) as part:
                self.assertEqual((part.rank, part.world_size), (group.rank // 2, 2))
                return part.all_gather(str(group.rank))

        even, odd = [b"0", b"2"], [b"1", b"3"]
        self.assertEqual(on_all_ranks(4, work), [even, odd, even, odd])

    def test_missing_ranks(self) -> None:
        with self.assertRaisesRegex(MissingRanksError, "rank") as caught:
            Group.join(HashStore(), 0, 4, timeout=1)
        self.assertEqual(caught.exception.ranks, [1, 2, 3])
        self.assertIsInstance(caught.exception, TimeoutError)

        def work(group: Group) -> list[int]:
            if group.rank == 1:
                return []
            try:
                group.barrier(0.05)
            except MissingRanksError as error:
                return error.ranks
            return []

        self.assertEqual(on_all_ranks(2, work), [[1], []])

    def run_workers(self, port: int, variables: dict[str, str]) -> None:
        variables = {
            **os.environ,
            "WORLD_SIZE": "3",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            **variables,
        }
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER],
                env={**variables, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(3)
        ]
        outputs = [worker.communicate(timeout=60)[0] for worker in workers]
        self.assertEqual(outputs, ["0 of 3\n", "1 of 3\n", "2 of 3\n"])

    def test_environment(self) -> None:
        with StoreServer() as server:
            self.run_workers(server.port, {"TORCHELASTIC_USE_AGENT_STORE": "True"})

    def test_environment_with_a_secret(self) -> None:
        # Not one of those that the system gives to others.
        port = 20_000 + os.getpid() % 10_000
        secret = new_secret(self)
        self.run_workers(port, {"C10D_SECRET_FILE": str(secret)})
        alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        with patch.dict(os.environ, {**alone, "C10D_SECRET_FILE": str(secret)}), init_from_env():
            with self.assertRaisesRegex(DistNetworkError, "secret"):
                TCPStore("127.0.0.1", port, timeout=0.3)
            TCPStore("127.0.0.1", port, secret_file=secret).close()

    def test_no_environment(self) -> None:
        kept = os.environ.pop("RANK", None)
        try:
            with self.assertRaisesRegex(GroupError, "RANK"):
                init_from_env()
        finally:
            if kept is not None:
                os.environ["RANK"] = kept

    def test_an_exception_leaves_at_once(self) -> None:
        with StoreServer() as server:
            with self.assertRaises(ZeroDivisionError):
                with Group.join(TCPStore("127.0.0.1", server.port), 0, 1):
                    raise ZeroDivisionError


if __name__ == "__main__":
    unittest.main()
