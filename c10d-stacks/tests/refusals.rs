//! Processes that the system does not allow to read. This program runs itself as these processes and as their readers,
//! because both run without the rights of root.

#![cfg(target_os = "linux")]
#![expect(
    clippy::print_stdout,
    reason = "what processes tell their test, and what a test leaves out"
)]

use std::env;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use c10d_stacks::StackReader;
use rustix::process::{DumpableBehavior, getuid, set_dumpable_behavior};

/// Users without rights. They need no entry in `/etc/passwd`.
const USER: u32 = 65_533;
const OTHER_USER: u32 = 65_534;

/// The id of the process to read; empty for this process.
const SUBJECT: &str = "C10D_TEST_SUBJECT";

/// A command that runs one of the tests below in this program.
fn own(role: &str) -> [String; 5] {
    let program = env::current_exe().unwrap().display().to_string();
    let words = [&program, "--exact", role, "--ignored", "--nocapture"];
    words.map(str::to_owned)
}

fn command(words: &[String], user: Option<u32>) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    if let Some(user) = user {
        command.uid(user);
    }
    command
}

/// A process that has hidden its memory. Drop kills it.
struct Subject(Child);

impl Subject {
    fn start(user: Option<u32>) -> Self {
        let mut command = command(&own("subject"), user);
        let command = command.env(SUBJECT, "").stdin(Stdio::piped());
        let command = command.stdout(Stdio::piped());
        let mut subject = Self(command.spawn().unwrap());
        let lines = BufReader::new(subject.0.stdout.take().unwrap()).lines();
        let mut lines = lines.map(Result::unwrap);
        assert!(lines.any(|line| line.ends_with("ready")));
        subject
    }

    /// Returns why a process of this user cannot read it. `words` start this process.
    fn refusal(&self, words: &[String], user: Option<u32>) -> String {
        let mut command = command(words, user);
        let command = command.env(SUBJECT, self.0.id().to_string());
        let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let refusal = output.split_once("refused: ").expect(&output).1;
        refusal.lines().next().unwrap().to_owned()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
#[ignore = "a process of the other tests"]
fn subject() {
    if env::var_os(SUBJECT).is_none() {
        return;
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable).unwrap();
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
#[ignore = "a process of the other tests"]
fn reader() {
    let Ok(pid) = env::var(SUBJECT) else {
        return;
    };
    let error = StackReader::attach(pid.parse().unwrap()).unwrap_err();
    println!("refused: {error}");
}

/// The user of the processes, if this test runs as root, which may read all processes.
fn user() -> Option<u32> {
    getuid().is_root().then_some(USER)
}

/// A command after which `/proc` is mounted like this, in its own namespace, and which then runs a reader as a user.
fn with_proc(mount: &str) -> Vec<String> {
    let user = format!("--reuid {OTHER_USER} --regid {OTHER_USER} --clear-groups");
    let script = format!("{mount} && exec setpriv {user} -- \"$@\"");
    let words = ["unshare", "--mount", "sh", "-c", &script, "sh"].map(str::to_owned);
    words.into_iter().chain(own("reader")).collect()
}

/// Returns whether this test has root's rights and namespaces.
fn has_namespaces() -> bool {
    let mut trial = Command::new("unshare");
    let is_allowed = trial
        .args(["--mount", "setpriv", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !getuid().is_root() || !is_allowed {
        println!("LEFT OUT: this needs root and namespaces");
        return false;
    }
    true
}

#[test]
fn a_process_that_hides_its_memory_is_not_the_process_of_another_user() {
    let subject = Subject::start(user());
    let refusal = subject.refusal(&own("reader"), user());
    // Only a system with ptrace_scope gives another reason.
    let has_reason =
        refusal.starts_with("the system forbids it: ") || refusal.contains("ptrace_scope");
    assert!(has_reason, "{refusal}");
}

#[test]
fn the_process_of_another_user_is_refused_with_the_cure() {
    if user().is_none() {
        return println!("LEFT OUT: this needs root");
    }
    let subject = Subject::start(user());
    let expected = "another user runs the process: start the launcher as that user, or as root with the capability \
                    SYS_PTRACE";
    assert_eq!(subject.refusal(&own("reader"), Some(OTHER_USER)), expected);
    if has_namespaces() {
        let hidden = with_proc("mount -t proc -o hidepid=invisible none /proc");
        assert_eq!(subject.refusal(&hidden, None), expected);
    }
}

#[test]
fn a_system_without_proc_is_told() {
    if has_namespaces() {
        let subject = Subject::start(user());
        let without = with_proc("mount -t tmpfs none /proc");
        assert_eq!(
            subject.refusal(&without, None),
            "there is no /proc: mount it"
        );
    }
}
