"""``python -m debugpy .. -m c10d_rs run``, as an editor launches a module, with a small client of the debug protocol."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

SCRIPT = """\
import os
answer = 6 * 7
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "has", answer, flush=True)
"""
LINE = 3
LIMIT_SECS = 60
HAS_DEBUGPY = importlib.util.find_spec("debugpy") is not None


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class Client:
    """A session of the debug adapter protocol."""

    def __init__(self, host: str, port: int) -> None:
        deadline = time.monotonic() + LIMIT_SECS
        while True:
            try:
                self.socket = socket.create_connection((host, port), LIMIT_SECS)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        self.stream = self.socket.makefile("rb")
        self.sent = 0
        self.messages: List[Dict[str, Any]] = []

    def close(self) -> None:
        self.stream.close()
        self.socket.close()

    def send(self, command: str, arguments: Dict[str, Any]) -> int:
        self.sent += 1
        body = {"seq": self.sent, "type": "request", "command": command, "arguments": arguments}
        text = json.dumps(body).encode()
        self.socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        return self.sent

    def wait(self, wanted: Callable[[Dict[str, Any]], bool]) -> Dict[str, Any]:
        """Return the first message of this kind, also one that has been read."""
        for known in self.messages:
            if wanted(known):
                self.messages.remove(known)
                return known
        while True:
            length = 0
            while True:
                line = self.stream.readline()
                if not line:
                    raise EOFError(f"the session ended: {self.messages}")
                if line == b"\r\n":
                    break
                name, _, value = line.partition(b":")
                if name == b"Content-Length":
                    length = int(value)
            message: Dict[str, Any] = json.loads(self.stream.read(length))
            if wanted(message):
                return message
            self.messages.append(message)

    def event(self, name: str) -> Dict[str, Any]:
        body: Dict[str, Any] = self.wait(lambda it: it.get("event") == name).get("body", {})
        return body

    def ask(self, command: str, arguments: Dict[str, Any]) -> Dict[str, Any]:
        number = self.send(command, arguments)
        answer = self.wait(lambda it: it.get("request_seq") == number)
        if not answer["success"]:
            raise AssertionError(answer)
        body: Dict[str, Any] = answer.get("body", {})
        return body

    def attach(self, arguments: Dict[str, Any], script: Optional[str]) -> None:
        self.ask("initialize", {"adapterID": "test", "pathFormat": "path"})
        number = self.send("attach", arguments)
        self.event("initialized")
        if script is not None:
            self.ask("setBreakpoints", {"source": {"path": script}, "breakpoints": [{"line": LINE}]})
        self.ask("configurationDone", {})
        self.wait(lambda it: it.get("request_seq") == number)


@unittest.skipUnless(HAS_DEBUGPY, "LEFT OUT: needs debugpy")
class Debug(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.script = str(Path(folder.name, "train.py").resolve())
        Path(self.script).write_text(SCRIPT)

    def start(self, *options: str) -> int:
        port = free_port()
        self.run_ = subprocess.Popen(
            [sys.executable, "-Xfrozen_modules=off", "-m", "debugpy", "--listen", f"127.0.0.1:{port}"]
            + ["--wait-for-client", "-m", "c10d_rs", "run", "--standalone", "--nproc-per-node=2", *options, self.script],
            env={**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(self.run_.kill)
        return port

    def attached(self, *options: str) -> Client:
        """Start the job under a debugger, and return its session. A session can end while the debugger still starts."""
        for attempt in range(5):
            port = self.start(*options)
            outer = Client("127.0.0.1", port)
            self.addCleanup(outer.close)
            try:
                outer.attach({"connect": {"host": "127.0.0.1", "port": port}, "subProcess": True}, None)
                return outer
            except EOFError:
                if attempt == 4:
                    raise
        raise AssertionError("unreachable")

    def end(self, *clients: Client) -> Tuple[int, str, str]:
        """Return the exit code, standard output and standard error. The debugger holds both until its clients leave."""
        code = self.run_.wait(timeout=LIMIT_SECS)
        for client in clients:
            client.close()
        output, log = self.run_.communicate(timeout=LIMIT_SECS)
        return code, output, log

    def test_a_breakpoint_stops_the_rank_that_is_debugged(self) -> None:
        outer = self.attached("--debug-rank=1")
        child = outer.event("debugpyAttach")
        inner = Client(child["connect"]["host"], child["connect"]["port"])
        self.addCleanup(inner.close)
        inner.attach(child, self.script)
        thread = inner.event("stopped")["threadId"]
        frame = inner.ask("stackTrace", {"threadId": thread})["stackFrames"][0]
        self.assertEqual(frame["line"], LINE)
        rank = {"expression": "os.environ['RANK']", "frameId": frame["id"], "context": "repl"}
        self.assertEqual(inner.ask("evaluate", rank)["result"], "'1'")
        inner.ask("continue", {"threadId": thread})
        code, output, log = self.end(outer, inner)
        self.assertEqual(code, 0, log)
        self.assertEqual(sorted(output.splitlines()), [f"rank {rank} of 2 has 42" for rank in range(2)])

    def test_the_exit_code_is_that_of_the_job(self) -> None:
        Path(self.script).write_text("import os, sys\nsys.exit(3 if os.environ['RANK'] == '0' else 0)\n")
        outer = self.attached("--debug-rank=0")
        child = outer.event("debugpyAttach")
        inner = Client(child["connect"]["host"], child["connect"]["port"])
        self.addCleanup(inner.close)
        inner.attach(child, None)
        code, _, log = self.end(outer, inner)
        self.assertEqual(code, 1, log)


if __name__ == "__main__":
    unittest.main()
