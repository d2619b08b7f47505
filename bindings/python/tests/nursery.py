"""Forks members of groups out of one process that has imported torch, and waits for them.

    python nursery.py

Each line of its input is a JSON list. ["fork", FUNCTION, ARGUMENTS] runs a function of ``members.py`` or
``subgroup_members.py`` in a child, and prints its process id; ["wait", PID] prints how it has ended.
"""

import json
import os
import sys
import traceback

import torch
import torch._dynamo  # which the first optimizer imports, for seconds

import members
import subgroup_members

torch.set_num_threads(1)


def main() -> None:
    """Do what the lines say."""
    for line in sys.stdin:
        kind, *arguments = json.loads(line)
        if kind == "fork":
            name, parameters = arguments
            child = os.fork()
            if child == 0:
                run(name, parameters)
            print(child, flush=True)
        else:
            print(os.waitstatus_to_exitcode(os.waitpid(arguments[0], 0)[1]), flush=True)


def run(name: str, parameters: dict[str, object]) -> None:
    """Run a function, and end the process."""
    status = 1
    try:
        module = members if hasattr(members, name) else subgroup_members
        getattr(module, name)(**parameters)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
