"""Where the nodes of a torchrun command meet, as a table: the cases of docs/reference/torchrun-variable.md. Needs no PyTorch."""

import argparse
import unittest
import uuid

from c10d_rs._meeting import Command, Meeting, choose, given


def meet(nodes: int, endpoint: str = "", run_id: str = "none", **options: object) -> Meeting:
    """Return the meeting of a command with these options, without settings."""
    return choose(endpoint, run_id, nodes, {}, Command(**options))  # type: ignore[arg-type]


class Choice(unittest.TestCase):
    def test_one_node_meets_nobody_at_a_free_port(self) -> None:
        first, second = meet(1), meet(1, master_addr="node0", node_rank=0)
        for meeting in (first, second):
            self.assertEqual((meeting.backend, meeting.endpoint), ("c10d", "localhost:0"))
            uuid.UUID(meeting.run_id)
        self.assertNotEqual(first.run_id, second.run_id)
        self.assertEqual(meet(1, run_id="17").run_id, "17")

    def test_an_endpoint_is_used(self) -> None:
        for nodes, settings in ((1, {"is_host": "1"}), (2, {})):
            self.assertEqual(meet(nodes, "node0:29400", "17"), Meeting("c10d", "node0:29400", "17", settings))

    def test_the_node_that_serves_without_the_variable_serves_the_endpoint(self) -> None:
        for rank, is_host in ((0, "1"), (1, "0")):
            self.assertEqual(meet(2, "service:29400", node_rank=rank).settings, {"is_host": is_host})
            explicit = meet(2, "service:29400", node_rank=rank, rdzv_backend="c10d-rs")
            self.assertEqual(explicit.settings, {})
        chosen = choose("service:29400", "17", 2, {"is_host": "1"}, Command(node_rank=1))
        self.assertEqual(chosen.settings, {"is_host": "1"})

    def test_nodes_with_a_master_or_a_rank_keep_their_ranks(self) -> None:
        for options, endpoint, rank in (
            ({"master_addr": "node0", "master_port": 29600, "node_rank": 1}, "node0:29600", "1"),
            ({"master_addr": "node0"}, "node0:29500", "0"),
            ({"node_rank": 1}, "127.0.0.1:29500", "1"),
            ({"node_rank": 0}, "127.0.0.1:29500", "0"),
            ({"master_port": 29600}, "127.0.0.1:29600", "0"),
            ({"master_addr": "::1"}, "[::1]:29500", "0"),
            ({"master_addr": "[::1]"}, "[::1]:29500", "0"),
        ):
            with self.subTest(options):
                self.assertEqual(meet(2, **options), Meeting("static", endpoint, "none", {"rank": rank}))
        self.assertEqual(meet(1, master_port=29600).endpoint, "127.0.0.1:29600")

    def test_several_nodes_without_a_place_are_an_error_with_the_line_to_add(self) -> None:
        for options in ({}, {"rdzv_backend": "c10d-rs"}):
            with self.assertRaisesRegex(ValueError, "^cannot start 4 nodes.* --rdzv-endpoint=HOST:29400 "):
                meet(4, run_id="17", **options)

    def test_a_store_in_etcd_is_an_endpoint(self) -> None:
        endpoint = "etcd://a:2379,b:2379/jobs/17"
        for option in ("a:2379;b:2379/jobs/17", "etcd://a:2379;b:2379/jobs/17"):
            found = choose("", "17", 4, {"etcd": option, "timeout": "5"}, Command(node_rank=1))
            self.assertEqual(found, Meeting("c10d", endpoint, "17", {"timeout": "5"}))

    def test_settings_are_passed_on_except_those_of_the_place(self) -> None:
        settings = {"store_type": "file", "is_host": "0", "rank": "7", "timeout": "900"}
        alone = choose("", "17", 1, settings, Command())
        self.assertEqual(alone.settings, {"rank": "7", "timeout": "900"})
        static = choose("", "17", 2, settings, Command(node_rank=1))
        self.assertEqual(static.settings, {"rank": "1", "timeout": "900"})
        self.assertEqual(choose("/tmp/store", "17", 2, settings, Command()).settings, settings)


class Given(unittest.TestCase):
    def given(self, words: str, environment: dict[str, str] | None = None, **found: object) -> Command:
        """Return what is given by these words, which torchrun has parsed to its defaults and `found`."""
        # As after torchrun's `run`: 2.15 has put the default of the port in.
        defaults = {"rdzv_backend": "c10d-rs", "master_addr": "127.0.0.1", "master_port": 29500, "node_rank": 0}
        arguments = words.split()
        of_script = arguments[arguments.index("train.py") + 1 :] if "train.py" in arguments else []
        parsed = argparse.Namespace(**{**defaults, **found}, training_script_args=of_script)
        return given(parsed, arguments, environment or {})

    def test_defaults_are_not_given(self) -> None:
        for words in ("train.py", "--nnodes=2 --rdzv-id 7 train.py", "train.py --master_port 1234 --node-rank 1", ""):
            with self.subTest(words):
                self.assertEqual(self.given(words), Command())

    def test_options_with_the_values_of_the_defaults_are_given(self) -> None:
        expected = Command(master_addr="127.0.0.1", master_port=29500, node_rank=0)
        for words in (
            "--master-addr=127.0.0.1 --master-port=29500 --node-rank=0 train.py",
            "--master_addr 127.0.0.1 --master_port 29500 --node_rank 0 train.py --lr 1",
        ):
            with self.subTest(words):
                self.assertEqual(self.given(words), expected)
        names = ("PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NODE_RANK")
        self.assertEqual(self.given("train.py", dict.fromkeys(names, "")), expected)

    def test_other_values_are_given_whoever_called_torchrun(self) -> None:
        found = self.given("wrapper.py", master_addr="node0", master_port=29600, node_rank=3)
        self.assertEqual(found, Command(master_addr="node0", master_port=29600, node_rank=3))

    def test_a_backend_on_the_command_line_is_not_that_of_the_variable(self) -> None:
        self.assertEqual(self.given("--rdzv-backend c10d-rs train.py").rdzv_backend, "c10d-rs")
        self.assertEqual(self.given("--rdzv_backend=c10d-rs train.py").rdzv_backend, "c10d-rs")


if __name__ == "__main__":
    unittest.main()
