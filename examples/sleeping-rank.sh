#!/bin/sh
# Every rank waits for all ranks, but rank 2 sleeps, so that there is a hang to explain. Needs only `c10d` on the PATH:
#
#   c10d run --standalone --nproc-per-node 4 --explain-after 5s examples/sleeping-rank.sh
set -eu

# Or the launcher's own file, for example after `cargo run --release -p c10d-cli`, wherever Cargo has put it.
PATH=$PATH:$(dirname "$(readlink "/proc/$PPID/exe")")

if [ "$RANK" = 2 ]; then
    exec sleep 600
fi
c10d store set "ready/$RANK" yes
rank=0
while [ "$rank" -lt "$WORLD_SIZE" ]; do
    c10d store wait "ready/$rank" --timeout 10m
    rank=$((rank + 1))
done
