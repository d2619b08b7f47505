//! Reads real interpreters: python3, and the other installed releases.

#![cfg(target_os = "linux")]
#![expect(
    clippy::print_stdout,
    reason = "which releases were read, seeds, times"
)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use c10d_stacks::{PythonStacks, StackError, StackReader, is_python};

const RELEASES: [&str; 7] = ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15"];

const PATIENCE: Duration = Duration::from_secs(60);

/// Waits in `inner`, at line 12, and a thread in `queue.get`.
const WAITS: &str = "\
import queue, sys, threading

class Loader:
    def wait(self):
        queue.Queue().get()

threading.Thread(target=Loader().wait, name='loader', daemon=True).start()

def inner():
    secret = 'a value that nobody may see'
    print('ready', flush=True)
    sys.stdin.read()

def outer():
    inner()

outer()
";

/// A process that the test kills at its end.
struct Python {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Python {
    fn start(program: &str, script: &str) -> Self {
        let mut command = Command::new(program);
        let command = command.args(["-c", script]).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            input,
            output,
        }
    }

    /// Starts a script and waits for its line, "ready" and maybe a number.
    fn ready(program: &str, script: &str) -> (Self, u32) {
        let mut python = Self::start(program, script);
        let line = python.line();
        let number = line.strip_prefix("ready").expect(&line).trim();
        let pid = number.parse().unwrap_or_else(|_| python.pid());
        (python, pid)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn end(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        self.end();
    }
}

/// The interpreter of a release, if it is installed.
fn installed(release: &str) -> Option<String> {
    let mut command = Command::new(format!("python{release}"));
    // For the shims of pyenv, which start only the chosen releases.
    command.env("PYENV_VERSION", release);
    let command = command.args(["-c", "import sys; print(sys.executable)"]);
    let output = command.stderr(Stdio::null()).output().ok()?;
    let path = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    (output.status.success() && !path.is_empty()).then_some(path)
}

/// Samples until the stacks are as expected, because a process reaches its state some time after it reports it.
fn eventually(reader: &mut StackReader, expected: impl Fn(&PythonStacks) -> bool) -> PythonStacks {
    let started = Instant::now();
    loop {
        let sample = reader.sample();
        match sample {
            Ok(stacks) if expected(&stacks) => return stacks,
            other => assert!(started.elapsed() < PATIENCE, "{other:?}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn calls(stacks: &PythonStacks, thread: usize) -> Vec<(&str, u32)> {
    let frames = stacks.threads.get(thread).map_or(&[][..], |it| &it.frames);
    frames
        .iter()
        .map(|it| (it.function.as_str(), it.line))
        .collect()
}

#[test]
fn each_release_shows_its_threads() {
    for release in RELEASES {
        let Some(program) = installed(release) else {
            println!("LEFT OUT: there is no python{release}");
            continue;
        };
        let (python, pid) = Python::ready(&program, WAITS);
        assert!(is_python(pid));
        let mut reader = StackReader::attach(pid).unwrap();
        let in_main = [("<module>", 17), ("outer", 15), ("inner", 12)];
        let is_there = |stacks: &PythonStacks| {
            calls(stacks, 0) == in_main
                && calls(stacks, 1)
                    .last()
                    .is_some_and(|(name, _)| name.ends_with("wait"))
        };
        let stacks = eventually(&mut reader, is_there);
        assert_eq!(stacks.threads.len(), 2);
        assert!(!stacks.is_cut);
        let [main, loader] = &stacks.threads[..] else {
            unreachable!()
        };
        assert_eq!(main.name.as_deref(), Some("MainThread"), "{release}");
        assert_eq!(loader.name.as_deref(), Some("loader"), "{release}");
        assert_eq!(main.frames[0].file, "<string>");
        assert!(
            loader
                .frames
                .last()
                .unwrap()
                .file
                .ends_with("/threading.py")
        );
        let has_ids = !matches!(release, "3.9" | "3.10");
        assert_eq!(main.system_id, has_ids.then_some(pid), "{release}");
        assert!(!format!("{stacks:?}").contains("nobody may see"));
        // It was not stopped.
        drop(python);
        println!("python{release}: read");
    }
}

#[test]
fn a_forked_child_is_read_as_a_process_of_its_own() {
    let script = "\
import os, time, threading
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
pid = os.fork()
if pid:
    print('ready', pid, flush=True)
    os.waitpid(pid, 0)
else:
    def in_child():
        time.sleep(600)
    in_child()
";
    let (python, child) = Python::ready("python3", script);
    assert_ne!(child, python.pid());
    let mut reader = StackReader::attach(child).unwrap();
    let in_child = [("<module>", 10), ("in_child", 9)];
    let stacks = eventually(&mut reader, |stacks| calls(stacks, 0) == in_child);
    assert_eq!(stacks.threads.len(), 1);
    let mut reader = StackReader::attach(python.pid()).unwrap();
    eventually(&mut reader, |stacks| calls(stacks, 0) == [("<module>", 6)]);
    drop(python);
    let killed = rustix::process::Pid::from_raw(i32::try_from(child).unwrap()).unwrap();
    rustix::process::kill_process(killed, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn code_that_holds_pythons_lock_is_read() {
    let script = "import re\nprint('ready', flush=True)\nre.match('(a+)+$', 'a' * 60 + 'b')\n";
    let (_python, pid) = Python::ready("python3", script);
    let mut reader = StackReader::attach(pid).unwrap();
    eventually(&mut reader, |stacks| {
        calls(stacks, 0) == [("<module>", 3), ("match", 166)]
            || calls(stacks, 0)
                .last()
                .is_some_and(|(name, _)| *name == "match")
    });
}

#[test]
fn a_stopped_process_is_read() {
    let (python, pid) = Python::ready("python3", WAITS);
    let raw = rustix::process::Pid::from_child(&python.child);
    rustix::process::kill_process(raw, rustix::process::Signal::STOP).unwrap();
    let mut reader = StackReader::attach(pid).unwrap();
    assert!(!reader.sample().unwrap().threads.is_empty());
}

#[test]
fn a_deep_recursion_is_cut() {
    let script = "\
import sys
sys.setrecursionlimit(10000)
def deeper(count):
    if count:
        return deeper(count - 1)
    print('ready', flush=True)
    sys.stdin.read()
deeper(1000)
";
    let (_python, pid) = Python::ready("python3", script);
    let mut reader = StackReader::attach(pid).unwrap();
    let stacks = eventually(&mut reader, |stacks| {
        calls(stacks, 0).last() == Some(&("deeper", 7))
    });
    assert!(stacks.is_cut);
    assert_eq!(calls(&stacks, 0)[0], ("deeper", 5));
}

#[test]
fn an_ended_process_and_other_programs_are_errors() {
    let (mut python, pid) = Python::ready("python3", WAITS);
    let mut reader = StackReader::attach(pid).unwrap();
    assert!(reader.is_alive());
    python.end();
    assert_eq!(reader.sample(), Err(StackError::Ended));
    assert!(!reader.is_alive());
    assert_eq!(StackReader::attach(pid).unwrap_err(), StackError::Ended);

    let mut sleep = Command::new("sleep").arg("600").spawn().unwrap();
    assert_eq!(
        StackReader::attach(sleep.id()).unwrap_err(),
        StackError::NotPython
    );
    sleep.kill().unwrap();
    // It waits to be collected.
    let started = Instant::now();
    while StackReader::attach(sleep.id()).unwrap_err() != StackError::Ended {
        assert!(started.elapsed() < PATIENCE);
    }
    sleep.wait().unwrap();
}

#[test]
fn a_program_that_takes_the_place_of_python_is_an_error() {
    let script = "\
import os, sys
print('ready', flush=True)
sys.stdin.readline()
os.execvp('sleep', ['sleep', '600'])
";
    let (mut python, pid) = Python::ready("python3", script);
    let mut reader = StackReader::attach(pid).unwrap();
    python.input.take().unwrap().write_all(b"\n").unwrap();
    let started = Instant::now();
    while is_python(pid) {
        assert!(started.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(matches!(reader.sample(), Err(StackError::Unreadable(_))));
    assert_eq!(StackReader::attach(pid).unwrap_err(), StackError::NotPython);
}

#[test]
fn processes_that_start_and_end_meanwhile_give_stacks_or_errors() {
    let mut read = 0;
    for _ in 0..5 {
        let mut python = Python::start("python3", "import queue, json, threading");
        let mut outcomes = Vec::new();
        while python.child.try_wait().unwrap().is_none() {
            let sample = StackReader::attach(python.pid()).and_then(|mut it| it.sample());
            read += usize::from(sample.is_ok());
            outcomes.push(sample.err());
        }
        let last = StackReader::attach(python.pid());
        assert_eq!(last.unwrap_err(), StackError::Ended);
        assert!(!outcomes.is_empty());
    }
    println!("{read} samples of processes that start and end");
}

/// Starts Python with a main thread that reads a pipe in C and copies each byte over the named object. Therefore, it never
/// runs Python again. Returns the address of the object and the pipe.
fn overwritten(target: &str, depth: usize) -> (Python, u64, ChildStdin) {
    const SCRIPT: &str = "\
import ctypes, os, sys
sys.setrecursionlimit(10000)
api, libc = ctypes.pythonapi, ctypes.CDLL(None)
for function in (api.PyInterpreterState_Get, api.PyThreadState_Get):
    function.restype = ctypes.c_void_p
libc.fread.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
libc.fdopen.restype = ctypes.c_void_p
libc.setvbuf.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
input = libc.fdopen(0, b'r')
libc.setvbuf(input, None, 2, 0)
frame = sys._getframe()
where = {
    'interpreter': api.PyInterpreterState_Get, 'thread': api.PyThreadState_Get,
    'code': lambda: id(frame.f_code), 'frame': lambda: id(frame),
    'name': lambda: id(frame.f_code.co_name), 'modules': lambda: id(sys.modules),
}[TARGET]()
def waits(depth):
    if depth:
        return waits(depth - 1)
    print(where, flush=True)
    libc.fread(where, 1, 1 << 30, input)
waits(DEPTH)
";
    let values = format!("TARGET, DEPTH = '{target}', {depth}\n");
    let mut python = Python::start("python3", &(values + SCRIPT));
    let address = python.line().trim().parse().unwrap();
    let input = python.input.take().unwrap();
    (python, address, input)
}

/// A worker that overwrites the state of its interpreter with random bytes.
#[test]
fn random_bytes_in_an_interpreter_give_stacks_or_errors() {
    let mut random = fastrand::Rng::with_seed(c10d_sim::seed());
    let (mut good, mut bad) = (0, 0);
    for target in ["interpreter", "thread", "code", "frame", "name", "modules"] {
        let (python, _, mut input) = overwritten(target, 0);
        let pid = python.pid();
        let mut reader = StackReader::attach(pid).unwrap();
        for piece_number in 0..40 {
            let mut piece = [0; 24];
            random.fill(&mut piece);
            // Mostly small numbers, so that some lengths and kinds are possible ones.
            if piece[0] % 2 == 0 {
                for byte in &mut piece[1..] {
                    *byte = if *byte % 8 == 0 { *byte } else { 0 };
                }
            }
            if input.write_all(&piece).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
            let mut outcomes = vec![reader.sample()];
            // It can search all of the interpreter's memory.
            if piece_number % 8 == 0 {
                outcomes.push(StackReader::attach(pid).and_then(|mut it| it.sample()));
            }
            for outcome in outcomes {
                match outcome {
                    Ok(stacks) => {
                        assert!(stacks.threads.iter().all(|it| it.frames.len() <= 64));
                        good += 1;
                    }
                    Err(error) => {
                        assert!(error.to_string().len() < 1000, "{error}");
                        bad += 1;
                    }
                }
            }
        }
    }
    println!("{good} samples, {bad} errors");
    assert!(bad > 0);
}

/// A worker whose interpreter counts its only thread as the thread after it.
#[test]
fn threads_in_a_circle_are_an_error() {
    let (python, thread, mut input) = overwritten("thread", 20);
    let mut reader = StackReader::attach(python.pid()).unwrap();
    assert_eq!(reader.sample().unwrap().threads.len(), 1);
    // The pointers to the previous and to the next thread.
    let pointers = [0, thread].map(u64::to_ne_bytes).concat();
    input.write_all(&pointers).unwrap();
    let started = Instant::now();
    let error = loop {
        let sample = Instant::now();
        match reader.sample() {
            Ok(_) => assert!(started.elapsed() < PATIENCE),
            Err(error) => {
                println!("after {:?}", sample.elapsed());
                break error.to_string();
            }
        }
    };
    let sentence = "its interpreter starts, ends or is damaged (";
    assert!(error.starts_with(sentence), "{error}");
}

#[test]
fn an_interpreter_that_was_overwritten_has_no_threads_or_is_an_error() {
    for byte in [0, 1, 0xff] {
        let (python, _, mut input) = overwritten("interpreter", 0);
        input.write_all(&[byte; 4096]).unwrap();
        let started = Instant::now();
        let outcome = loop {
            let outcome = StackReader::attach(python.pid()).and_then(|mut it| it.sample());
            if outcome.as_ref().map_or(true, |it| it.threads.is_empty()) {
                break outcome;
            }
            assert!(started.elapsed() < PATIENCE, "{outcome:?}");
        };
        println!("{byte}: {outcome:?} after {:?}", started.elapsed());
        if let Err(error) = outcome {
            let sentence = "its interpreter starts, ends or is damaged (";
            assert!(error.to_string().starts_with(sentence), "{error}");
        }
    }
}
