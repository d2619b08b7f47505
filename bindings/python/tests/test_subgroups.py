"""Groups of torch that are recreated in each generation work through deaths and newcomers. Needs PyTorch 2.14 or later."""

import math
import os
import signal

import test_survivors


class Subgroups(test_survivors.GroupCase):
    def test_mesh_fsdp_and_two_groups_through_a_death_and_a_newcomer(self) -> None:
        for rank in range(4):
            self.fork("shard", rank=rank, size=4, kill={"1": 5})
        self.wait_for_size(3, 3)
        self.fork("shard", rank=None, size=4)
        done = self.wait_for("done", 4)
        self.assertEqual(self.of("wrong"), [])
        self.assertEqual([event["size"] for event in self.of("generation")], [4] * 4 + [3] * 3 + [4] * 4)
        self.assertEqual(self.survivors_of("generation", [0, 2, 3]), 3, self.events)
        for event in done:
            for ours, theirs in zip(event["losses"], event["alone"], strict=True):
                self.assertTrue(math.isclose(ours, theirs, rel_tol=1e-6, abs_tol=1e-12), (ours, theirs))

    def survivors_of(self, what: str, members: list[int]) -> int:
        """Return how many processes have reported events for these members."""
        return len({event["pid"] for event in self.of(what) if event["id"] in members})

    def test_member_dies_before_it_comes_to_a_new_group(self) -> None:
        self.check_death_in_new_group(has_met=False)

    def test_member_dies_while_a_new_group_connects(self) -> None:
        self.check_death_in_new_group(has_met=True)

    def check_death_in_new_group(self, has_met: bool) -> None:
        for rank in range(3):
            self.fork("die_in_new_group", rank=rank, size=3, has_met=has_met)
        self.wait_for("done", 2)
        self.assertEqual([event["value"] for event in self.of("sum")], [2.0, 2.0], self.events)
        self.assertEqual(self.survivors_of("generation", [0, 2]), 2, self.events)

    def test_group_of_an_earlier_generation_is_refused(self) -> None:
        for rank in range(3):
            self.fork("misuse", rank=rank, size=3, kind="old")
        for error in self.wait_for("error", 2):
            self.assertEqual(error["kind"], "MembershipError", self.events)
            self.assertIn("of an earlier generation: make a new one", error["text"])

    def test_shards_of_the_generation_before_are_refused(self) -> None:
        self.check_old_shards(age=1)

    def test_shards_of_two_generations_before_are_refused(self) -> None:
        self.check_old_shards(age=2)

    def check_old_shards(self, age: int) -> None:
        for rank in range(4):
            self.fork("old_shards", rank=rank, size=4, age=age)
        for error in self.wait_for("error", 4 - age):
            self.assertEqual(error["kind"], "MembershipError", self.events)
            self.assertIn("of an earlier generation: make a new one", error["text"])
        self.assertEqual([event["generation"] for event in self.of("loss")], [0] * 4)

    def test_groups_that_would_not_end_with_a_generation_are_refused(self) -> None:
        for kind, text in (("split", "call new_group instead"), ("early", "in `with generation:`")):
            self.fork("misuse", rank=0, size=1, kind=kind)
            self.assertIn(text, self.wait_for("error", 1)[0]["text"])
            self.events.clear()

    def test_numbers_of_steps_with_another_meaning_are_refused(self) -> None:
        for kind in ("end", "mark"):
            self.fork("misuse", rank=0, size=1, kind=kind)
            error = self.wait_for("error", 1)[0]
            self.assertEqual(error["kind"], "ValueError")
            self.assertIn("from 0 to 2**62 - 1", error["text"])
            self.events.clear()

    def test_groups_leave_no_threads_and_descriptors_behind(self) -> None:
        pids = [self.fork("regroup", rank=rank, size=3) for rank in range(3)]
        count = 3
        self.wait_for("sum", count)
        for _ in range(5):
            pid = pids.pop()
            os.kill(pid, signal.SIGKILL)
            self.pids.remove(pid)
            self.ask("wait", pid)
            count += 2
            self.wait_for("sum", count)
            pids.append(self.fork("regroup", rank=None, size=3))
            count += 3
            self.wait_for("sum", count)
        sums = [it for it in self.of("sum") if it["pid"] == pids[0]]
        self.assertEqual([it["value"] for it in sums], [3.0] + [2.0, 3.0] * 5)
        # The connections of the default group, and of three groups of this generation and of the previous generation, which ends
        # with the next generation.
        self.assertLessEqual(max(it["threads"] for it in sums), 16 + 2 * 6, sums)
        self.assertEqual(len({it["descriptors"] for it in sums[3:] if it["size"] == 3}), 1, sums)

    def test_compiled_ddp_works_and_is_refused_in_the_next_generation(self) -> None:
        for rank in range(3):
            self.fork("compiled", rank=rank, size=3)
        for error in self.wait_for("error", 2):
            self.assertEqual(error["kind"], "MembershipError", self.events)
            self.assertIn("DDP object is of an earlier generation", error["text"])
        # The mean over the ranks, for two rows each: of 0, 1, 2, and of 0, 1.
        gradients = sorted((event["size"], event["value"]) for event in self.of("gradient"))
        self.assertEqual(gradients, [(2, 1.0)] * 2 + [(3, 2.0)] * 3)
