"""Exit after an exception without collecting memory, in a worker whose launcher keeps the other workers.

The launcher starts a replacement when the process has exited. After torch's import, Python collects garbage for 1 to 2 s of
processor time at the end, which is of no use. So the process runs only the earlier steps of Python's shutdown and exits, like the
children of ``multiprocessing``.
"""

import atexit
import gc
import io
import os
import sys
import threading
from contextlib import suppress
from types import FrameType, TracebackType

# The outermost functions of a running program: of a script, and of `python -m`.
_PROGRAMS = ("<module>", "_run_module_as_main")

_is_on = False


def end_quickly_after_exceptions() -> None:
    """From now on, exit in this way if the program of this process ends by an exception. Otherwise the process exits normally."""
    global _is_on
    if _is_on:
        return
    _is_on = True
    report = sys.excepthook

    def end_after(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        report(kind, error, traceback)
        # Of KeyboardInterrupt, Python makes a signal.
        if issubclass(kind, Exception) and _has_ended():
            _end()

    sys.excepthook = end_after


def _has_ended() -> bool:
    """Whether Python calls the hook because the program has ended. A program that calls it itself continues."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        outermost, frame = frame, frame.f_back
    is_program = outermost.f_code.co_name in _PROGRAMS
    return not is_program and threading.current_thread() is threading.main_thread()


def _end() -> None:
    """Wait for threads, call the functions of atexit and flush files, in this order, as Python does."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        # Now, as a forked worker has the template's objects frozen until atexit, and shares them as long as it reads none.
        # By the class: some proxies answer `isinstance` by an import.
        files = [it for it in gc.get_objects() if issubclass(type(it), io.IOBase)]
        atexit._run_exitfuncs()
        for file in files:
            with suppress(Exception):
                file.flush()
    finally:
        os._exit(1)
