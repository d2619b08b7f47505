"""Prints what the package costs: python measure.py [WHEEL]. Fails if the wheel is too large."""

import os
import signal
import statistics
import subprocess
import sys
import threading
import time

import c10d_rs

WHEEL_BYTES_MAX = 10_000_000
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
    median, longest = interrupt_ms()
    print(f"Ctrl-C ends a wait         p50 {median:.1f} ms, max {longest:.1f} ms")


if __name__ == "__main__":
    main()
