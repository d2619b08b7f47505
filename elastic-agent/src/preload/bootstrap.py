"""The Python side of a template: imports modules once, and forks workers that have them.

The launcher runs `python -u -c STUB`. STUB reads this file from standard input, a SOCK_SEQPACKET socket, and runs
it in a dictionary of its own, so that `__main__` stays untouched for the workers' scripts. Packets are fields
separated by NUL; `packet.rs` and `options.rs` have the launcher's side.

A worker is forked twice: the process in between ends at once, and the launcher, as subreaper, becomes the parent of
the worker. The worker waits at its gate, another socket, until the launcher tells it what to run.
"""

import gc

# Garbage collection leaves alone what the template has (gc.freeze), so that workers share its memory. Destructors
# would not run at a worker's exit then. The handler that is registered first runs last.
__import__("atexit").register(gc.unfreeze)

import os
import socket
import sys

# In angle brackets as "<string>": tools that measure or trace lines skip such names.
NAME = "<c10d preload>"
PATIENT_THREADS = ("jemalloc_bg_thd",)
INJECTORS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
CUDA_ERROR_NOT_INITIALIZED = 3
PR_SET_PDEATHSIG = 1
SIGKILL = 9
START_BYTES_MAX = 8192


class Refused(Exception):
    """Why workers cannot be forked from this process."""


def main():
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    config = read_config(control.recv(1 << 17))
    try:
        if sys.version_info < (3, 9):
            raise Refused("Python %d.%d is older than 3.9" % sys.version_info[:2])
        template = Template(control, config)
        template.import_all()
    except BaseException as error:
        text = str(error) if isinstance(error, Refused) else "the template failed: %r" % error
        control.send(packet(b"refused", os.fsencode(text)))
        os._exit(0)
    return template.serve()


def packet(*fields):
    return b"\0".join(fields)


def read_config(data):
    """launcher's pid, script or `-m` and module, then three lists, each with its length in front."""
    fields = data.split(b"\0")
    config = {"launcher": int(fields[0]), "command": os.fsdecode(fields[1])}
    position = 2
    for name in ("modules", "variables", "hooks"):
        end = position + 1 + int(fields[position])
        config[name] = [os.fsdecode(field) for field in fields[position + 1 : end]]
        position = end
    return config


class Template:
    def __init__(self, control, config):
        import ctypes

        self.control = control
        self.launcher = config["launcher"]
        self.command = config["command"]
        self.modules = config["modules"]
        self.exact = {name for name in config["variables"] if not name.endswith("*")}
        self.prefixes = tuple(name[:-1] for name in config["variables"] if name.endswith("*"))
        self.hooks = config["hooks"]
        self.initial = dict(os.environ)
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.path_entry = first_path_entry(self.command)
        if self.path_entry is not None:
            # Python has inserted '' for the option -c.
            sys.path[0] = self.path_entry
        sys.argv[1:] = []
        self.set_title([b"c10d-preload", os.fsencode(",".join(self.modules))])

    def import_all(self):
        """Imports the modules, and finds what forked workers could not live with."""
        import importlib
        import time

        for name in INJECTORS:
            if os.environ.get(name):
                raise Refused("%s injects a profiler, which forked workers cannot use" % name)
        if "nsys" in os.environ.get("LD_PRELOAD", ""):
            raise Refused("LD_PRELOAD injects a profiler, which forked workers cannot use")
        files = open_files()
        watch = VariableWatch(self.is_varying)
        seconds = []
        for name in self.modules:
            began = time.monotonic()
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                raise Refused("no module named %r" % error.name if error.name else str(error))
            except BaseException as error:
                raise Refused("cannot import %s: %s: %s" % (name, type(error).__name__, error))
            seconds.append(b"%s=%.3f" % (os.fsencode(name), time.monotonic() - began))
        watch.end()
        if watch.seen:
            raise Refused("%s reads %s while it is imported (%s:%d)" % watch.seen)
        gc.collect()
        self.generators = random_generators()
        refuse_threads()
        refuse_files(files)
        refuse_children()
        refuse_devices()
        self.sources = self.sources_to_check()
        gc.freeze()
        self.control.send(packet(b"ready", *seconds))

    def is_varying(self, name):
        """Whether workers or rounds differ in this variable."""
        return name in self.exact or name.startswith(self.prefixes)

    def replace_environment(self, variables):
        """Sets the launcher's variables, and those that a wrapper of the interpreter or an import has changed. Those of
        an outer launcher differ too."""
        environment = {os.fsdecode(name): os.fsdecode(value) for name, _, value in variables}
        for name in self.initial:
            if name not in os.environ:
                environment.pop(name, None)
        for name, value in os.environ.items():
            if not (self.is_varying(name) or name.startswith("C10D_")):
                environment[name] = value
        os.environ.clear()
        os.environ.update(environment)

    def serve(self):
        """Answers the launcher. Returns in workers only: what to run."""
        while True:
            data, received, _, _ = socket.recv_fds(self.control, 4096, 1)
            if not data:
                end()
            words = data.split(b"\0")
            if words[0] not in (b"fork", b"check"):
                os._exit(1)
            changed = self.changed_source()
            if changed is not None:
                for descriptor in received:
                    os.close(descriptor)
                self.control.send(packet(b"changed", os.fsencode(changed)))
            elif words[0] == b"check":
                self.control.send(b"fresh")
            else:
                gate = received[0]
                started = self.fork(int(words[1]), gate)
                if started is not None:
                    return started
                os.close(gate)

    def fork(self, count, gate):
        """Returns in workers what to run, in the template None."""
        middle = fork()
        if middle == 0:
            try:
                workers = []
                for _ in range(count):
                    worker = fork()
                    if worker == 0:
                        break
                    workers.append(worker)
                else:
                    self.control.send(packet(b"forked", *(b"%d" % worker for worker in workers)))
                    os._exit(0)
            except BaseException:
                os._exit(1)
            return self.wait_at_gate(gate)
        _, status = os.waitpid(middle, 0)
        self.control.send(b"adopted" if status == 0 else b"failed")
        return None

    def wait_at_gate(self, descriptor):
        self.control.close()
        gate = socket.socket(fileno=descriptor)
        # While there is time.
        self.set_title([b"c10d-standby", os.fsencode(",".join(self.modules))])
        set_native_id()
        seed(self.generators)
        leave_temporary_files()
        data, received, _, _ = socket.recv_fds(gate, START_BYTES_MAX, 5)
        # The launcher, or its template with it, has ended: nothing must start.
        if not data or len(received) != 5:
            os._exit(127)
        contents, *streams, guardian = received
        os.setsid()
        self.libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
        # A launcher that died before the line above no longer causes a signal. It may be process 1.
        if os.getppid() != self.launcher:
            os._exit(127)
        try:
            os.write(guardian, b"%d\n" % os.getpid())
        except OSError:
            # A worker that the guardian does not know is better than none.
            pass
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        with open(contents, "rb") as file:
            start = read_start(file.read())
        for descriptor in (*streams, guardian):
            os.close(descriptor)
        os.chdir(start["directory"])
        gate.send(packet(b"started", data, b"%d" % os.getpid()))
        gate.close()
        return self, start

    def sources_to_check(self):
        """The state of the source files that a user may edit: not those that are installed."""
        import sysconfig

        paths = sysconfig.get_paths()
        installed = tuple(
            os.path.join(os.path.realpath(paths[name]), "")
            for name in ("stdlib", "platstdlib", "purelib", "platlib")
        )
        sources = {}
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None)
            if not isinstance(path, str):
                continue
            is_asked = name in self.modules
            real = os.path.realpath(path)
            if is_asked or not (real.startswith(installed) or "-packages" + os.sep in real):
                sources[path] = state_of(path)
        return sources

    def changed_source(self):
        for path, state in self.sources.items():
            if state_of(path) != state:
                return path
        return None

    def set_title(self, words):
        """Shows a command line in ps(1): overwrites the one that the system has given this process."""
        try:
            import ctypes

            with open("/proc/self/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            begin, end = int(fields[45]), int(fields[46])
            title = b"\0".join(words)[: end - begin - 1]
            ctypes.memset(begin, 0, end - begin)
            ctypes.memmove(begin, title, len(title))
        except (OSError, ValueError, IndexError):
            pass


def fork():
    import warnings

    with warnings.catch_warnings():
        # OpenBLAS ends its threads in fork(), but Python has counted them before.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def read_start(data):
    """The working directory, the command line, and the environment; the last two with their length in front."""
    fields = data.split(b"\0")
    directory, count = fields[0], int(fields[1])
    return {"directory": directory, "command": fields[2 : 2 + count], "environment": fields[2 + count :]}


def state_of(path):
    try:
        status = os.stat(path)
        return status.st_mtime_ns, status.st_size, status.st_ino
    except OSError:
        return None


class VariableWatch:
    """Notes the first read of a variable that differs between workers or rounds."""

    def __init__(self, is_varying):
        self.seen = None
        self.kind = kind = type(os.environ)
        self.original = original = kind.__getitem__

        def getitem(environ, key):
            if isinstance(key, str) and is_varying(key) and not self.seen:
                self.note(key)
            return original(environ, key)

        kind.__getitem__ = getitem

    def note(self, key):
        frame = sys._getframe(2)
        while frame.f_back and frame.f_globals.get("__name__") in ("os", "_collections_abc", "collections.abc"):
            frame = frame.f_back
        module = frame.f_globals.get("__name__", "?").partition(".")[0]
        self.seen = module, key, frame.f_code.co_filename, frame.f_lineno

    def end(self):
        self.kind.__getitem__ = self.original


def random_generators():
    """Generators of modules, which would give the same numbers in all workers."""
    random = sys.modules.get("random")
    if random is None:
        return []
    # Not isinstance(): it runs code of lazy proxies.
    return [each for each in gc.get_objects() if issubclass(type(each), random.Random)]


def open_files():
    files = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            files[int(name)] = os.readlink("/proc/self/fd/" + name)
        except OSError:
            # The directory itself.
            pass
    return files


def refuse_files(before):
    for number, target in sorted(open_files().items()):
        if before.get(number) != target:
            raise Refused("an import left a file open, which forked workers would share: %s" % target)


def refuse_threads():
    # Libraries that are prepared for fork() end their threads in it.
    probe = fork()
    if probe == 0:
        os._exit(0)
    os.waitpid(probe, 0)
    import threading

    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            raise Refused("an import left the thread %r running, which forked workers lack" % thread.name)
    own = str(os.getpid())
    for task in os.listdir("/proc/self/task"):
        try:
            with open("/proc/self/task/%s/comm" % task) as file:
                name = file.read().strip()
        except OSError:
            continue
        if task != own and name not in PATIENT_THREADS:
            raise Refused("an import left the thread %r running, which forked workers lack" % name)


def refuse_children():
    try:
        with open("/proc/self/task/%d/children" % os.getpid()) as file:
            children = file.read().split()
    except OSError:
        return
    if children:
        raise Refused("an import left the process %s running" % children[0])


def refuse_devices():
    import ctypes

    with open("/proc/self/maps") as file:
        drivers = {line.split(None, 5)[5].strip() for line in file if "/libcuda.so" in line}
    for path in drivers:
        try:
            driver = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            status = driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))
        except (OSError, AttributeError):
            continue
        if status != CUDA_ERROR_NOT_INITIALIZED:
            raise Refused("the CUDA driver is initialised by an import, which forked workers cannot use")
    for name in ("torch.cuda", "torch.xpu"):
        is_initialized = getattr(sys.modules.get(name), "is_initialized", None)
        if is_initialized is not None and is_initialized():
            raise Refused("%s is initialised by an import, which forked workers cannot use" % name)


def first_path_entry(command):
    """What Python puts first into sys.path for a script, or for `-m`; None if it puts nothing there."""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return None
    return os.getcwd() if command == "-m" else os.path.dirname(os.path.realpath(command))


def become_worker(template, start):
    """Makes this process what a fresh interpreter would be. Returns the arguments after `-u`."""
    template.replace_environment(each.partition(b"=") for each in start["environment"])
    command = [os.fsdecode(word) for word in start["command"]]
    arguments = command[2:]
    entry = first_path_entry(arguments[0])
    if entry is not None and entry != template.path_entry and template.path_entry in sys.path:
        sys.path[sys.path.index(template.path_entry)] = entry
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = command
    template.set_title(start["command"])
    for hook in template.hooks:
        module, _, function = hook.partition(":")
        if module in sys.modules:
            getattr(sys.modules[module], function)()
    return command[0], arguments


def set_native_id():
    """The main thread still has the template's."""
    import threading

    set_id = getattr(threading.main_thread(), "_set_native_id", None)
    if set_id is not None:
        set_id()


def seed(generators):
    """Gives each worker random numbers of its own, as a fresh interpreter has them."""
    for generator in generators:
        generator.seed()
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        # torch.seed() would initialise devices too.
        torch.default_generator.seed()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)


def leave_temporary_files():
    """Files of the imports are the template's: a worker that ends must not remove them from under the others."""
    import atexit
    import weakref

    for name in ("remove", "unlink", "rmdir", "removedirs"):
        atexit.unregister(getattr(os, name))
    shutil, tempfile = (sys.modules.get(name) for name in ("shutil", "tempfile"))
    if shutil is not None:
        atexit.unregister(shutil.rmtree)
    if tempfile is None:
        return
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        owner = (finalizer.peek() or (None,))[0]
        if isinstance(owner, tempfile.TemporaryDirectory):
            finalizer.detach()
            atexit.unregister(owner.cleanup)


def end():
    """Ends the template as an interpreter ends, which removes the files. The launcher does not wait for long."""
    import atexit

    try:
        atexit._run_exitfuncs()
    finally:
        os._exit(0)


def hide_own_frames():
    """Exceptions of the script are shown without the frames of this file. The interpreter itself calls the hook and
    decides on the exit code."""
    original = sys.excepthook

    def excepthook(kind, value, traceback):
        sys.excepthook = original
        # The first frame is STUB's.
        while traceback is not None and traceback.tb_frame.f_code.co_filename in ("<string>", NAME):
            traceback = traceback.tb_next
        value.__traceback__ = traceback
        original(kind, value, traceback)

    sys.excepthook = excepthook


def run(program, arguments):
    """Runs a script, or the module after `-m`, as the interpreter does."""
    try:
        if arguments[0] == "-m":
            import runpy

            sys.argv[:] = ["-m", *arguments[2:]]
            runpy._run_module_as_main(arguments[1])
        else:
            sys.argv[:] = arguments
            run_script(program, arguments[0])
    except SystemExit:
        raise
    except BaseException:
        hide_own_frames()
        raise


def run_script(program, script):
    import io
    import importlib.machinery

    path = os.path.abspath(script)
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        sys.stderr.write("%s: can't open file %r: [Errno %d] %s\n" % (program, path, error.errno, error.strerror))
        sys.exit(2)
    main = sys.modules["__main__"].__dict__
    main.pop("__warningregistry__", None)
    main["__file__"] = path
    main["__cached__"] = None
    main["__loader__"] = importlib.machinery.SourceFileLoader("__main__", path)
    exec(compile(source, path, "exec", dont_inherit=True), main)


if __name__ == NAME:
    run(*become_worker(*main()))
