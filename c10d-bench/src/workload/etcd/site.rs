//! Three members of etcd, in separate processes.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use c10d_journal::{EtcdDirectory, EtcdOptions};
use c10d_socket::{Cancel, Deadline};
use clap::Args;
use tempfile::TempDir;

use crate::affinity::unpin_this_thread;
use crate::child::end_with_measurement;
use crate::failure::{Context as _, Failure};

pub(crate) const MEMBERS: usize = 3;

/// The client port of members that have a host each.
const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;

/// How long etcd may take to start, or to elect a leader, on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a member may take to answer before it is asked again.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A member's options.
#[derive(Debug, Args)]
pub(crate) struct EtcdMemberArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<OsString>,
}

impl EtcdMemberArgs {
    /// Continues as etcd, on any core, until the parent of this process exits.
    pub(crate) fn become_member(&self) -> Result<(), Failure> {
        end_with_measurement();
        unpin_this_thread()?;
        let error = Command::new(program()?).args(&self.options).exec();
        Err(error).context("cannot start etcd")
    }
}

fn program() -> Result<OsString, Failure> {
    env::var_os("C10D_ETCD").ok_or_else(|| {
        Failure::usage("this needs etcd 3.4 or later: set C10D_ETCD to the path of the program")
    })
}

/// A cluster with etcd's default timers. Killed when it is dropped.
pub(crate) struct Site {
    members: Vec<Member>,
    folder: TempDir,
    cluster: String,
    place: Place,
}

/// Makes the begin of a command, which runs a program where this member is.
pub(crate) type Place = Box<dyn Fn(usize, &Path) -> Command>;

#[derive(Debug)]
struct Member {
    client: SocketAddr,
    peer: SocketAddr,
    process: Option<Child>,
}

impl Site {
    /// Starts the members at ports of 127.0.0.1, and waits until all answer.
    pub(super) fn start() -> Result<Self, Failure> {
        let members = free_members().context("cannot find free ports")?;
        let here = |_, program: &Path| Command::new(program);
        Self::start_members(members, Box::new(here), &env::temp_dir())
    }

    /// Starts each member on a separate host, with its data in a directory below `folder`, and waits until all members
    /// answer.
    pub(crate) fn start_on(
        hosts: [IpAddr; MEMBERS],
        place: Place,
        folder: &Path,
    ) -> Result<Self, Failure> {
        if hosts.iter().all(IpAddr::is_loopback) {
            let members = free_members().context("cannot find free ports")?;
            return Self::start_members(members, place, folder);
        }
        let member = |host| Member {
            client: SocketAddr::new(host, CLIENT_PORT),
            peer: SocketAddr::new(host, PEER_PORT),
            process: None,
        };
        Self::start_members(hosts.map(member).into(), place, folder)
    }

    fn start_members(members: Vec<Member>, place: Place, folder: &Path) -> Result<Self, Failure> {
        program()?;
        let mut site = Self {
            members,
            folder: TempDir::new_in(folder).context("cannot make a directory")?,
            cluster: String::new(),
            place,
        };
        let peers = site.members.iter().enumerate();
        let peers: Vec<_> = peers
            .map(|(number, member)| format!("m{number}=http://{}", member.peer))
            .collect();
        site.cluster = peers.join(",");
        for number in 0..MEMBERS {
            site.spawn(number)?;
        }
        for number in 0..MEMBERS {
            site.wait_for(number)?;
        }
        Ok(site)
    }

    /// Returns the address of a journal with this prefix.
    pub(crate) fn address(&self, prefix: &str) -> String {
        let clients = self.members.iter().map(|member| member.client);
        let members: Vec<_> = clients.map(|it| it.to_string()).collect();
        format!("etcd://{}/{prefix}", members.join(","))
    }

    /// Returns the exit status of a member; `None` while it runs.
    pub(crate) fn ended(&mut self, number: usize) -> Option<ExitStatus> {
        self.members[number].process.as_mut()?.try_wait().ok()?
    }

    /// Starts a member, again if it has ended, without waiting for it.
    pub(crate) fn spawn(&mut self, number: usize) -> Result<(), Failure> {
        let executable =
            env::current_exe().context("cannot find the executable of this process")?;
        let member = &self.members[number];
        let (client, peer) = (
            format!("http://{}", member.client),
            format!("http://{}", member.peer),
        );
        let name = format!("m{number}");
        let log = self.folder.path().join(format!("{name}.log"));
        let log = File::options().create(true).append(true).open(log);
        let process = (self.place)(number, &executable)
            .args(["etcd-member", "--name", &name, "--data-dir"])
            .arg(self.folder.path().join(&name))
            .args(["--log-level", "error"])
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &self.cluster])
            .args(["--initial-cluster-state", "new"])
            .args(["--initial-cluster-token", "bench"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.context("cannot write the log of etcd")?)
            .spawn();
        self.members[number].process = Some(process.context("cannot start etcd")?);
        Ok(())
    }

    fn wait_for(&mut self, number: usize) -> Result<(), Failure> {
        let deadline = Instant::now() + START_TIMEOUT;
        let options: EtcdOptions =
            format!("etcd://{}/ready", self.members[number].client).parse()?;
        let directory = EtcdDirectory::new(options);
        loop {
            let by = Deadline::after(Instant::now(), CALL_TIMEOUT);
            // A member reads only if there is a leader.
            let Err(error) = directory.lookup(by, &Cancel::NEVER) else {
                return Ok(());
            };
            let process = self.members[number].process.as_mut();
            if let Some(Ok(Some(status))) = process.map(Child::try_wait) {
                return Err(Failure::new(format!("etcd has ended with {status}")));
            }
            if Instant::now() > deadline {
                return Err(error).context("etcd does not start");
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            end(process);
        }
    }
}

fn end(process: &mut Child) {
    // Both fail only if it has ended.
    let _ = process.kill();
    let _ = process.wait();
}

/// etcd must be told the ports at which others find it, so it cannot choose them.
fn free_members() -> io::Result<Vec<Member>> {
    let bind = |_| TcpListener::bind("127.0.0.1:0");
    let listeners: Vec<_> = (0..2 * MEMBERS).map(bind).collect::<Result<_, _>>()?;
    let ports = listeners.iter().map(TcpListener::local_addr);
    let ports: Vec<_> = ports.collect::<Result<_, _>>()?;
    let members = ports.chunks(2).map(|ports| Member {
        client: ports[0],
        peer: ports[1],
        process: None,
    });
    Ok(members.collect())
}
