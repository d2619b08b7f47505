//! A worker whose interpreter lies on a file system that stops to answer. Its stacks cannot be read, because that needs
//! the file of the interpreter.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use integration_tests::eventually::eventually;
use integration_tests::launcher::c10d;
use integration_tests::process::ChildProcess;
use integration_tests::torch::{print_skipped, script};
use integration_tests::watchdog::Watchdog;
use rustix::process::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);

/// The launcher waits 2 s for a stack. The rest is for the start of a command on a busy machine.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The default of `--shutdown-timeout` is 30 s, and the workers exit at once.
const END_MAX: Duration = Duration::from_secs(10);

const SENTENCE: &str = "the file system of its interpreter does not answer";

const BEHIND: &str = "the launcher still reads the stacks of other workers";

/// Rank 1 runs the interpreter `$1`, and rank 0 `python3`.
const WORKER: &str = r#"
    echo "$MASTER_ADDR:$MASTER_PORT" >"$0/store.$RANK" && mv "$0/store.$RANK" "$0/store"
    [ "$RANK" = 0 ] && exec python3 "$0/train.py" "$0/ready0"
    export PYTHONHOME="$2" LD_LIBRARY_PATH="$2/lib"
    exec "$1" "$0/train.py" "$0/ready1"
"#;

const TRAIN: &str = "\
import sys, time
open(sys.argv[1], 'w').close()
time.sleep(600)
";

/// A file system with one file, an interpreter. It stops to answer while its process is stopped.
struct FileSystem {
    process: ChildProcess,
    interpreter: PathBuf,
    /// The folder of the interpreter's library.
    home: String,
}

impl FileSystem {
    /// `None` if this system or this user cannot mount it.
    fn mount(folder: &Path) -> Option<Self> {
        let paths = "import os, sys; print(os.path.realpath(sys.executable), sys.base_prefix)";
        let output = Command::new("python3").args(["-c", paths]).output().ok()?;
        let output = String::from_utf8(output.stdout).ok()?;
        let (source, home) = output.trim().split_once(' ')?;
        let interpreter = folder.join("python3");
        File::create(&interpreter).expect("an empty file");
        let mut command = Command::new("unshare");
        command.args(["--mount", "python3"]);
        command.arg(script("file_system.py")).arg(&interpreter);
        let mut process = ChildProcess::start("file system", command.arg(source));
        let mut line = String::new();
        let mut stdout = process.take_stdout();
        std::io::BufRead::read_line(&mut stdout, &mut line).expect("a line");
        if line != "mounted\n" {
            print_skipped("a file system by FUSE, which needs root and /dev/fuse (LEFT OUT)");
            return None;
        }
        Some(Self {
            process,
            interpreter,
            home: home.to_owned(),
        })
    }

    /// A command in the mount namespace of the file system.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        let pid = self.process.id().to_string();
        command.args(["--target", &pid, "--mount", "--"]);
        command.arg(program);
        command
    }
}

fn output(words: &[&str], store: &str) -> String {
    let started = Instant::now();
    let mut command = Command::new(c10d());
    let output = command.args(words).args(["--connect", store]).output();
    let took = started.elapsed();
    assert!(took < ANSWER_MAX, "{words:?} took {took:?}");
    String::from_utf8(output.expect("c10d can be run").stdout).expect("text")
}

/// How many threads of the process read stacks.
fn readers(pid: u32) -> usize {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    let names = tasks.flatten().map(|task| task.path().join("comm"));
    names
        .filter(|name| fs::read_to_string(name).is_ok_and(|name| name == "stacks\n"))
        .count()
}

#[test]
fn a_file_system_that_does_not_answer_delays_neither_reports_nor_the_end() {
    let _watchdog = Watchdog::start("a file system that does not answer", LIMIT);
    let folder = tempfile::tempdir().expect("a folder");
    let Some(file_system) = FileSystem::mount(folder.path()) else {
        return;
    };
    fs::write(folder.path().join("train.py"), TRAIN).expect("a script");
    let mut command = file_system.command(c10d());
    command.args(["run", "--standalone", "--nproc-per-node=2", "--no-python"]);
    command.args(["sh", "-c", WORKER]).arg(folder.path());
    command.arg(&file_system.interpreter).arg(&file_system.home);
    let mut launcher = ChildProcess::start("launcher", &mut command);
    let ready = [0, 1].map(|rank| folder.path().join(format!("ready{rank}")));
    eventually("both workers run", || ready.iter().all(|it| it.exists()));
    let store = fs::read_to_string(folder.path().join("store")).expect("an address");
    let store = store.trim();

    file_system.process.pause();
    let mut text = String::new();
    eventually("the stack cannot be read", || {
        text = output(&["stacks", "1"], store);
        text.contains(": its stacks cannot be read: ")
    });
    assert!(text.contains(SENTENCE), "{text}");
    for _ in 0..3 {
        let started = Instant::now();
        let text = output(&["stacks", "--all"], store);
        let (_, ranks) = text.split_once("\n\n").expect("a headline");
        let sentences = [SENTENCE, BEHIND].map(|it| ranks.matches(it).count());
        assert_eq!(sentences, [1, 1], "{text}");
        assert!(started.elapsed() < ANSWER_MAX, "{text}");
    }
    let mut why = Value::Null;
    eventually("the report names the reason", || {
        why = serde_json::from_str(&output(&["why", "--json"], store)).expect("JSON");
        let ends = |rank: usize, reason| {
            let doing = why["ranks"][rank]["doing"].as_str();
            doing.is_some_and(|doing| doing.ends_with(reason))
        };
        ends(1, SENTENCE) && ends(0, BEHIND)
    });
    assert_eq!(readers(launcher.id()), 1);

    launcher.signal(Signal::TERM);
    let status = launcher.wait(END_MAX);
    assert!(!status.success(), "{status}");
    drop(file_system);
}
