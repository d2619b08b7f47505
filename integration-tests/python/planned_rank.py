"""Ranks of a job that do what a plan says, so that a test can break a job at any step.

Usage: planned_rank.py FOLDER PLAN    one rank, with the environment that a launcher or a test gives it
       planned_rank.py --serve        starts ranks by fork, as lines of JSON on standard input say

The ranks run unmodified PyTorch. PLAN is a JSON object of lists of steps by rank; "*" is for the ranks that it does not
name. The steps:
    set:NAME=VALUE    sets a variable of the environment
    mark:NAME         writes the file NAME.RANK
    await:NAME        waits in the script until the file NAME exists
    connect           opens the store, as init does first
    init              init_process_group
    group:A,B         new_group of these ranks
    all_reduce, barrier, destroy
    stop, sleep       stops itself with SIGSTOP; sleeps until it is killed
"timeout" in PLAN is the group's timeout in seconds.

The files are JSON in FOLDER and written atomically. At its end a rank writes `end.RANK`: the step, and the exception if
there is one. A file of a rank that has the same RANK as another replaces the other's.

With --serve, each line is {"folder": ..., "plan": ..., "environment": ...} and is answered by a line with the rank's
pid. PyTorch is loaded once, and no part of it is used before the fork. The ranks end with this process.
"""

import ctypes
import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

PR_SET_PDEATHSIG = 1

POLL_SECONDS = 0.01


def write(folder, name, value):
    temporary = folder / f".{name}.{os.getpid()}"
    temporary.write_text(json.dumps(value))
    temporary.rename(folder / name)


class Rank:
    def __init__(self, folder, plan):
        self.folder = Path(folder)
        self.number = os.environ["RANK"]
        self.steps = plan.get(self.number, plan["*"])
        self.timeout = timedelta(seconds=plan["timeout"])
        self.joining = None
        self.group = None

    def run(self):
        step = ""
        began = time.monotonic()
        end = {"rank": int(self.number), "pid": os.getpid(), "error": None}
        try:
            for step in self.steps:
                began = time.monotonic()
                name, _, argument = step.partition(":")
                getattr(self, f"do_{name}")(argument)
        except Exception as error:
            end |= {"error": type(error).__name__, "message": str(error)}
            raise
        finally:
            end |= {"step": step, "seconds": time.monotonic() - began}
            write(self.folder, f"end.{self.number}", end)

    def do_set(self, argument):
        name, _, value = argument.partition("=")
        os.environ[name] = value

    def do_mark(self, name):
        # The store itself, if MASTER_ADDR is a relay.
        prefix = "C10D_" if "C10D_MASTER_ADDR" in os.environ else ""
        address = [os.environ[f"{prefix}MASTER_ADDR"], int(os.environ[f"{prefix}MASTER_PORT"])]
        write(self.folder, f"{name}.{self.number}", {"pid": os.getpid(), "store": address})

    def do_await(self, name):
        while not (self.folder / name).exists():
            time.sleep(POLL_SECONDS)

    def do_connect(self, _):
        self.joining = next(dist.rendezvous("env://", timeout=self.timeout))

    def do_init(self, _):
        if self.joining is None:
            dist.init_process_group("gloo", timeout=self.timeout)
            return
        # As init_process_group goes on.
        store, rank, world_size = self.joining
        store.set_timeout(self.timeout)
        store = dist.PrefixStore("default_pg", store)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=world_size, timeout=self.timeout
        )

    def do_group(self, ranks):
        self.group = dist.new_group([int(rank) for rank in ranks.split(",")], timeout=self.timeout)

    def do_all_reduce(self, _):
        dist.all_reduce(torch.ones(1000))

    def do_barrier(self, _):
        dist.barrier()

    def do_destroy(self, _):
        dist.destroy_process_group()

    def do_stop(self, _):
        os.kill(os.getpid(), signal.SIGSTOP)

    def do_sleep(self, _):
        while True:
            time.sleep(3600)


def serve():
    # Nobody waits for the children: the test looks at their files and into /proc.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print(json.dumps({"release": torch.__version__}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            run_child(order)
        print(json.dumps({"pid": pid}), flush=True)


def run_child(order):
    code = 1
    try:
        die_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        # Only this process's answers are on standard output.
        os.dup2(2, 1)
        os.environ.update(order["environment"])
        Rank(order["folder"], order["plan"]).run()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # The destructors of a broken group can hang.
        os._exit(code)


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main():
    if sys.argv[1] == "--serve":
        serve()
        return
    if "C10D_TEST_DIE_WITH_LAUNCHER" in os.environ:
        die_with_parent()
    folder, plan = sys.argv[1:]
    Rank(folder, json.loads(plan)).run()


main()
