"""The interpreter ends while objects are open and daemon threads are inside calls: a thread that cannot get it back stays
where it is.
"""

import subprocess
import sys
import unittest

from c10d_rs import StoreServer

# Each run is one chance for a thread to come back too late.
RUNS = 5

SCRIPT = """
import sys, threading, time
import c10d_rs

kind, port = sys.argv[1], int(sys.argv[2])
inside = threading.Barrier(9)
# They are dropped when the interpreter ends.
server = c10d_rs.StoreServer()
group = c10d_rs.Group.join(c10d_rs.TCPStore("127.0.0.1", 0, is_master=True), 0, 1)

def work():
    store = c10d_rs.HashStore() if kind == "hash" else c10d_rs.TCPStore("127.0.0.1", port)
    inside.wait()
    while True:
        if kind == "add":
            store.add("n", 1)
        elif kind == "get":
            store.get("missing")
        else:
            try:
                store.wait(["missing"], 0.001)
            except TimeoutError:
                pass

for _ in range(8):
    threading.Thread(target=work, daemon=True).start()
inside.wait()
time.sleep(0.05)
print("the end")
"""


class Exit(unittest.TestCase):
    def test_daemon_threads_in_calls(self) -> None:
        with StoreServer() as server:
            for kind in ("add", "wait", "get", "hash"):
                for _ in range(RUNS):
                    command = [sys.executable, "-c", SCRIPT, kind, str(server.port)]
                    with self.subTest(kind):
                        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
                        self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (0, "the end\n", ""))


if __name__ == "__main__":
    unittest.main()
