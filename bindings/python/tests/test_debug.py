"""The page on debugging, typed as it stands, with a small client of the debug protocol in place of the editor."""

import importlib.util
import json
import os
import pty
import select
import shlex
import socket
import subprocess
import sys
import time
import unittest
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from c10d_rs.__main__ import command
from pages import blocks_in
from servers import free_port, new_folder

PAGE = Path(__file__).resolve().parents[3] / "docs/how-to/debug.md"
PORT_OF_PAGE = 5678
SCRIPT = """\
import os
answer = 6 * 7
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "has", answer, flush=True)
"""
LINE = 3
LIMIT_SECS = 60
HAS_DEBUGPY = importlib.util.find_spec("debugpy") is not None


def block(language: str) -> str:
    """Return the first block in a language."""
    return blocks_in(PAGE, language)[0]


def configurations() -> Dict[str, Dict[str, Any]]:
    """Return the entries of the page's ``launch.json`` by their ``request``."""
    return {entry["request"]: entry for entry in json.loads(block("json"))["configurations"]}


def await_debugger(port: int) -> None:
    """Wait until a debugger listens, and then for the rest of its start.

    A connection during its start can end the thread that accepts connections. An editor connects later.
    """
    listens = f"0100007F:{port:04X} 00000000:0000 0A"
    deadline = time.monotonic() + LIMIT_SECS
    while listens not in Path("/proc/net/tcp").read_text():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing listens on port {port}")
        time.sleep(0.05)
    time.sleep(1)


class Client:
    """A session of the debug adapter protocol."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), LIMIT_SECS)
        self.stream = self.socket.makefile("rb")
        self.sent = 0
        self.messages: List[Dict[str, Any]] = []
        self.in_terminal: Optional[subprocess.Popen[str]] = None

    def close(self) -> None:
        self.stream.close()
        self.socket.close()

    def write(self, message: Dict[str, Any]) -> int:
        self.sent += 1
        text = json.dumps({"seq": self.sent, **message}).encode()
        self.socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(text), text))
        return self.sent

    def send(self, command: str, arguments: Dict[str, Any]) -> int:
        return self.write({"type": "request", "command": command, "arguments": arguments})

    def wait(self, wanted: Callable[[Dict[str, Any]], bool]) -> Dict[str, Any]:
        """Return the first message of this kind, even if it has been read."""
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
            if message.get("command") == "runInTerminal" and message["type"] == "request":
                self.run_in_terminal(message)
            elif wanted(message):
                return message
            else:
                self.messages.append(message)

    def run_in_terminal(self, request: Dict[str, Any]) -> None:
        """Start the program that the debugger would have in a terminal of the editor."""
        asked = request["arguments"]
        self.in_terminal = subprocess.Popen(
            asked["args"],
            cwd=asked["cwd"],
            env={**os.environ, **{name: value for name, value in asked.get("env", {}).items() if value is not None}},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.write({"type": "response", "request_seq": request["seq"], "success": True, "command": "runInTerminal"})

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

    def begin(self, request: str, arguments: Dict[str, Any], script: Optional[str]) -> None:
        """Begin the session that a configuration describes, with a breakpoint in the script."""
        self.ask("initialize", {"adapterID": "test", "pathFormat": "path", "supportsRunInTerminalRequest": True})
        number = self.send(request, arguments)
        self.event("initialized")
        if script is not None:
            self.ask("setBreakpoints", {"source": {"path": script}, "breakpoints": [{"line": LINE}]})
        self.ask("configurationDone", {})
        self.wait(lambda it: it.get("request_seq") == number)


@unittest.skipUnless(HAS_DEBUGPY, "LEFT OUT: needs debugpy")
class Debug(unittest.TestCase):
    def setUp(self) -> None:
        self.script = str(new_folder(self) / "train.py")
        Path(self.script).write_text(SCRIPT)

    def start(self, port: int) -> None:
        """Type the page's line with another port and script."""
        words = {"python": sys.executable, str(PORT_OF_PAGE): str(port), "train.py": self.script}
        self.run_ = subprocess.Popen(
            [words.get(word, word) for word in shlex.split(block("sh"))],
            env={**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(self.run_.kill)

    def attached(self) -> Client:
        """Start the job under a debugger, and return its session. A session can end while the debugger still starts."""
        for attempt in range(5):
            port = free_port()
            self.start(port)
            configuration = configurations()["attach"]
            self.assertEqual(configuration["connect"], {"host": "127.0.0.1", "port": PORT_OF_PAGE})
            await_debugger(port)
            outer = Client("127.0.0.1", port)
            self.addCleanup(outer.close)
            try:
                outer.begin("attach", {**configuration, "connect": {"host": "127.0.0.1", "port": port}}, None)
                return outer
            except EOFError:
                if attempt == 4:
                    raise
        raise AssertionError("unreachable")

    def launched(self) -> Client:
        """Start the job as the editor does, and return its session."""
        port = free_port()
        words = ["-m", "debugpy.adapter", "--host", "127.0.0.1", "--port", str(port)]
        adapter = subprocess.Popen([sys.executable, *words])
        self.addCleanup(adapter.wait)
        self.addCleanup(adapter.kill)
        await_debugger(port)
        outer = Client("127.0.0.1", port)
        self.addCleanup(outer.close)
        text = json.dumps(configurations()["launch"]).replace("${file}", self.script)
        folder = {"cwd": str(Path(self.script).parent), "python": [sys.executable]}
        outer.begin("launch", {**json.loads(text), **folder}, None)
        if outer.in_terminal is None:
            raise AssertionError("the debugger asked for no terminal")
        self.run_ = outer.in_terminal
        self.addCleanup(self.run_.kill)
        return outer

    def rank_of(self, outer: Client, script: Optional[str]) -> Client:
        """Return the session of the rank that the debugger of the launcher reports."""
        child = outer.event("debugpyAttach")
        inner = Client(child["connect"]["host"], child["connect"]["port"])
        self.addCleanup(inner.close)
        inner.begin("attach", child, script)
        return inner

    def end(self, *clients: Client) -> Tuple[int, str, str]:
        """Return the exit code, standard output and standard error. The debugger holds both until its clients leave."""
        code = self.run_.wait(timeout=LIMIT_SECS)
        for client in clients:
            client.close()
        output, log = self.run_.communicate(timeout=LIMIT_SECS)
        return code, output, log

    def assert_rank_0_stops(self, outer: Client) -> None:
        inner = self.rank_of(outer, self.script)
        thread = inner.event("stopped")["threadId"]
        frame = inner.ask("stackTrace", {"threadId": thread})["stackFrames"][0]
        self.assertEqual(frame["line"], LINE)
        rank = {"expression": "os.environ['RANK']", "frameId": frame["id"], "context": "repl"}
        self.assertEqual(inner.ask("evaluate", rank)["result"], "'0'")
        inner.ask("continue", {"threadId": thread})
        code, output, log = self.end(outer, inner)
        self.assertEqual(code, 0, log)
        self.assertEqual(sorted(output.splitlines()), [f"rank {rank} of 2 has 42" for rank in range(2)])

    def test_a_breakpoint_stops_the_rank_that_the_line_of_the_page_names(self) -> None:
        self.assert_rank_0_stops(self.attached())

    def test_the_launch_entry_of_the_page_stops_the_same_rank(self) -> None:
        self.assert_rank_0_stops(self.launched())

    def test_the_exit_code_is_that_of_the_job(self) -> None:
        Path(self.script).write_text("import os, sys\nsys.exit(3 if os.environ['RANK'] == '0' else 0)\n")
        outer = self.attached()
        code, _, log = self.end(outer, self.rank_of(outer, None))
        self.assertEqual(code, 1, log)


class Terminal(unittest.TestCase):
    def test_the_terminal_of_the_page(self) -> None:
        """Type what the page types: the line, and then the words after each prompt of the debugger."""
        lines = block("console").splitlines()
        prompt = "(Pdb) "
        typed = [line.removeprefix(prompt) for line in lines if line.startswith(prompt)]
        shown = [line for line in lines if line.startswith("rank ") or line.startswith("'")]
        self.assertEqual((typed, len(shown)), (["p rank", "c"], 3), lines)
        folder = new_folder(self)
        (folder / "train.py").write_text(block("python"))
        words = shlex.split(lines[0].removeprefix("$ "))
        self.assertEqual(words[0], "c10d")
        child, terminal = pty.fork()
        if child == 0:
            os.chdir(folder)
            os.execv(command(), words)
        screen = ""
        prompts = 0
        while select.select([terminal], [], [], LIMIT_SECS)[0]:
            try:
                screen += os.read(terminal, 4096).decode(errors="replace")
            except OSError:  # every program has closed the terminal
                break
            if typed and screen.count(prompt) > prompts:
                prompts += 1
                os.write(terminal, typed.pop(0).encode() + b"\n")
        os.close(terminal)
        _, status = os.waitpid(child, 0)
        self.assertEqual(status, 0, screen)
        for line in shown:
            self.assertIn(line, screen)


if __name__ == "__main__":
    unittest.main()
