#!/bin/sh
# The ranks of a job find each other through its store. Needs `c10d` on the PATH, and nothing else:
#
#   c10d run --standalone --nproc-per-node 4 examples/meet.sh
#
# The launcher tells each worker its RANK, the WORLD_SIZE, and, in MASTER_ADDR and MASTER_PORT, where
# the store is; `c10d store` reads the last two by itself.
set -eu

# Workers that are started again meet again: keys have the number of the start in them.
meeting="meet/${TORCHELASTIC_RESTART_COUNT:-0}"

c10d store set "$meeting/$RANK" "process $$"
place=$(c10d store add "$meeting/arrived")

rank=0
while [ "$rank" -lt "$WORLD_SIZE" ]; do
    c10d store wait "$meeting/$rank" --timeout 60s
    rank=$((rank + 1))
done

first=$(c10d store get "$meeting/0")
echo "rank $RANK of $WORLD_SIZE came as number $place and has met all others; rank 0 is $first"
