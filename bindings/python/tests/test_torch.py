"""Stores under PyTorch's process groups, and exceptions that are PyTorch's too."""

import subprocess
import sys
import unittest
from importlib.util import find_spec

from c10d_rs import StoreServer
from servers import new_secret

EXCEPTIONS = """
import pickle
import c10d_rs

def wait():
    c10d_rs.HashStore().wait(["missing"], 0)

try:
    wait()
except c10d_rs.DistStoreError as error:
    early = error
import torch.distributed as dist
assert not isinstance(early, dist.DistStoreError)
try:
    wait()
except dist.DistStoreError as error:
    assert isinstance(error, c10d_rs.StoreTimeoutError) and isinstance(error, TimeoutError)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == str(error)
for ours, theirs in (
    ("QueueEmptyError", getattr(dist, "QueueEmptyError", dist.DistStoreError)),
    ("StoreValueError", dist.DistStoreError),
    ("DistNetworkError", dist.DistNetworkError),
    ("MissingRanksError", dist.DistError),
):
    combined = c10d_rs._errors.class_of(ours)
    assert issubclass(combined, theirs) and issubclass(combined, getattr(c10d_rs, ours)), ours
"""

RANK = """
import datetime, gc, sys
import torch
import torch.distributed as dist
import c10d_rs, c10d_rs.torch

rank, port, secret = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
store = c10d_rs.torch.Store(c10d_rs.TCPStore("127.0.0.1", port, secret_file=secret))
limit = datetime.timedelta(seconds=60)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
for _ in range(3):
    group = dist.new_group([0, 1])
    gc.collect()
    tensor = torch.ones(4) * (rank + 1)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [3.0] * 4
    gathered = [None, None]
    dist.all_gather_object(gathered, {"rank": rank}, group=group)
    assert gathered == [{"rank": 0}, {"rank": 1}]
    dist.barrier(group=group)
objects = [("id", 1)] if rank == 0 else [None]
dist.broadcast_object_list(objects, src=0)
assert objects == [("id", 1)]
dist.monitored_barrier(timeout=limit)
try:
    store.wait(["missing"], datetime.timedelta(milliseconds=10))
except dist.DistStoreError as error:
    assert isinstance(error, c10d_rs.StoreTimeoutError)
else:
    raise AssertionError("the key is missing")
dist.destroy_process_group()
"""


@unittest.skipUnless(find_spec("torch"), "needs torch in this environment")
class WithTorch(unittest.TestCase):
    def test_exceptions(self) -> None:
        subprocess.run([sys.executable, "-c", EXCEPTIONS], check=True, timeout=300)

    def test_process_groups_with_a_secret(self) -> None:
        secret = new_secret(self)
        with StoreServer(secret_file=secret) as server:
            ranks = [
                subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(server.port), str(secret)])
                for rank in range(2)
            ]
            try:
                self.assertEqual([rank.wait(300) for rank in ranks], [0, 0])
            finally:
                for rank in ranks:
                    rank.kill()
                    rank.wait()


if __name__ == "__main__":
    unittest.main()
