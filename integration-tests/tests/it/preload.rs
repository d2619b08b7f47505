//! `c10d run --preload`: workers that are forked from a template behave as fresh interpreters do.
//!
//! The scripts here need no PyTorch, only an interpreter; `preload_torch.rs` has those that train.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use c10d_membership::{GroupOptions, MemberKey, Membership, Message};
use c10d_store::{ServerOptions, TcpStore, TcpStoreOptions, TcpStoreServer};
use integration_tests::launcher::c10d;
use integration_tests::torch::{Feature, PYTHON_VARIABLE, Release};
use integration_tests::watchdog::Watchdog;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(300);

/// In the environment of all processes of a job.
const MARK: &str = "C10D_TEST_PRELOAD";

/// A folder with scripts and modules, and the launchers that run them.
struct Place(tempfile::TempDir);

/// A launcher that has ended.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// `c10d run OPTIONS`, in this folder.
    fn command(&self, options: &[&str]) -> Command {
        let mut command = Command::new(c10d());
        command.arg("run");
        self.prepare(command, options)
    }

    /// `torchrun OPTIONS`, in this folder.
    fn torchrun(&self, options: &[&str]) -> Command {
        let mut command = Command::new(std::env::var_os(PYTHON_VARIABLE).unwrap());
        command.args(["-m", "torch.distributed.run"]);
        self.prepare(command, options)
    }

    fn prepare(&self, mut command: Command, options: &[&str]) -> Command {
        command
            .args(options)
            .current_dir(self.0.path())
            .env("PYTHON_EXEC", std::env::var_os(PYTHON_VARIABLE).unwrap())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("PET_NO_SCHEDULER", "1")
            .env("OMP_NUM_THREADS", "1")
            .env(MARK, self.0.path())
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, options: &[&str]) -> Ended {
        ended(self.command(options).spawn().unwrap())
    }

    fn processes(&self) -> BTreeSet<i32> {
        let wanted = [MARK.as_bytes(), b"=", self.0.path().as_os_str().as_bytes()].concat();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries
            .filter(|entry| {
                let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
                let mut variables = environment.split(|byte| *byte == 0);
                variables.any(|variable| variable == wanted)
            })
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect()
    }

    /// The process of this place whose command line starts with `words`.
    fn process(&self, words: &str) -> Option<Pid> {
        let found = self.processes().into_iter().find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.starts_with(words)
        });
        found.and_then(Pid::from_raw)
    }

    /// Waits for a file that a worker writes, with a line end as its last byte.
    #[track_caller]
    fn line(&self, name: &str) -> String {
        until(name, || self.read(name).ends_with('\n'));
        self.read(name).trim_end().to_owned()
    }

    #[track_caller]
    fn assert_nothing_runs(&self) {
        until("the end of all processes", || self.processes().is_empty());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for pid in self.processes().into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn ended(mut child: Child) -> Ended {
    let mut stderr_pipe = child.stderr.take().unwrap();
    let reader = thread::spawn(move || {
        let mut stderr = String::new();
        stderr_pipe.read_to_string(&mut stderr).unwrap();
        stderr
    });
    let mut stdout = Vec::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut stdout)
        .unwrap();
    Ended {
        code: child.wait().unwrap().code(),
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: reader.join().unwrap(),
    }
}

#[track_caller]
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(120), "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// What a user can see of a worker: its streams and its end.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    stdout: String,
    stderr: String,
    end: String,
}

/// Runs the script and arguments `words` as a job of one worker. `variable` is set besides, as `NAME=value`.
fn see(place: &Place, name: &str, preload: &[&str], words: &[&str], variable: &str) -> Seen {
    let logs = place.path(&format!("logs-{name}-{}", preload.len()));
    let logs = logs.to_str().unwrap();
    let common = ["--redirects=3", "--json", "--log-dir", logs];
    let mut command = place.command(&[&common, preload, words].concat());
    if let Some((variable, value)) = variable.split_once('=') {
        command.env(variable, value);
    }
    let ended = ended(command.spawn().unwrap());
    let report: Value = serde_json::from_str(ended.stdout.lines().next_back().unwrap_or_default())
        .unwrap_or_else(|_| panic!("{name}: {ended:?}"));
    assert!(!ended.stderr.contains("preload"), "{name}: {ended:?}");
    let directory = PathBuf::from(report["log_directory"].as_str().unwrap());
    let stream = |stream: &str| {
        let bytes = fs::read(directory.join("attempt_0/0").join(stream)).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let failure = &report["failures"][0];
    Seen {
        stdout: stream("stdout.log"),
        stderr: stream("stderr.log"),
        end: format!(
            "{} {} {}",
            report["outcome"], failure["exit_code"], failure["signal"]
        ),
    }
}

/// Names and scripts.
const SCRIPTS: &[(&str, &str)] = &[
    ("nothing", ""),
    (
        "exception",
        "def f():\n    raise ValueError('a\\nb')\nf()\n",
    ),
    (
        "chained",
        "def f():\n    try:\n        {}[1]\n    except KeyError as e:\n        raise ValueError('b') from e\nf()\n",
    ),
    ("exit_3", "import sys\nsys.exit(3)\n"),
    (
        "exit_text",
        "import sys\nprint('out')\nsys.exit('a text')\n",
    ),
    ("exit_none", "raise SystemExit\n"),
    ("os_exit", "import os\nprint('lost?')\nos._exit(4)\n"),
    ("abort", "import os\nos.abort()\n"),
    (
        "segfault",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
    ),
    (
        "terminated",
        "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n",
    ),
    (
        "interrupted",
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(60)\n",
    ),
    ("interrupt_raised", "raise KeyboardInterrupt\n"),
    ("syntax", "x = (\n"),
    (
        "handlers",
        "import atexit, threading, time\n\
         class D:\n    def __del__(self):\n        print('del')\n\
         d = D()\n\
         atexit.register(print, 'atexit')\n\
         threading.Thread(target=lambda: (time.sleep(0.05), print('thread'))).start()\n\
         print('end')\n",
    ),
    (
        "thread_fails",
        "import threading\n\
         t = threading.Thread(target=lambda: 1 / 0, name='worker')\nt.start()\nt.join()\n",
    ),
    (
        "hook",
        "import sys\n\
         def hook(kind, value, traceback):\n    print('hook', kind.__name__, value, traceback.tb_lineno)\n\
         sys.excepthook = hook\nraise ValueError('x')\n",
    ),
    (
        "stdin",
        "import sys\nprint(repr(sys.stdin.read()), sys.stdin.isatty(), sys.stdin.encoding)\n",
    ),
    (
        "state",
        "import os, sys, signal, threading\n\
         print(sys.argv, sys.orig_argv[1:], sys.path[0], __name__, __file__, __spec__, __cached__, __package__)\n\
         print(type(__loader__).__name__, __doc__, sorted(globals()))\n\
         print({k: v for k, v in os.environ.items() if not k.startswith(('TORCHELASTIC', 'MASTER'))})\n\
         with os.popen('env | grep -c RANK') as count: print(count.read())\n\
         del count\n\
         print(os.getcwd(), os.getpid() == os.getsid(0) == os.getpgrp(), os.umask(0))\n\
         print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), signal.pthread_sigmask(0, []))\n\
         print(threading.current_thread().native_id == os.getpid(), threading.active_count())\n\
         print(sorted(os.listdir('/proc/self/fd')), sys.stdout.line_buffering, sys.stdout.write_through)\n\
         print(sys.flags, sys.warnoptions)\n\
         print(open('/proc/self/status').read().split('SigQ')[1].split('Cap')[0].partition('SigPnd')[2])\n\
         print(open('/proc/self/limits').read())\n",
    ),
    (
        "pools",
        "import multiprocessing as mp, concurrent.futures as cf\n\
         class C:\n    def __init__(self, x): self.x = x\n\
         def f(c): return C(c.x * 2)\n\
         if __name__ == '__main__':\n\
         \x20   for m in ('spawn', 'forkserver', 'fork'):\n\
         \x20       with mp.get_context(m).Pool(2) as p:\n\
         \x20           print(m, [c.x for c in p.map(f, [C(1), C(2), C(3)])])\n",
    ),
    (
        "child",
        "import subprocess, sys, os\n\
         print(subprocess.run([sys.executable, '-c', 'import os; print(os.environ[\"RANK\"], os.getppid())'],\n\
         \x20   capture_output=True, text=True).stdout == f'0 {os.getpid()}\\n')\n",
    ),
    (
        "warns",
        "import warnings\nwarnings.warn('careful')\nwarnings.warn('old', DeprecationWarning)\n",
    ),
    (
        "signal_handler",
        "import os, signal\n\
         signal.signal(signal.SIGUSR1, lambda *a: print('usr1', a[0]))\n\
         os.kill(os.getpid(), signal.SIGUSR1)\nprint('after')\n",
    ),
    (
        "unflushed",
        "import sys\nsys.stdout.write('no newline')\nsys.stderr.write('here neither')\n",
    ),
    (
        // A name that is no file's is in angle brackets: tools that measure coverage skip it.
        "frames",
        "import sys\nframe = sys._getframe()\nwhile frame:\n\
         \x20   if not frame.f_code.co_filename.startswith('<'): print(frame.f_code.co_filename)\n\
         \x20   frame = frame.f_back\n",
    ),
    (
        "interpreter",
        "import faulthandler, gc, sys, tracemalloc, warnings\n\
         print(sys.flags, sys._xoptions, sys.warnoptions, warnings.filters, __debug__)\n\
         print(faulthandler.is_enabled(), tracemalloc.is_tracing(), gc.isenabled(), sys.pycache_prefix)\n\
         print(sys.stdout.encoding, sys.stdout.errors, sys.stdin.encoding, sys.getfilesystemencoding())\n\
         print(sys.executable, sys.prefix, sys.gettrace(), sys.flags.hash_randomization or hash('a'))\n\
         open('/dev/null')\nassert False, 'asserts are on'\n",
    ),
];

/// Variables of the interpreter with which the script `interpreter` runs.
const VARIABLES: &[&str] = &[
    "PYTHONDEVMODE=1",
    "PYTHONFAULTHANDLER=1",
    "PYTHONOPTIMIZE=2",
    "PYTHONHASHSEED=7",
    "PYTHONTRACEMALLOC=5",
    "PYTHONWARNINGS=error",
    "PYTHONIOENCODING=latin-1:ignore",
    "PYTHONUTF8=1",
    "PYTHONMALLOC=debug",
    "PYTHONPYCACHEPREFIX=cache",
    "PYTHONNOUSERSITE=1",
];

#[test]
#[ignore = "needs Python: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn scripts_end_the_same_in_fresh_and_in_forked_workers() {
    let _watchdog = Watchdog::start("scripts_end_the_same_in_fresh_and_in_forked_workers", LIMIT);
    let place = Place::new();
    place.write(
        "module.py",
        "import sys\nprint(sys.argv, __name__)\nraise ValueError('m')\n",
    );
    fs::create_dir(place.path("package")).unwrap();
    place.write("package/__init__.py", "");
    place.write(
        "package/__main__.py",
        "print('package', __package__, __name__)\n",
    );
    for (name, script) in SCRIPTS {
        place.write(&format!("{name}.py"), script);
    }
    let mut cases: Vec<(String, Vec<String>, &str)> = SCRIPTS
        .iter()
        .map(|(name, _)| {
            let words = [format!("{name}.py"), "--x".to_owned(), "$${a} b".to_owned()];
            ((*name).to_owned(), words.to_vec(), "")
        })
        .collect();
    for (name, words) in [
        // Without a health check, which may wait for a mount, the launcher refuses it before it starts a worker.
        ("missing", &["--health-check=true", "missing.py"][..]),
        ("module", &["-m", "module", "a"]),
        ("package", &["-m", "package"]),
        ("no_module", &["-m", "nothing_here"]),
        ("absolute", &["ABSOLUTE"]),
    ] {
        let words = words
            .iter()
            .map(|word| word.replace("ABSOLUTE", place.path("state.py").to_str().unwrap()));
        cases.push((name.to_owned(), words.collect(), ""));
    }
    for variable in VARIABLES {
        let words = vec!["interpreter.py".to_owned()];
        cases.push(((*variable).to_owned(), words, *variable));
    }
    let count = cases.len();
    let cases = Mutex::new(cases);
    let check = || {
        while let Some((name, words, variable)) = { cases.lock().unwrap().pop() } {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let fresh = see(&place, &name, &[], &words, variable);
            let preload = ["--preload=json,logging", "--preload-required"];
            let forked = see(&place, &name, &preload, &words, variable);
            assert_eq!(fresh, forked, "{name}");
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(check)).collect();
        for thread in threads {
            thread.join().unwrap();
        }
    });
    assert_eq!(count, SCRIPTS.len() + 5 + VARIABLES.len());
    place.assert_nothing_runs();
}

/// Modules that make a template refuse, and what is said of it.
const REFUSED: &[(&str, &str)] = &[
    ("import nosuchmodule\n", "no module named 'nosuchmodule'"),
    (
        "1 / 0\n",
        "cannot import refused: ZeroDivisionError: division by zero",
    ),
    (
        "import sys\nsys.exit(3)\n",
        "cannot import refused: SystemExit: 3",
    ),
    ("import os\nos.abort()\n", "the template ended: SIGABRT"),
    (
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
        "the template ended: SIGKILL; the kernel sends it when memory runs out",
    ),
    (
        "import os\nos._exit(5)\n",
        "the template ended: exit code 5",
    ),
    (
        "import os\nRANK = os.environ.get('RANK', '0')\n",
        "refused reads RANK while it is imported (",
    ),
    (
        "import os\nx = 'TORCHELASTIC_RUN_ID' in os.environ\n",
        "refused reads TORCHELASTIC_RUN_ID while it is imported (",
    ),
    (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), name='helper', daemon=True).start()\n",
        "an import left the thread 'helper' running, which forked workers lack",
    ),
    (
        "import _thread, time\n_thread.start_new_thread(time.sleep, (1000,))\n",
        "an import left the thread 'python",
    ),
    (
        "import socket\ns = socket.socket()\n",
        "an import left a file open, which forked workers would share: socket:[",
    ),
    (
        "import subprocess\np = subprocess.Popen(['sleep', '1000'])\n",
        "an import left the process ",
    ),
];

#[test]
#[ignore = "needs Python: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn what_forked_workers_cannot_live_with_is_refused_and_workers_start_without_it() {
    let _watchdog = Watchdog::start("preload_refusals", LIMIT);
    for (module, text) in REFUSED {
        let place = Place::new();
        place.write("refused.py", module);
        place.write("train.py", "print('trained')\n");
        let ended = place.run(&["--preload=json,refused", "train.py"]);
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (Some(0), "trained\n"),
            "{ended:?}"
        );
        // A job that lasts longer than its template is told of the next ones too.
        let is_news =
            |line: &&str| line.contains("preload") && !line.ends_with("; starting it again");
        let said: Vec<&str> = ended.stderr.lines().filter(is_news).collect();
        let [line] = said[..] else {
            panic!("not one line: {ended:?}")
        };
        assert!(
            line.contains(&format!("preload: workers start without it: {text}")),
            "{line}"
        );
        let ended = place.run(&["--preload=json,refused", "--preload-required", "train.py"]);
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (Some(1), ""),
            "{ended:?}"
        );
        assert!(ended.stderr.contains(text), "{text}: {ended:?}");
        place.assert_nothing_runs();
    }
}

#[test]
#[ignore = "needs a C compiler and Python: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_driver_that_an_import_has_initialised_is_refused_and_one_that_is_only_loaded_is_not() {
    let place = Place::new();
    place.write(
        "cuda.c",
        "static int is_on; int cuInit(int flags) { is_on = 1; return 0; }\n\
         int cuDeviceGetCount(int *n) { *n = 0; return is_on ? 0 : 3; }\n",
    );
    let library = place.path("libcuda.so.1");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &place.path("cuda.c")])
        .status()
        .unwrap();
    assert!(compiled.success());
    place.write("train.py", "print('trained')\n");
    for (call, is_refused) in [("", false), ("driver.cuInit(0)\n", true)] {
        let load = format!(
            "import ctypes\ndriver = ctypes.CDLL({:?})\n",
            library.to_str().unwrap()
        );
        place.write("driver_module.py", &(load + call));
        let ended = place.run(&["--preload=driver_module", "train.py"]);
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (Some(0), "trained\n"),
            "{ended:?}"
        );
        let text = "workers start without it: the CUDA driver is initialised by an import, which forked workers cannot use";
        assert_eq!(ended.stderr.contains(text), is_refused, "{ended:?}");
    }
}

/// A worker that writes a line to `NAME.RANK.RESTART` and waits for the file `end`; rank 0 exits with 7 as long as there
/// is a file `fail`.
const WAITER: &str = "\
import os, sys, time, loaded
name = '%s.%s' % (os.environ['RANK'], os.environ['TORCHELASTIC_RESTART_COUNT'])
with open('up.' + name + '.tmp', 'w') as f:
    print(os.getpid(), os.getppid(), loaded.PID, loaded.VALUE, file=f)
os.rename('up.' + name + '.tmp', 'up.' + name)
while not os.path.exists('end'):
    if os.environ['RANK'] == '0' and os.path.exists('fail'):
        os.unlink('fail')
        sys.exit(7)
    time.sleep(0.005)
";

/// What a worker has written: its process, its parent, the process that has imported `loaded`, the module's value.
fn up(place: &Place, rank: usize, restart: usize) -> [String; 4] {
    let line = place.line(&format!("up.{rank}.{restart}"));
    let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    words.try_into().unwrap()
}

fn waiters(value: &str) -> Place {
    let place = Place::new();
    place.write("train.py", WAITER);
    place.write(
        "loaded.py",
        &format!("import os\nPID = os.getpid()\nVALUE = {value}\n"),
    );
    place
}

const RESTARTS: &[&str] = &["--nproc-per-node=2", "--max-restarts=9", "--preload=loaded"];

#[test]
#[ignore = "needs Python: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn workers_of_all_rounds_are_children_of_the_launcher_from_one_template() {
    let _watchdog = Watchdog::start("preload_rounds", LIMIT);
    for standby in [&[][..], &["--preload-standby"]] {
        let place = waiters("1");
        let launcher = place
            .command(&[RESTARTS, standby, &["train.py"]].concat())
            .spawn()
            .unwrap();
        let mut templates = BTreeSet::new();
        let mut pids = BTreeSet::new();
        for restart in 0..5 {
            for rank in 0..2 {
                let [pid, parent, template, _] = up(&place, rank, restart);
                assert_eq!(parent, launcher.id().to_string());
                let title = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
                let title = String::from_utf8_lossy(&title).replace('\0', " ");
                assert!(title.contains(" -u train.py "), "{title}");
                templates.insert(template);
                pids.insert(pid);
            }
            place.write(if restart < 4 { "fail" } else { "end" }, "");
        }
        assert_eq!((templates.len(), pids.len()), (1, 10));
        let ended = ended(launcher);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        place.assert_nothing_runs();
    }
}

/// A worker that ends as an interpreter does would remove what the imports have registered for that.
#[test]
#[ignore = "needs Python: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn temporary_files_of_imports_last_as_long_as_the_template() {
    let _watchdog = Watchdog::start("preload_temporary_files", LIMIT);
    let place = waiters("1");
    place.write(
        "loaded.py",
        "import atexit, os, shutil, tempfile\n\
         PID = os.getpid()\n\
         FINALIZED = tempfile.TemporaryDirectory(prefix='tmp.', dir=os.getcwd())\n\
         CLEANED = tempfile.TemporaryDirectory(prefix='tmp.', dir=os.getcwd())\n\
         atexit.register(CLEANED.cleanup)\n\
         REMOVED = tempfile.mkdtemp(prefix='tmp.', dir=os.getcwd())\n\
         atexit.register(shutil.rmtree, REMOVED)\n\
         class Count:\n\
         \x20   def __str__(self):\n\
         \x20       names = FINALIZED.name, CLEANED.name, REMOVED\n\
         \x20       return str(sum(map(os.path.isdir, names)))\n\
         VALUE = Count()\n",
    );
    let launcher = place
        .command(&[RESTARTS, &["train.py"]].concat())
        .spawn()
        .unwrap();
    let mut templates = BTreeSet::new();
    for restart in 0..3 {
        for rank in 0..2 {
            let [_, _, template, count] = up(&place, rank, restart);
            assert_eq!(count, "3", "start {restart}");
            templates.insert(template);
        }
        place.write(if restart < 2 { "fail" } else { "end" }, "");
    }
    assert_eq!(templates.len(), 1);
    let ended = ended(launcher);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let entries = fs::read_dir(place.path("")).unwrap().flatten();
    let left: Vec<_> = entries
        .filter(|entry| entry.file_name().as_bytes().starts_with(b"tmp."))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
#[ignore = "needs Python: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_changed_source_is_imported_again() {
    let _watchdog = Watchdog::start("preload_changed", LIMIT);
    for standby in [&[][..], &["--preload-standby"]] {
        let place = waiters("'before'");
        let launcher = place
            .command(&[RESTARTS, standby, &["train.py"]].concat())
            .spawn()
            .unwrap();
        assert_eq!(up(&place, 1, 0)[3], "before");
        place.write(
            "loaded.py",
            "import os\nPID = os.getpid()\nVALUE = 'after it'.split()[0]\n",
        );
        place.write("fail", "");
        assert_eq!(up(&place, 1, 1)[3], "after");
        assert_eq!(
            up(&place, 0, 1)[2],
            up(&place, 1, 1)[2],
            "not forked from one process"
        );
        place.write("end", "");
        let ended = ended(launcher);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(
            ended
                .stderr
                .contains("loaded.py has changed since it was imported"),
            "{ended:?}"
        );
    }
}

fn template(place: &Place) -> Pid {
    let mut found = None;
    until("the template", || {
        found = place.process("c10d-preload loaded");
        found.is_some()
    });
    found.unwrap()
}

#[test]
#[ignore = "needs Python: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn running_workers_do_not_notice_the_end_of_their_template_and_later_ones_have_another() {
    let _watchdog = Watchdog::start("preload_killed", LIMIT);
    for standby in [&[][..], &["--preload-standby"]] {
        let place = waiters("1");
        let launcher = place
            .command(&[RESTARTS, standby, &["train.py"]].concat())
            .spawn()
            .unwrap();
        let [pid, _, first, _] = up(&place, 0, 0);
        let killed = template(&place);
        assert_eq!(killed.as_raw_nonzero().to_string(), first);
        kill_process(killed, Signal::KILL).unwrap();
        until("another template", || template(&place) != killed);
        if !Path::new(&format!("/proc/{pid}")).exists() {
            kill_process(Pid::from_child(&launcher), Signal::TERM).unwrap();
            panic!("{standby:?} worker {pid} ended: {:?}", ended(launcher));
        }
        place.write("fail", "");
        let [_, parent, second, _] = up(&place, 0, 1);
        assert_eq!(parent, launcher.id().to_string());
        assert_eq!(second, template(&place).as_raw_nonzero().to_string());
        place.write("end", "");
        assert_eq!(ended(launcher).code, Some(0));
        place.assert_nothing_runs();
    }
}

#[test]
#[ignore = "needs Python: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_stopped_template_delays_a_start_by_seconds_only() {
    let _watchdog = Watchdog::start("preload_stopped", LIMIT);
    let place = waiters("1");
    let launcher = place
        .command(&[RESTARTS, &["train.py"]].concat())
        .spawn()
        .unwrap();
    let first = up(&place, 0, 0);
    kill_process(template(&place), Signal::STOP).unwrap();
    place.write("fail", "");
    // A fresh interpreter has imported the module itself.
    let second = up(&place, 0, 1);
    assert_eq!(second[0], second[2]);
    // The stopped one was replaced.
    until("another template", || {
        template(&place).as_raw_nonzero().to_string() != first[2]
    });
    place.write("fail", "");
    let third = up(&place, 0, 2);
    assert_ne!(third[0], third[2]);
    place.write("end", "");
    let ended = ended(launcher);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("preload: workers start without it: a signal has stopped the template"),
        "{ended:?}"
    );
    place.assert_nothing_runs();
}

#[test]
#[ignore = "needs Python: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn nothing_outlives_a_killed_launcher() {
    let _watchdog = Watchdog::start("preload_launcher_killed", LIMIT);
    // While the template imports, while workers run, and with standbys at their gate.
    for (module, options) in [
        (
            "import os, time\nopen('importing', 'w').write('x\\n')\ntime.sleep(1000)\n",
            &[][..],
        ),
        ("import os\nPID = os.getpid()\nVALUE = 1\n", &[]),
        (
            "import os\nPID = os.getpid()\nVALUE = 1\n",
            &["--preload-standby"],
        ),
    ] {
        let place = waiters("1");
        place.write("loaded.py", module);
        let mut launcher = place
            .command(&[RESTARTS, options, &["train.py"]].concat())
            .spawn()
            .unwrap();
        if module.contains("importing") {
            place.line("importing");
        } else {
            up(&place, 0, 0);
            up(&place, 1, 0);
        }
        if !options.is_empty() {
            // Launcher, guardian (without the mark), template, two workers, two standbys.
            until("the standbys", || place.processes().len() == 6);
        }
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        place.assert_nothing_runs();
    }
}

#[test]
#[ignore = "needs Python: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_signal_while_the_template_imports_ends_the_launcher_at_once() {
    let _watchdog = Watchdog::start("preload_signal", LIMIT);
    let place = waiters("1");
    place.write(
        "loaded.py",
        "import time\nopen('importing', 'w').write('x\\n')\ntime.sleep(1000)\n",
    );
    let launcher = place
        .command(&[RESTARTS, &["train.py"]].concat())
        .spawn()
        .unwrap();
    place.line("importing");
    kill_process(Pid::from_child(&launcher), Signal::TERM).unwrap();
    let ended = ended(launcher);
    assert_eq!(ended.code, Some(143), "{ended:?}");
    place.assert_nothing_runs();
}

#[test]
#[ignore = "needs Python: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_large_environment_and_any_bytes_reach_the_worker() {
    let _watchdog = Watchdog::start("preload_environment", LIMIT);
    let place = Place::new();
    place.write(
        "noisy.py",
        "import os\nprint('imported', flush=True)\nos.environ['SET_BY_IMPORT'] = 'yes'\n",
    );
    place.write(
        "train.py",
        "import os\nprint(len(os.environb[b'LONG']), os.environb[b'BYTES'], os.environ['SET_BY_IMPORT'])\n",
    );
    let mut command = place.command(&["--preload=noisy", "--preload-required", "train.py"]);
    // Eight, as one string of an environment has 128 kB at most.
    for number in 0..8 {
        command.env(format!("LONG{number}"), "x".repeat(120_000));
    }
    command
        .env("LONG", "x".repeat(100_000))
        .env("BYTES", std::ffi::OsStr::from_bytes(b"\xff=\n "));
    let ended = ended(command.spawn().unwrap());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stdout, "100000 b'\\xff=\\n ' yes\n");
    assert_eq!(
        ended.stderr.matches("preload: imported").count(),
        1,
        "{ended:?}"
    );
}

#[test]
#[ignore = "needs Python: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn random_generators_of_modules_differ_between_workers_and_rounds() {
    let _watchdog = Watchdog::start("preload_random", LIMIT);
    let place = waiters("1");
    place.write(
        "loaded.py",
        "import os, random, uuid, tempfile, multiprocessing.process\n\
         OWN = random.Random()\nPID = os.getpid()\n\
         class Numbers:\n\
         \x20   def __str__(self):\n\
         \x20       key = bytes(multiprocessing.process.current_process().authkey)\n\
         \x20       return '%s/%s/%s' % (OWN.random(), random.random(), key.hex())\n\
         VALUE = Numbers()\n",
    );
    let launcher = place
        .command(&[RESTARTS, &["train.py"]].concat())
        .spawn()
        .unwrap();
    let mut numbers = BTreeSet::new();
    for restart in 0..2 {
        for rank in 0..2 {
            numbers.extend(up(&place, rank, restart)[3].split('/').map(str::to_owned));
        }
        place.write(if restart < 1 { "fail" } else { "end" }, "");
    }
    assert_eq!(numbers.len(), 12, "{numbers:?}");
    assert_eq!(ended(launcher).code, Some(0));
}

#[test]
#[ignore = "needs Python: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn more_workers_start_than_a_socket_has_room_for() {
    let _watchdog = Watchdog::start("preload_many", LIMIT);
    let place = Place::new();
    place.write(
        "train.py",
        "import os\nopen('up.' + os.environ['RANK'], 'w')\n",
    );
    let options = [
        "--nproc-per-node=100",
        "--preload=json",
        "--preload-required",
        "--events=events",
        "train.py",
    ];
    let ended = place.run(&options);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!((0..100).all(|rank| place.path(&format!("up.{rank}")).exists()));
    let events = place.read("events");
    assert!(events.contains("\"preloaded\":true"), "{events}");
    place.assert_nothing_runs();
}

/// One worker is forked at a time, also with one that waits.
#[test]
#[ignore = "needs Python: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_worker_that_died_is_forked_again_while_the_others_run() {
    let _watchdog = Watchdog::start("preload_keep_workers", LIMIT);
    for standby in [&[][..], &["--preload-standby"]] {
        let place = Place::new();
        place.write("heavy.py", "print('imported', file=open('imports', 'a'))\n");
        place.write(
            "train.py",
            "import heavy, os, time\n\
             rank = os.environ['RANK'] + '.'\n\
             name = rank + str(1 + sum(file.startswith(rank) for file in os.listdir()))\n\
             words = [os.environ['MASTER_PORT'], os.environ['C10D_MEMBERSHIP_GROUP'], os.getpid()]\n\
             print(*words, file=open(name, 'w'))\n\
             while not os.path.exists('end'): time.sleep(0.01)\n",
        );
        let options = [
            "--standalone",
            "--keep-workers",
            "--nproc-per-node=2",
            "--max-restarts=3",
            "--preload=heavy",
            "--preload-required",
        ];
        let options = [&options, standby, &["train.py"]].concat();
        let launcher = place.command(&options).spawn().unwrap();
        let survivor = place.line("0.1");
        let [port, group, _] = survivor.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{survivor}");
        };
        // A member, as the scripts are none.
        let options = TcpStoreOptions::default();
        let store = TcpStore::open("127.0.0.1", port.parse().unwrap(), options).unwrap();
        let group = Membership::connect(&store, group).unwrap();
        group.open(&GroupOptions::new(1), "torch/").unwrap();
        let (handle, step) = ("handle".into(), 0);
        let hello = Message::Hello { handle, step };
        group.ask(MemberKey::new(9, 1), &hello, LIMIT).unwrap();
        for process in 1..4 {
            let line = place.line(&format!("1.{process}"));
            let pid = line.split(' ').next_back().unwrap().parse().unwrap();
            kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        }
        place.line("1.4");
        assert_eq!(place.read("0.1").trim_end(), survivor);
        assert!(!place.path("0.2").exists());
        place.write("end", "");
        let ended = ended(launcher);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_eq!(place.read("imports"), "imported\n", "{ended:?}");
        place.assert_nothing_runs();
    }
}

/// Beside a node of torchrun no worker is kept, and the template forks one worker at a time nevertheless.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn workers_are_forked_beside_a_node_of_torchrun() {
    if !Release::tested().allows(Feature::AwareTimes) {
        return;
    }
    let _watchdog = Watchdog::start("preload_beside_torchrun", LIMIT);
    let options = ServerOptions::default().with_groups(c10d_membership::groups);
    let store = TcpStoreServer::bind("127.0.0.1:0", options).unwrap();
    let place = Place::new();
    place.write(
        "train.py",
        "import os\nprint('rank', os.environ['RANK'], os.environ.get('C10D_KEEP_WORKERS'))\n",
    );
    let endpoint = format!("--rdzv-endpoint={}", store.local_addr());
    let common = [
        "--nnodes=2",
        "--rdzv-backend=c10d",
        "--rdzv-id=job",
        "--rdzv-conf=is_host=0",
        &endpoint,
    ];
    let keep = [
        "--nproc-per-node=2",
        "--keep-workers",
        "--max-restarts=3",
        "--preload=json",
        "--preload-required",
        "--local-addr=127.0.0.1",
        "train.py",
    ];
    let launcher = place.command(&[&common[..], &keep].concat());
    let [launcher, torchrun] = [
        launcher,
        place.torchrun(&[&common[..], &["--local-addr=127.0.0.2", "train.py"]].concat()),
    ]
    .map(|mut command| command.spawn().unwrap());
    let launcher = ended(launcher);
    // Otherwise the node of torchrun waits for its next round.
    assert_eq!(launcher.code, Some(0), "{launcher:?}");
    let ended = [launcher, ended(torchrun)];
    let mut lines: Vec<&str> = ended.iter().flat_map(|it| it.stdout.lines()).collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        ["rank 0 None", "rank 1 None", "rank 2 None"],
        "{ended:?}"
    );
    assert!(!ended[0].stderr.contains("trying again"), "{ended:?}");
}
