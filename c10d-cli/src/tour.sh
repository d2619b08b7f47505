# Shows three failures of a job with four workers. `c10d tour` runs this script with the path of the command as $1.
set -eu

PATH=$(dirname "$1"):$PATH
folder=$(mktemp -d)
cd "$folder"
job=
store=
clean_up() {
    for process in $job $store; do
        kill -KILL "$process" 2>/dev/null || true
    done
    rm -rf "$folder"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# say TEXT: prints a paragraph.
say() {
    printf '\n%s\n\n' "$*" | fold -s -w 100
}

# start COMMAND...: prints the command and starts it as `job`, with its output on the terminal and in job.log.
start() {
    printf '$ %s\n' "$*"
    mkfifo job.out
    tee job.log <job.out &
    copier=$!
    "$@" >job.out 2>&1 &
    job=$!
}

# Waits until `job` has exited and its output is printed.
finish() {
    wait "$job" || true
    job=
    wait "$copier"
    rm job.out
}

# await FILE TEXT: waits for 20 s at most until the file contains the text.
await() {
    tries=0
    until grep -q "$2" "$1" 2>/dev/null; do
        if [ "$tries" -ge 200 ]; then
            echo "error: $1 does not contain \"$2\" after 20 s" >&2
            exit 1
        fi
        sleep 0.1
        tries=$((tries + 1))
    done
}

# The workers. The launcher sets RANK, WORLD_SIZE and the address of the store, which `c10d store` reads.
cat >killed.sh <<'END'
if [ "$RANK.$TORCHELASTIC_RESTART_COUNT" = 2.0 ]; then kill -KILL $$; fi
c10d store barrier "meeting/$TORCHELASTIC_RESTART_COUNT" --world-size "$WORLD_SIZE"
echo "rank $RANK met the other ranks after $TORCHELASTIC_RESTART_COUNT restarts"
END
cat >hang.sh <<'END'
if [ "$RANK" = 2 ]; then exec sleep 600; fi
exec c10d store barrier meeting --world-size "$WORLD_SIZE" --timeout 10m
END
cat >count.sh <<'END'
for step in 1 2 3 4 5 6 7 8; do
    c10d store add steps >/dev/null
    sleep 0.4
done
echo "rank $RANK, pid $$, finished step $step"
END

say '1. A worker is killed. Rank 2 receives SIGKILL, and the launcher starts all four workers again:'
start c10d run --standalone --nproc-per-node 4 --max-restarts 1 --no-python sh killed.sh
finish

say '2. A worker hangs. Rank 2 sleeps, and the other ranks wait for it. The launcher explains a hang after 30 s by default;' \
    '--explain-after makes this shorter here. After the explanation, the tour stops the job:'
start c10d run --standalone --nproc-per-node 4 --explain-after 3s --no-python sh hang.sh
await job.log 'Waited for:'
sleep 0.5
kill -TERM "$job"
finish

say '3. The store is killed. It is a process that keeps its data in a directory. The tour kills it after 1 s and starts it' \
    'again 1 s later. In the meantime the workers wait:'
serve="c10d store serve --dir store --port"
mkdir store
$serve 0 >serve.out 2>serve.log &
store=$!
await serve.out listening
address=$(sed 's/listening on //' serve.out)
printf '$ %s %s &\n' "$serve" "${address#*:}"
start c10d run --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint "$address" --rdzv-conf is_host=0 --relay \
    --no-python sh count.sh
await job.log 'started ranks'
sleep 1
printf '$ kill -KILL %s    # the store\n' "$store"
kill -KILL "$store"
sleep 1
printf '$ %s %s &\n' "$serve" "${address#*:}"
$serve "${address#*:}" >serve.out 2>serve.log &
store=$!
finish

say 'The workers finished as the processes that the launcher had started, and no step was lost. The first job, step by step:' \
    'docs/tutorials/first-job.md'
