"""Prints what the package costs: python measure.py [WHEEL]. Fails if the wheel is too large."""

import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

import c10d_rs

# The extension and the command each contain SQLite, the status pages, and the reader of stacks with its tables of Python's
# interpreters.
WHEEL_BYTES_MAX = 18_000_000
IMPORTS = 15
WAKES = 1000
INTERRUPTS = 20

# Waits for one key after another, and answers each with the time at which the wait returned.
WAITER = """
import sys, time, c10d_rs
store = c10d_rs.TCPStore("127.0.0.1", int(sys.argv[1]))
for number in range(int(sys.argv[2])):
    store.wait([f"go {number}"])
    store.set(f"woken {number}", str(time.monotonic_ns()))
"""

# Passes bytes from its first connection to its second, like a store, and back.
FORWARDER = """
import socket, sys, threading
def forward(source, target):
    while data := source.recv(64):
        target.sendall(data)
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    ends = [listener.accept()[0] for _ in range(2)]
for end in ends:
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
threading.Thread(target=forward, args=ends[::-1]).start()
forward(*ends)
ends[1].shutdown(socket.SHUT_WR)
"""

# Answers each byte with the time at which it came.
RECEIVER = """
import socket, sys, time
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as end:
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while end.recv(1):
        end.sendall(str(time.monotonic_ns()).encode())
"""


def import_ms() -> float:
    """Return the median time that an import adds to an interpreter's start, in milliseconds."""

    def start(code: str) -> float:
        started = time.monotonic()
        subprocess.run([sys.executable, "-I", "-c", code], check=True)
        return time.monotonic() - started

    pairs = [(start("pass"), start("import c10d_rs")) for _ in range(IMPORTS)]
    return statistics.median(with_import - without for without, with_import in pairs) * 1e3


def wake_us(thread: bool) -> tuple[float, float]:
    """Return the median and the 99th percentile of the time from a set to the end of a wait, in microseconds."""
    code = f"import threading\nexec_ = {WAITER!r}\nthreading.Thread(target=exec, args=(exec_, globals())).start()"
    with c10d_rs.StoreServer() as server:
        store = c10d_rs.TCPStore("127.0.0.1", server.port)
        arguments = [str(server.port), str(WAKES)]
        with subprocess.Popen([sys.executable, "-c", code if thread else WAITER, *arguments]):
            times = []
            for number in range(WAKES):
                time.sleep(0.002)  # the waiter waits, and the processors rest
                sent = time.monotonic_ns()
                store.set(f"go {number}", "")
                times.append((int(store.get(f"woken {number}")) - sent) / 1e3)
    return percentiles(times)


def byte_us() -> tuple[float, float]:
    """Return the same for a byte that one process receives from another and passes on: the time that the system takes."""
    forward = [sys.executable, "-c", FORWARDER]
    with subprocess.Popen(forward, stdout=subprocess.PIPE) as forwarder:
        assert forwarder.stdout is not None
        port = forwarder.stdout.readline().decode().strip()
        with socket.create_connection(("127.0.0.1", int(port))) as end:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with subprocess.Popen([sys.executable, "-c", RECEIVER, port]):
                times = []
                for _ in range(WAKES):
                    time.sleep(0.002)
                    sent = time.monotonic_ns()
                    end.sendall(b"x")
                    times.append((int(end.recv(64)) - sent) / 1e3)
                end.shutdown(socket.SHUT_WR)
    return percentiles(times)


def percentiles(times: list[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile."""
    return statistics.median(times), statistics.quantiles(times, n=100)[98]


def interrupt_ms() -> tuple[float, float]:
    """Return the median and the longest time from SIGINT to the exception, in milliseconds."""
    times = []
    with c10d_rs.StoreServer() as server:
        store = c10d_rs.TCPStore("127.0.0.1", server.port)
        for _ in range(INTERRUPTS):
            sent: list[float] = []

            def send(sent: list[float] = sent) -> None:
                sent.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)

            timer = threading.Timer(0.05, send)
            timer.start()
            try:
                store.get("missing")
            except KeyboardInterrupt:
                times.append((time.monotonic() - sent[0]) * 1e3)
            timer.join()
    return statistics.median(times), max(times)


def main() -> None:
    """Measure and print."""
    for wheel in sys.argv[1:]:
        size = os.stat(wheel).st_size
        print(f"wheel                      {size / 1e6:.1f} MB")
        if size > WHEEL_BYTES_MAX:
            sys.exit(f"error: {wheel} has more than {WHEEL_BYTES_MAX / 1e6:.0f} MB")
    print(f"import                     {import_ms():.0f} ms")
    for where, thread in (("main thread", False), ("other thread", True)):
        median, high = wake_us(thread)
        print(f"wait ends, {where:<15} p50 {median:.0f} us, p99 {high:.0f} us after the set")
    median, high = byte_us()
    print(f"a byte by way of a process p50 {median:.0f} us, p99 {high:.0f} us")
    median, longest = interrupt_ms()
    print(f"Ctrl-C ends a wait         p50 {median:.1f} ms, max {longest:.1f} ms")


if __name__ == "__main__":
    main()
