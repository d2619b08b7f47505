"""A rank of a group in Python without PyTorch: the wheel c10d-rs. Does what group_member.py does."""

import json
import sys

import c10d_rs


def main():
    assert "torch" not in sys.modules
    with c10d_rs.init_from_env() as group:
        got = []
        for root in range(group.world_size):
            value = f"value of {root}".encode() if root == group.rank else None
            got.append(group.broadcast(value, root=root))
        got += group.all_gather(f"part of {group.rank}".encode())
        group.barrier()
        group.finish()
    print(json.dumps({"got": [value.decode() for value in got]}), flush=True)


main()
