//! A real etcd for tests, of the program that `C10D_ETCD` names.

use std::env;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline};

use super::gateway::{CallError, Gateway};
use super::message::{Answer, Request, Txn};
use super::options::EtcdOptions;

const STARTS_MAX: usize = 5;

/// Members of one cluster, killed when it is dropped.
pub(crate) struct RealSite {
    members: Vec<Child>,
    /// The command of each member.
    commands: Vec<Command>,
    client_ports: Vec<u16>,
    folder: tempfile::TempDir,
}

impl RealSite {
    /// Starts this number of members, which elect within 0.6 s, and waits until they answer.
    pub(crate) fn start(members: usize) -> Self {
        // Another program may have taken a port in the meantime.
        let mut attempts = (0..STARTS_MAX).map(|_| Self::with_options(members, "http", &[]));
        let started = attempts.find_map(|mut site| site.answers().then_some(site));
        started.expect("etcd starts")
    }

    /// Like [`start`](Self::start), with options of etcd, and without waiting for an answer.
    pub(crate) fn with_options(members: usize, scheme: &str, options: &[&str]) -> Self {
        let program = env::var("C10D_ETCD").expect("C10D_ETCD names the program etcd");
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let folder = folder.expect("a folder");
        // etcd needs the ports that other members find it at.
        let sockets: Vec<_> = (0..2 * members).map(|_| free_port()).collect();
        let ports: Vec<u16> = sockets
            .iter()
            .map(|socket| socket.local_addr().expect("it is bound").port())
            .collect();
        drop(sockets);
        let (client_ports, peer_ports) = ports.split_at(members);
        let cluster: Vec<_> = peer_ports
            .iter()
            .enumerate()
            .map(|(index, port)| format!("m{index}=http://127.0.0.1:{port}"))
            .collect();
        let commands = (0..members).map(|index| {
            let client = format!("{scheme}://127.0.0.1:{}", client_ports[index]);
            let peer = format!("http://127.0.0.1:{}", peer_ports[index]);
            let mut command = Command::new(&program);
            command
                .args(["--name", &format!("m{index}"), "--data-dir"])
                .arg(folder.path().join(format!("m{index}")))
                .args(["--log-level", "error", "--unsafe-no-fsync"])
                .args(["--heartbeat-interval", "30", "--election-timeout", "300"])
                .args([
                    "--listen-client-urls",
                    &client,
                    "--advertise-client-urls",
                    &client,
                ])
                .args([
                    "--listen-peer-urls",
                    &peer,
                    "--initial-advertise-peer-urls",
                    &peer,
                ])
                .args(["--initial-cluster", &cluster.join(",")])
                .args([
                    "--initial-cluster-state",
                    "new",
                    "--initial-cluster-token",
                    "t",
                ])
                .args(options)
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command
        });
        let mut commands: Vec<_> = commands.collect();
        Self {
            members: commands.iter_mut().map(started).collect(),
            commands,
            client_ports: client_ports.to_vec(),
            folder,
        }
    }

    /// Waits until all members answer; `false` if one has ended.
    fn answers(&mut self) -> bool {
        let nothing = Request::Txn(Txn {
            compare: Vec::new(),
            success: Vec::new(),
            failure: Vec::new(),
        });
        let end = Instant::now() + Duration::from_secs(60);
        for member in 0..self.members.len() {
            let mut gateway = self.gateway_of(member);
            let soon = || Deadline::after(Instant::now(), Duration::from_millis(500));
            while gateway.call(&nothing, soon()).is_err() {
                if !matches!(self.members[member].try_wait(), Ok(None)) {
                    return false;
                }
                assert!(Instant::now() < end, "etcd does not answer");
            }
        }
        true
    }

    /// Returns options with all members, beginning with this member.
    pub(crate) fn options_from(&self, first: usize) -> EtcdOptions {
        self.options_with(first, "c10d/test")
    }

    /// Returns options with all members, for another store.
    pub(crate) fn options_below(&self, prefix: &str) -> EtcdOptions {
        self.options_with(0, prefix)
    }

    fn options_with(&self, first: usize, prefix: &str) -> EtcdOptions {
        let mut ports = self.client_ports.clone();
        ports.rotate_left(first);
        let hosts: Vec<_> = ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        let address = format!("etcd://{}/{prefix}", hosts.join(","));
        address.parse().expect("an address")
    }

    pub(crate) fn options(&self) -> EtcdOptions {
        self.options_from(0)
    }

    /// One member only.
    pub(crate) fn options_of(&self, member: usize) -> EtcdOptions {
        let address = format!("etcd://127.0.0.1:{}/c10d/test", self.client_ports[member]);
        address.parse().expect("an address")
    }

    pub(crate) fn gateway_of(&self, member: usize) -> Gateway {
        let site = Arc::clone(&self.options_of(member).site);
        Gateway::new(site, Cancel::NEVER)
    }

    pub(crate) fn gateway(&self) -> Gateway {
        Gateway::new(Arc::clone(&self.options().site), Cancel::NEVER)
    }

    /// Kills a member with SIGKILL. It keeps its written data, because the machine keeps running.
    pub(crate) fn kill(&mut self, member: usize) {
        end(&mut self.members[member]);
    }

    /// Starts a killed member again. Does not wait until it answers.
    pub(crate) fn restart(&mut self, member: usize) {
        self.members[member] = started(&mut self.commands[member]);
    }

    /// Copies the data of these members. They are stopped while it copies.
    pub(crate) fn copy(&mut self, members: &[usize]) {
        self.with_folders(members, |folder, copy| {
            let copied = Command::new("cp").arg("-r").args([folder, copy]).status();
            assert!(copied.is_ok_and(|status| status.success()), "no copy");
        });
    }

    /// These members have what they had when they were [copied](Self::copy); nothing if they never were.
    pub(crate) fn put_back(&mut self, members: &[usize]) {
        self.with_folders(members, |folder, copy| {
            std::fs::remove_dir_all(folder).expect("a folder");
            if copy.exists() {
                std::fs::rename(copy, folder).expect("the same file system");
            }
        });
    }

    fn with_folders(&mut self, members: &[usize], change: impl Fn(&Path, &Path)) {
        members.iter().for_each(|member| self.kill(*member));
        for member in members {
            let path = |name: &str| self.folder.path().join(format!("{name}{member}"));
            change(&path("m"), &path("copy"));
        }
        members.iter().for_each(|member| self.restart(*member));
    }

    /// Returns the address at which a member answers.
    pub(crate) fn client_address(&self, member: usize) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.client_ports[member]).into()
    }

    pub(crate) fn signal(&self, member: usize, signal: &str) {
        let id = self.members[member].id().to_string();
        let status = Command::new("kill").args([signal, &id]).status();
        assert!(status.is_ok_and(|status| status.success()));
    }
}

impl Drop for RealSite {
    fn drop(&mut self) {
        for member in &mut self.members {
            end(member);
        }
    }
}

/// A port that the system assigns only on request: a restarted member must find it free.
fn free_port() -> TcpListener {
    let mut ports = std::iter::repeat_with(|| fastrand::u16(10_000..32_000));
    let bound = ports.find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok());
    bound.expect("a port")
}

fn started(command: &mut Command) -> Child {
    command.spawn().expect("etcd starts")
}

fn end(member: &mut Child) {
    let _ = member.kill();
    let _ = member.wait();
}

/// Calls with time enough.
pub(crate) fn call(gateway: &mut Gateway, request: &Request) -> Result<Answer, CallError> {
    gateway.call(
        request,
        Deadline::after(Instant::now(), Duration::from_secs(30)),
    )
}

/// Waits until it is so.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "not within a minute: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
