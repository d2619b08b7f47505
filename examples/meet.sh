#!/bin/sh
# Workers of a job find each other through its store. Needs only `c10d` on the PATH:
#
#   c10d run --standalone --nproc-per-node 4 examples/meet.sh
#
# The launcher sets RANK and WORLD_SIZE for each worker, and the store's address as MASTER_ADDR and
# MASTER_PORT, which `c10d store` reads.
set -eu

# Or the launcher's own file, for example after `cargo run --release -p c10d-cli`, wherever Cargo has put it.
PATH=$PATH:$(dirname "$(readlink "/proc/$PPID/exe")")

# Restarted workers meet again, so each key contains the restart count.
meeting="meet/${TORCHELASTIC_RESTART_COUNT:-0}"

c10d store set "$meeting/$RANK" "process $$"
place=$(c10d store add "$meeting/arrived")

rank=0
while [ "$rank" -lt "$WORLD_SIZE" ]; do
    c10d store wait "$meeting/$rank" --timeout 60s
    rank=$((rank + 1))
done

first=$(c10d store get "$meeting/0")
echo "rank $RANK of $WORLD_SIZE arrived as number $place and met all others; rank 0 is $first"
