"""Members of a group die, stop and join, and the survivors continue in their processes. Needs PyTorch 2.14 or later."""

import json
import math
import os
import signal
import subprocess
import sys
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from c10d_rs import StoreServer, TCPStore
from c10d_rs.__main__ import command
from nodes import VARIABLES, can_reconfigure, needs_torch_here, require_reconfigure
from servers import new_folder

# Of a whole test. Torch starts slowly on a busy machine.
LIMIT_SECONDS = 240

# Of one group: 1,000 take some minutes.
CHANGES = int(os.environ.get("C10D_CHANGES", "40"))

# The memory that a change may leave, because a heap does not have the same size each time.
BYTES_PER_CHANGE = 2000

TESTS = Path(__file__).resolve().parent
EXAMPLES = TESTS.parents[2] / "examples" / "survivors"

JOIN = "import c10d_rs.torch as ct, c10d_rs as c; s = c.StoreServer(); ct.join(store=c.TCPStore('127.0.0.1', s.port))"


@needs_torch_here
class EarlierTorch(unittest.TestCase):
    def test_release_that_cannot_change_a_group_is_refused(self) -> None:
        if can_reconfigure():
            raise unittest.SkipTest("this PyTorch is 2.14 or later")
        ended = subprocess.run([sys.executable, "-c", JOIN], capture_output=True, text=True, timeout=LIMIT_SECONDS)
        self.assertIn("Unrecoverable: survivors need PyTorch 2.14 or later", ended.stderr)


class GroupCase(unittest.TestCase):
    """A test with a server, and with members that a nursery forks."""

    nursery: ClassVar["subprocess.Popen[str]"]

    @classmethod
    def setUpClass(cls) -> None:
        require_reconfigure()
        cls.nursery = subprocess.Popen(
            [sys.executable, str(TESTS / "nursery.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **VARIABLES},
        )

    @classmethod
    def tearDownClass(cls) -> None:
        cls.nursery.communicate()

    def setUp(self) -> None:
        self.server = StoreServer()
        self.addCleanup(self.server.close)
        self.store = TCPStore("127.0.0.1", self.server.port, timeout=LIMIT_SECONDS)
        self.pids: list[int] = []
        self.addCleanup(self.kill_all)
        self.events: list[dict[str, Any]] = []

    def kill_all(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            self.ask("wait", pid)

    def ask(self, *command: Any) -> int:
        """Give the nursery a command, and return its answer."""
        assert self.nursery.stdin is not None and self.nursery.stdout is not None
        self.nursery.stdin.write(json.dumps(command) + "\n")
        self.nursery.stdin.flush()
        return int(self.nursery.stdout.readline())

    def fork(self, function: str, **parameters: Any) -> int:
        """Start a member, and return its process id."""
        pid = self.ask("fork", function, {"port": self.server.port, **parameters})
        self.pids.append(pid)
        return pid

    def until(self, is_enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """Read events until there are enough, and return all."""
        while not is_enough(self.events):
            try:
                self.events.append(json.loads(self.store.queue_pop("events")))
            except TimeoutError as error:
                raise AssertionError(f"no further event after {self.events}") from error
        return self.events

    def of(self, what: str) -> list[dict[str, Any]]:
        """Return the events of a kind."""
        return [event for event in self.events if event["what"] == what]

    def wait_for(self, what: str, count: int) -> list[dict[str, Any]]:
        """Wait for events of a kind, and return them."""
        self.until(lambda _: len(self.of(what)) >= count)
        return self.of(what)

    def wait_for_size(self, size: int, count: int) -> None:
        """Wait until members have said so often that they are in a generation of this size."""
        self.until(lambda _: sum(event["size"] == size for event in self.of("generation")) >= count)


class Survivors(GroupCase):
    def check_sums(self, members: list[int], sizes: list[int]) -> None:
        """Check that the members with these ids did all their steps right, in the same processes, and agree."""
        done = sorted(self.wait_for("done", len(members)), key=lambda event: event["id"])
        self.assertEqual([event["id"] for event in done], members, self.events)
        self.assertEqual(self.of("wrong"), [])
        self.assertEqual(self.of("error"), [])
        for event in done:
            seen = [size for index, size in enumerate(event["sizes"]) if event["sizes"][index - 1 : index] != [size]]
            self.assertEqual(seen, sizes, self.events)
            self.assertEqual(event["total"], done[0]["total"], self.events)
            pids = {it["pid"] for it in self.events if it.get("id") == event["id"]}
            self.assertEqual(pids, {event["pid"]})

    def test_survivors_of_a_kill_go_on(self) -> None:
        pids = [self.fork("add_up", rank=rank, size=4, min_size=2, until=3) for rank in range(4)]
        self.wait_for("steps", 4)
        os.kill(pids[1], signal.SIGKILL)
        self.check_sums([0, 2, 3], [4, 3])
        last = self.of("generation")[-1]
        self.assertEqual((last["members"], last["left"], last["joined"]), ([0, 2, 3], [1], []))
        # The input of c10d flight. Torch numbers the collectives from 1 again in the second generation.
        uuids = [next(it["uuid"] for it in self.of("generation") if it["size"] == size) for size in (4, 3)]
        for event in self.of("done"):
            self.assertEqual(event["recorded"], [f"generation {uuid}" for uuid in uuids])

    def test_two_deaths_at_once_and_large_messages(self) -> None:
        count = {"size": 5, "min_size": 2, "until": 3, "length": 1_000_000}
        pids = [self.fork("add_up", rank=rank, **count) for rank in range(5)]
        self.wait_for("steps", 5)
        os.kill(pids[0], signal.SIGKILL)
        os.kill(pids[3], signal.SIGKILL)
        done = self.wait_for("done", 3)
        self.assertEqual(sorted(event["id"] for event in done), [1, 2, 4], self.events)
        self.assertEqual(self.of("wrong") + self.of("error"), [])

    def test_newcomer_takes_the_state(self) -> None:
        for rank in range(3):
            self.fork("add_up", rank=rank, size=3, min_size=2, until=4)
        self.wait_for("steps", 3)
        self.fork("add_up", rank=None, size=3, min_size=2, until=4)
        self.check_sums([0, 1, 2, 3], [3, 4])
        self.assertEqual(self.of("generation")[-1]["joined"], [3])

    def test_members_that_never_had_a_state_take_one(self) -> None:
        for rank in range(3):
            self.fork("agree", rank=rank, size=3, min_size=2, dies=rank == 0)
        states = [(event["size"], event["value"]) for event in self.wait_for("state", 2)]
        self.assertEqual(states, [(2, 1.0), (2, 1.0)])

    def test_newcomers_die_while_they_take_a_large_state_until_one_has_it(self) -> None:
        for rank in range(3):
            self.fork("take_over", rank=rank, size=3)
        self.wait_for_size(3, 3)
        for turn, delay in enumerate((0.0, 0.01, 0.03)):
            self.fork("take_over", rank=None, size=3, die_after=delay)
            self.wait_for_size(3, 3 * (turn + 2))
        self.fork("take_over", rank=None, size=3)
        self.until(lambda _: sum(event["id"] == 6 for event in self.of("state")) >= 1)
        self.assertEqual(len({json.dumps(event["numbers"]) for event in self.of("state")}), 1)

    def test_member_that_is_stopped(self) -> None:
        pids = [self.fork("add_up", rank=rank, size=4, min_size=2, until=3) for rank in range(4)]
        self.wait_for("steps", 4)
        os.kill(pids[2], signal.SIGSTOP)
        self.wait_for("done", 3)
        os.kill(pids[2], signal.SIGCONT)
        error = self.wait_for("error", 1)[0]
        self.assertEqual((error["id"], error["kind"]), (2, "Evicted"), self.events)
        self.assertEqual(self.of("wrong"), [])

    def test_barrier_with_an_operation_that_never_ends(self) -> None:
        for rank in range(2):
            self.fork("barrier", rank=rank, size=2)
        self.wait_for("generation", 2)
        self.fork("barrier", rank=None, size=2)
        self.wait_for("done", 3)

    def test_operations_that_gloo_loses_leave_it_threads(self) -> None:
        self.fork("threads")
        names = self.wait_for("done", 1)[0]["names"]
        self.assertEqual(sum(name.startswith("pt_gloo_run") for name in names), 16, names)

    def check_losses(self, done: list[dict[str, Any]], rel_tol: float, abs_tol: float = 0.0) -> None:
        """Check that the losses are those of the member that trains alone."""
        alone = self.wait_for("alone", 1)[0]["losses"]
        for event in done:
            self.assertEqual(len(event["losses"]), len(alone), self.events)
            for ours, theirs in zip(event["losses"], alone, strict=True):
                self.assertTrue(math.isclose(ours, theirs, rel_tol=rel_tol, abs_tol=abs_tol), (ours, theirs))

    def train_while_two_die(self, steps: int, **boundaries: int) -> None:
        """Check that a run in which two of four ranks are killed has the losses of an undisturbed run."""
        self.fork("train_alone", steps=steps)
        for rank in range(4):
            self.fork("train", rank=rank, size=4, steps=steps, kill={"1": 7, "0": 13}, **boundaries)
        self.check_losses(self.wait_for("done", 2), rel_tol=1e-9)

    def test_losses_are_those_of_an_undisturbed_run(self) -> None:
        self.train_while_two_die(steps=30)
        self.assertEqual([event["size"] for event in self.of("generation")], [4] * 4 + [3] * 3 + [2] * 2, self.events)

    def test_ranks_die_between_boundaries(self) -> None:
        self.train_while_two_die(steps=60, boundary_steps=10)

    def test_steps_go_on_while_the_store_is_silent(self) -> None:
        relay, master = self.relay()
        for rank in range(2):
            self.fork("work", rank=rank, size=2, master=master)
        self.wait_for("hundred", 2)
        relay.send_signal(signal.SIGSTOP)
        self.store.queue_push("events", json.dumps({"what": "stopped"}))
        self.wait_for("stopped", 1)
        # Of each member one may have been on its way.
        self.wait_for("hundred", len(self.of("hundred")) + 6)
        relay.send_signal(signal.SIGCONT)
        self.fork("work", rank=None, size=2, master=master)
        self.wait_for_size(3, 3)
        self.store.set("end", "")
        self.wait_for("done", 3)

    def test_replacement_in_training_is_rank_0(self) -> None:
        self.check_replacement()

    def test_replacement_at_a_boundary_that_is_told_of(self) -> None:
        self.check_replacement(boundary_steps=0)

    def check_replacement(self, **boundaries: int) -> None:
        """Check that a run in which a rank is killed and replaced has the losses of an undisturbed run."""
        steps = 400
        self.fork("train_alone", steps=steps)
        for rank in range(3):
            self.fork("train", rank=rank, size=3, steps=steps, kill={"0": 9}, **boundaries)
        self.until(lambda _: any(event.get("size") == 2 for event in self.events))
        self.fork("train", rank=None, size=3, steps=steps, **boundaries)
        self.check_losses(self.wait_for("done", 3), rel_tol=1e-6, abs_tol=1e-12)

    def test_ddp_object_of_the_programs_own_is_refused_in_the_next_generation(self) -> None:
        for rank in range(3):
            self.fork("own_ddp", rank=rank, size=3)
        for error in self.wait_for("error", 2):
            self.assertEqual(error["kind"], "MembershipError", self.events)
            self.assertIn("DDP object is of an earlier generation", error["text"])
        self.assertEqual([event["size"] for event in self.of("generation")], [3] * 3 + [2] * 2)

    def test_back_end_with_an_abort_of_its_own_frees_a_blocked_rank(self) -> None:
        pids = [self.fork("freed_by_the_back_end", rank=rank, size=3) for rank in range(3)]
        self.wait_for("steps", 3)
        os.kill(pids[1], signal.SIGKILL)
        done = self.wait_for("done", 2)
        self.assertEqual([event["size"] for event in self.of("generation")], [3] * 3 + [2] * 2, self.events)
        self.assertEqual([event["aborts_left"] for event in done], [False, False])

    def test_back_ends_abort_is_found(self) -> None:
        self.fork("own_abort")
        self.assertEqual(self.wait_for("done", 1)[0]["found"], ["cpu", "aborted", "cpu"])

    def test_kept_worker_that_comes_after_the_end_exits_with_0(self) -> None:
        self.fork("add_up", rank=0, size=1, min_size=1, until=1)
        self.wait_for("done", 1)
        self.fork("come_too_late")
        self.assertEqual(self.wait_for("exit", 1)[0]["code"], 0)
        self.assertEqual(len(self.of("generation")), 1)

    def test_newcomer_that_waits_when_the_others_finish_exits_with_0(self) -> None:
        for rank in range(2):
            self.fork("finish_beside_a_newcomer", rank=rank)
        self.wait_for("steps", 2)
        self.fork("come_too_late")
        self.assertEqual([event["turns"] for event in self.wait_for("done", 2)], [1, 1])
        self.assertEqual(self.wait_for("exit", 1)[0]["code"], 0)
        self.assertEqual(self.of("generation"), [])

    def test_rank_that_leaves_its_block_early_changes_no_sum_of_the_others(self) -> None:
        pids = [self.fork("leave_early", rank=rank, size=3) for rank in range(3)]
        self.wait_for("leaves", 1)
        # Long enough for whatever it sends.
        time.sleep(1)
        os.kill(pids[0], signal.SIGKILL)
        self.assertEqual([event["step"] for event in self.wait_for("done", 2)], [20, 20])
        self.assertEqual(self.of("wrong"), [])
        self.assertEqual([event["size"] for event in self.of("generation")], [3, 3, 3, 2, 2], self.events)

    def test_workers_beside_torchrun_do_not_go_on_with_fewer(self) -> None:
        pids = [self.fork("add_up_beside_torchrun", rank=rank) for rank in range(2)]
        self.wait_for("steps", 2)
        os.kill(pids[1], signal.SIGKILL)
        self.assertEqual(self.wait_for("error", 1)[0]["kind"], "BelowMinimum")
        self.assertEqual([event["size"] for event in self.of("generation")], [2, 2])

    def test_own_exceptions(self) -> None:
        for rank, kind in ((0, "ValueError"), (1, "RuntimeError")):
            self.fork("fail", rank=rank, size=2, kind=kind, until=1)
        errors = sorted(self.wait_for("error", 2), key=lambda event: str(event["id"]))
        self.assertEqual([(it["kind"], it["text"]) for it in errors], [("ValueError", "mine"), ("RuntimeError", "mine")])

    def test_below_the_minimum(self) -> None:
        count = {"size": 2, "min_size": 2, "until": 9, "below_min_timeout": 0.5}
        pids = [self.fork("add_up", rank=rank, **count) for rank in range(2)]
        self.wait_for("steps", 2)
        os.kill(pids[0], signal.SIGKILL)
        error = self.wait_for("error", 1)[0]
        self.assertEqual((error["id"], error["kind"]), (1, "BelowMinimum"), self.events)

    def churn(self, cycles: int, min_size: int) -> list[dict[str, Any]]:
        """Kill and replace the third member this often. Return the reports of one of the other members."""
        pids = [self.fork("stay", rank=rank, size=3, min_size=min_size) for rank in range(3)]
        sums = self.wait_for("sum", 3)
        for _ in range(cycles):
            pid = pids.pop()
            os.kill(pid, signal.SIGKILL)
            self.pids.remove(pid)
            self.ask("wait", pid)
            if min_size < 3:
                sums = self.wait_for("sum", len(sums) + 2)
                self.assertEqual([it["size"] for it in sums[-2:]], [2, 2], sums[-9:])
            pids.append(self.fork("stay", rank=None, size=3, min_size=min_size))
            sums = self.wait_for("sum", len(sums) + 3)
            self.assertEqual([it["size"] for it in sums[-3:]], [3, 3, 3], sums[-9:])
            self.assertEqual({it["pid"] for it in sums[-3:]}, set(pids), sums[-9:])
        self.assertEqual(self.of("wrong"), [])
        return [it for it in sums if it["pid"] == pids[0]]

    def test_minimum_is_reached_and_left_again(self) -> None:
        cycles = max(10, CHANGES // 20)
        self.assertEqual(len(self.churn(cycles, min_size=3)), cycles + 1)

    def test_changes_leave_no_memory_and_descriptors_behind(self) -> None:
        sums = self.churn(CHANGES // 2, min_size=2)
        # After the first changes, which load code and fill caches. The number of connections follows from the members.
        before, after = sums[len(sums) // 4], sums[-1]
        print(f"{CHANGES} changes: from {before} to {after}", file=sys.stderr)
        self.assertEqual({it["descriptors"] for it in sums[2:] if it["size"] == 3}, {after["descriptors"]})
        grown = after["resident"] - before["resident"]
        self.assertLess(grown, (8 << 20) + CHANGES * BYTES_PER_CHANGE, (before, after))

    def run_example(self, name: str, *arguments: str) -> list["subprocess.Popen[str]"]:
        """Start an example with two ranks."""
        folder = new_folder(self)
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.server.port), "WORLD_SIZE": "2"}
        ranks = []
        for rank in range(2):
            process = subprocess.Popen(
                [sys.executable, str(EXAMPLES / name), *arguments],
                env={**os.environ, **VARIABLES, **address, "RANK": str(rank)},
                cwd=folder,
                stdout=subprocess.PIPE,
                text=True,
            )
            self.addCleanup(process.communicate)
            self.addCleanup(process.kill)
            ranks.append(process)
        return ranks

    def test_example_all_reduce(self) -> None:
        for rank in self.run_example("all_reduce.py", "5", "0"):
            self.assertIn("5 steps, total 10", rank.communicate(timeout=LIMIT_SECONDS)[0])

    def test_example_train(self) -> None:
        outputs = [rank.communicate(timeout=LIMIT_SECONDS)[0] for rank in self.run_example("train.py", "10")]
        self.assertTrue(all("10 steps, loss " in output for output in outputs), outputs)

    def test_example_serve(self) -> None:
        ranks = self.run_example("serve.py")
        self.store.queue_push("requests", "1 2 3")
        self.assertEqual(float(self.store.get("answer to 1 2 3")), 14.0)
        self.store.queue_push("requests", "stop")
        self.assertEqual([rank.wait(LIMIT_SECONDS) for rank in ranks], [0, 0])

    def test_as_in_pytorchs_documentation(self) -> None:
        pids = [self.fork("by_hand", rank=rank, size=4, until=3) for rank in range(4)]
        self.wait_for("steps", 4)
        os.kill(pids[0], signal.SIGKILL)
        done = self.wait_for("done", 3)
        self.assertEqual(sorted(event["id"] for event in done), [1, 2, 3], self.events)
        for event in done:
            self.assertEqual(event["sums"], sorted(event["sums"], reverse=True))
            self.assertEqual(set(event["sums"]), {4.0, 3.0})

    def relay(self) -> tuple["subprocess.Popen[str]", int]:
        """Start a relay, and return it and its port."""
        relay = subprocess.Popen(
            [command(), "relay", f"--upstream=127.0.0.1:{self.server.port}", "--listen=127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.addCleanup(relay.communicate)
        self.addCleanup(relay.kill)
        assert relay.stdout is not None
        return relay, int(relay.stdout.readline().rpartition(":")[2])

    def test_worker_whose_relay_dies_ends_without_collecting_its_memory(self) -> None:
        relay, port = self.relay()
        file = new_folder(self) / "file"
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        worker = subprocess.Popen(
            [sys.executable, "-c", "import members, sys; members.end_by_an_exception(sys.argv[1])", str(file)],
            env={**os.environ, **VARIABLES, **address, "C10D_KEEP_WORKERS": "1"},
            cwd=TESTS,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(worker.communicate)
        self.addCleanup(worker.kill)
        assert worker.stdout is not None
        self.assertEqual(worker.stdout.readline(), "joined\n")
        relay.kill()
        output, errors = worker.communicate(timeout=LIMIT_SECONDS)
        self.assertEqual((worker.returncode, output), (1, "thread\natexit\n"), errors)
        self.assertIn("c10d_rs.torch.Unrecoverable: ", errors)
        self.assertEqual(file.read_text(), "buffered")

    def test_cases_of_pytorchs_own_test(self) -> None:
        _, through = self.relay()
        for port, client in ((self.server.port, "torch"), (self.server.port, "c10d_rs"), (through, "torch")):
            self.events.clear()
            for rank in range(3):
                self.fork("reconfigure", port=port, rank=rank, client=client, events=self.server.port)
            self.wait_for("passed", 3)

    def test_store_of_pytorch_is_refused_at_once_and_the_error_names_the_alternative(self) -> None:
        self.fork("refused_by_pytorchs_store")
        done = self.wait_for("done", 1)[0]
        alternative = "start the job with `c10d run`, or serve the store with `c10d store serve`"
        pytorchs = f"the store at 127.0.0.1:{done['port']} is PyTorch's, which keeps no groups"
        in_this_process = "HashStore() keeps no groups"
        causes = [pytorchs, pytorchs, in_this_process, pytorchs]
        self.assertEqual(done["texts"], [f"cannot join a group: {cause}; {alternative}" for cause in causes])
        self.assertFalse(done["has_group"])


if __name__ == "__main__":
    unittest.main()
