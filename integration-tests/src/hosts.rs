//! Hosts with their own names, hosts files and networks, on one machine.
//!
//! Each host is a network namespace with one link to a bridge. Each process of a host has a mount and a UTS namespace,
//! where it finds the host's name and `/etc/hosts`. All processes are below one process with a process-id namespace, so
//! nothing remains when that process is killed. This needs root.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::torch::print_skipped;

/// The name of a host, and the names of other machines in its hosts file.
#[derive(Debug, Clone)]
pub struct HostSetup {
    name: String,
    hosts_file: String,
    script: String,
    has_own_pids: bool,
}

/// Hosts with the addresses `10.8.8.1` and `fd00:8::1`, `10.8.8.2` and `fd00:8::2`, and so on.
#[derive(Debug)]
pub struct Hosts {
    /// The parent of the process with the namespaces.
    holder: Child,
    holder_pid: Pid,
    setups: Vec<HostSetup>,
    folder: TempDir,
}

/// A process on a host. Its output is in one file. Drop kills it.
#[derive(Debug)]
pub struct HostProcess {
    child: Child,
    output: std::path::PathBuf,
}

impl HostSetup {
    /// A host with this name and this content of `/etc/hosts`. An empty name means that the system
    /// has no host name.
    #[must_use]
    pub fn new(name: &str, hosts_file: &str) -> Self {
        Self {
            name: name.to_owned(),
            hosts_file: hosts_file.to_owned(),
            script: String::new(),
            has_own_pids: false,
        }
    }

    /// Runs `script` by `sh` in the network namespace of the host before anything else, for example to add an address.
    #[must_use]
    pub fn with_script(mut self, script: &str) -> Self {
        self.script = script.to_owned();
        self
    }

    /// Gives each process its own process ids, like a process in a container, so that two launchers have the same id.
    #[must_use]
    pub fn with_own_pids(mut self) -> Self {
        self.has_own_pids = true;
        self
    }
}

impl Hosts {
    /// Starts the hosts. If the system allows no namespaces, prints that the caller was skipped, and returns `None`.
    ///
    /// # Panics
    /// Panics if the network cannot be set up although namespaces are allowed.
    #[must_use]
    pub fn start(setups: impl IntoIterator<Item = HostSetup>) -> Option<Self> {
        let namespaces = [
            "--net",
            "--mount",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
        ];
        let trial = Command::new("unshare")
            .args(namespaces)
            .arg("true")
            .output();
        if !trial.is_ok_and(|output| output.status.success()) {
            print_skipped("hosts of namespaces, which the system does not allow (LEFT OUT)");
            return None;
        }
        let setups: Vec<HostSetup> = setups.into_iter().collect();
        let folder = tempfile::tempdir().expect("a folder");
        for (number, setup) in setups.iter().enumerate() {
            let path = folder.path().join(format!("hosts{number}"));
            fs::write(path, &setup.hosts_file).expect("a hosts file");
        }
        let mut holder = Command::new("unshare")
            .args(namespaces)
            .args(["sh", "-ec", &network_script(&setups)])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare can be run");
        let stdout = holder.stdout.take().expect("stdout is piped");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n", "the network cannot be set up");
        let holder_pid = only_child(holder.id()).expect("unshare has a child");
        Some(Self {
            holder,
            holder_pid,
            setups,
            folder,
        })
    }

    /// Returns a folder that all hosts share.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns a command that runs `program` on the host with this number.
    #[must_use]
    pub fn command(&self, host: usize, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let setup = &self.setups[host];
        let pid = self.holder_pid.as_raw_nonzero().to_string();
        let mut command = Command::new("nsenter");
        command.args([
            "--target", &pid, "--net", "--mount", "--pid", "--", "unshare", "--mount", "--uts",
        ]);
        if setup.has_own_pids {
            command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
        }
        let path = self.folder.path().join(format!("hosts{host}"));
        let script = "hostname \"$1\"; mount --bind \"$2\" /etc/hosts; namespace=$3; shift 3; exec ip netns exec \"$namespace\" \"$@\"";
        command.args(["sh", "-ec", script, "sh", &setup.name]);
        command.arg(path).arg(format!("h{host}")).arg(program);
        command
    }

    /// Starts a command of [`command`](Self::command). Its output goes to a file whose name begins with `name`.
    ///
    /// # Panics
    /// Panics if the command cannot be started.
    #[must_use]
    pub fn start_process(&self, name: &str, command: &mut Command) -> HostProcess {
        let output = self.folder.path().join(format!("{name}.out"));
        let file = fs::File::create(&output).expect("a file");
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a file"))
            .stderr(file)
            .spawn()
            .expect("nsenter can be run");
        HostProcess { child, output }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = kill_process(self.holder_pid, Signal::KILL);
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

impl HostProcess {
    /// Returns the output of the process so far.
    #[must_use]
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).unwrap_or_default()).into_owned()
    }

    /// Returns the id of the program in the namespace of this process; `None` before the program runs and after its
    /// exit.
    #[must_use]
    pub fn pid(&self) -> Option<Pid> {
        let mut pid = self.child.id();
        loop {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            match name.trim_end() {
                "nsenter" | "unshare" => {
                    pid = only_child(pid)?.as_raw_nonzero().get().cast_unsigned()
                }
                "sh" | "ip" | "hostname" | "mount" => return None,
                _ => return Pid::from_raw(pid.cast_signed()),
            }
        }
    }

    /// Sends a signal to the program.
    ///
    /// # Panics
    /// Panics if the program does not run.
    pub fn signal(&self, signal: Signal) {
        let pid = self.pid().expect("the program runs");
        kill_process(pid, signal).expect("the program can be signalled");
    }

    /// Waits for the exit, and returns the exit code, or 128 plus the number of the signal.
    ///
    /// # Panics
    /// Panics if the process still runs after `limit`. The message has its output.
    pub fn wait(&mut self, limit: Duration) -> i32 {
        let code = |status: ExitStatus| status.code().or_else(|| Some(128 + status.signal()?));
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return code(status).expect("it has exited");
            }
            assert!(
                started.elapsed() < limit,
                "still runs after {limit:?}:\n{}",
                self.output()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the output satisfies the condition.
    ///
    /// # Panics
    /// Panics if the output does not satisfy the condition within `limit`.
    pub fn wait_for_output(&self, limit: Duration, condition: impl Fn(&str) -> bool) -> String {
        let started = Instant::now();
        loop {
            let output = self.output();
            if condition(&output) {
                return output;
            }
            assert!(started.elapsed() < limit, "not within {limit:?}:\n{output}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a script that makes the namespaces and links, reports that they are ready, and keeps them.
fn network_script(setups: &[HostSetup]) -> String {
    let mut script =
        "mount --make-rprivate /\nmount -t tmpfs run /run\nmkdir /run/netns\nip link set lo up\n\
                      ip link add bridge type bridge\nip link set bridge up\n"
            .to_owned();
    for (number, setup) in setups.iter().enumerate() {
        let address = number + 1;
        let _ = write!(
            script,
            "ip netns add h{number}\n\
             ip link add l{number} type veth peer name eth0 netns h{number}\n\
             ip link set l{number} master bridge up\n\
             ip -n h{number} link set lo up\n\
             ip -n h{number} addr add 10.8.8.{address}/24 dev eth0\n\
             ip -n h{number} addr add fd00:8::{address}/64 dev eth0 nodad\n\
             ip -n h{number} link set eth0 up\n"
        );
        if !setup.script.is_empty() {
            let _ = writeln!(script, "ip netns exec h{number} sh -ec '{}'", setup.script);
        }
    }
    script.push_str("echo ready\nexec sleep infinity\n");
    script
}

/// Returns the only child of a process, if it has one.
fn only_child(pid: u32) -> Option<Pid> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    Pid::from_raw(children.split_whitespace().next()?.parse().ok()?)
}
