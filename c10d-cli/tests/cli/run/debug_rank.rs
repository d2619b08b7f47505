//! `c10d run --debug-rank`: one rank has standard input and the foreground of the terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use rustix::termios::tcgetpgrp;

use super::*;
use crate::process::within;
use crate::pty::terminal;

/// A launcher whose session has a controlling terminal. A shell starts commands like this.
struct InTerminal {
    running: Running,
    near: OwnedFd,
    text: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl InTerminal {
    fn start(launcher: &Command) -> Self {
        let (near, far) = terminal(120, 50);
        let mut session = Command::new("setsid");
        session.args(["--ctty", "--wait"]);
        let mut command = within(session, launcher);
        command
            .env("TERM", "dumb")
            .stdin(far.try_clone().unwrap())
            .stdout(far.try_clone().unwrap())
            .stderr(far);
        let running = Running::start(command);
        let text = Arc::<Mutex<Vec<u8>>>::default();
        let of_reader = Arc::clone(&text);
        let mut screen = File::from(near.try_clone().unwrap());
        let reader = thread::spawn(move || {
            let mut buffer = [0; 1024];
            // It fails when the last program has closed its end.
            while let Ok(count @ 1..) = screen.read(&mut buffer) {
                of_reader.lock().unwrap().extend(&buffer[..count]);
            }
        });
        Self {
            running,
            near,
            text,
            reader,
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap()).into_owned()
    }

    /// Waits until this text has appeared on the screen at least `times` times.
    #[track_caller]
    fn await_text(&self, text: &str, times: usize) {
        until(&format!("{text} {times} times"), || {
            self.text().matches(text).count() >= times
        });
    }

    fn type_in(&self, keys: &str) {
        let mut near = File::from(self.near.try_clone().unwrap());
        near.write_all(keys.as_bytes()).unwrap();
    }

    /// The exit code and the whole text of the screen.
    fn end(self) -> (Option<i32>, String) {
        let code = self.running.end().code;
        self.reader.join().unwrap();
        let text = self.text.lock().unwrap();
        (code, String::from_utf8_lossy(&text).into_owned())
    }
}

fn has_python() -> bool {
    let found = Command::new("python3")
        .args(["-c", ""])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        let _ = writeln!(std::io::stderr(), "LEFT OUT: no python3");
    }
    found
}

#[test]
fn breakpoint_works_in_one_rank_of_two() {
    if !has_python() {
        return;
    }
    let job = Job::new();
    fs::write(
        job.path("train.py"),
        "import os\nrank = os.environ['RANK']\nbreakpoint()\nprint('rank', rank, 'goes on', flush=True)\n",
    )
    .unwrap();
    let mut launcher = command([
        "run",
        "--standalone",
        "--nproc-per-node=2",
        "-r3",
        "--debug-rank=1",
    ]);
    launcher
        .arg(job.path("train.py"))
        .env("TMPDIR", job.path(""))
        .env("OMP_NUM_THREADS", "1")
        .env(FOLDER, job.path("").to_str().unwrap().trim_end_matches('/'));
    let debugged = InTerminal::start(&launcher);
    debugged.await_text("(Pdb)", 1);
    debugged.type_in("p 'rank', rank, 6 * 7\n");
    debugged.await_text("('rank', '1', 42)", 1);
    // The debugger has the foreground, so Ctrl-C is for it.
    let foreground = tcgetpgrp(&debugged.near).unwrap().as_raw_nonzero().get();
    let name = fs::read_to_string(format!("/proc/{foreground}/cmdline")).unwrap();
    assert!(name.contains("train.py") && name.contains("-u"), "{name}");
    debugged.await_text("(Pdb)", 2);
    // A signal between the prompt and the read would be noticed only at the next key.
    until("the debugger reads", || {
        let stat = fs::read_to_string(format!("/proc/{foreground}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('S')
    });
    debugged.type_in("\x03");
    debugged.await_text("--KeyboardInterrupt--", 1);
    debugged.await_text("(Pdb)", 3);
    debugged.type_in("c\n");
    let (code, text) = debugged.end();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("rank 1 goes on"), "{text}");
    assert!(
        text.contains("rank 1 has the terminal (--debug-rank); off: "),
        "{text}"
    );
    assert!(!text.contains("received SIGINT"), "{text}");
    // The output of the other rank goes where the options say.
    assert!(!text.contains("rank 0 goes on"), "{text}");
    job.assert_nothing_runs();
}

#[test]
fn the_foreground_is_taken_back_and_given_to_the_rank_again_at_a_restart() {
    let job = Job::new();
    let script = "
        if [ $RANK = 1 ]; then exec sleep 1000; fi
        echo ready-$TORCHELASTIC_RESTART_COUNT
        read line
        echo got $line
        stty -echo
        [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 4
        exit 3";
    let launcher = job.command(
        &[
            "--standalone",
            "--nproc-per-node=2",
            "--max-restarts=1",
            "--debug-rank=0",
        ],
        script,
    );
    let debugged = InTerminal::start(&launcher);
    debugged.await_text("ready-0", 1);
    debugged.type_in("first\n");
    debugged.await_text("got first", 1);
    debugged.await_text("ready-1", 1);
    debugged.type_in("second\n");
    let (code, text) = debugged.end();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("got second"), "{text}");
    // The settings of the terminal are restored: it shows typed text.
    assert_eq!(text.matches("second").count(), 2, "{text}");
    job.assert_nothing_runs();
}

#[test]
fn without_a_terminal_the_rank_reads_standard_input_alone() {
    let job = Job::new();
    let script = "
        while read line; do echo rank $RANK reads $line; done
        echo rank $RANK has ${PYTHONBREAKPOINT-unset}";
    let arguments = ["--standalone", "--nproc-per-node=3", "--debug-rank=1"];
    let mut launcher = job.command(&arguments, script);
    let (reader, mut writer) = std::io::pipe().unwrap();
    launcher.stdin(reader);
    writer.write_all(b"a\nb\n").unwrap();
    drop(writer);
    let ended = Running::start(launcher).end();
    assert_succeeded(&ended);
    let expected = [
        "rank 0 has 0",
        "rank 1 has unset",
        "rank 1 reads a",
        "rank 1 reads b",
        "rank 2 has 0",
    ];
    assert_eq!(lines([&ended]), expected);
}
