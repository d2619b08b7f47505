//! Three members of etcd, in processes of their own.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use tempfile::TempDir;

use super::gateway::{Gateway, number};
use crate::affinity::unpin_this_thread;
use crate::child::end_with_measurement;
use crate::failure::{Context as _, Failure};

pub(crate) const MEMBERS: usize = 3;

/// Of members that have a host each.
const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;

/// How long etcd may take to start, or to elect a leader, on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A member's options.
#[derive(Debug, Args)]
pub(crate) struct EtcdMemberArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<OsString>,
}

impl EtcdMemberArgs {
    /// Goes on as etcd, on any core, until the parent of this process ends.
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
#[derive(Debug)]
pub(crate) struct Site {
    members: Vec<Member>,
    folder: TempDir,
    cluster: String,
    place: Place,
}

type CommandOf = Box<dyn Fn(usize, &Path) -> Command>;

/// Makes the begin of a command, which runs a program where this member is.
pub(crate) struct Place(pub(crate) CommandOf);

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Place")
    }
}

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
        let here = Place(Box::new(|_, program| Command::new(program)));
        Self::start_members(members, here, &env::temp_dir())
    }

    /// Starts each member on a host of its own, with its data in a directory below `folder`, and waits until all answer.
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

    /// Of a journal with this prefix.
    pub(crate) fn address(&self, prefix: &str) -> String {
        let members: Vec<_> = self.clients().iter().map(SocketAddr::to_string).collect();
        format!("etcd://{}/{prefix}", members.join(","))
    }

    pub(crate) fn clients(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.client).collect()
    }

    pub(super) fn gateway(&self, number: usize) -> io::Result<Gateway> {
        Gateway::connect(self.members[number].client, CALL_TIMEOUT)
    }

    /// The member that leads.
    pub(super) fn leader(&self) -> Result<usize, Failure> {
        let leads = |number: &usize| {
            let status = self.gateway(*number).and_then(|mut it| {
                let status = it.post("/v3/maintenance/status", "{}")?;
                Ok((
                    number_at(&status, "/leader")?,
                    number_at(&status, "/header/member_id")?,
                ))
            });
            status.is_ok_and(|(leader, this)| leader == this)
        };
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            if let Some(leader) = (0..MEMBERS).find(leads) {
                return Ok(leader);
            }
            thread::sleep(POLL_INTERVAL);
        }
        Err(Failure::new("no member of etcd leads"))
    }

    /// With SIGKILL.
    pub(super) fn kill(&mut self, number: usize) {
        if let Some(mut process) = self.members[number].process.take() {
            end(&mut process);
        }
    }

    /// Starts a member again that was killed, and waits until it answers.
    pub(super) fn restart(&mut self, number: usize) -> Result<(), Failure> {
        self.spawn(number)?;
        self.wait_for(number)
    }

    /// How many writes of anybody etcd has carried out.
    pub(super) fn revision(&self) -> io::Result<u64> {
        let answer = self.gateway(0)?.post("/v3/kv/range", r#"{"key":"YQ=="}"#)?;
        number_at(&answer, "/header/revision")
    }

    /// How many calls the members have begun to carry out since their start. A call of the gateway is one.
    pub(super) fn calls(&self) -> Result<f64, Failure> {
        let mut calls = 0.0;
        for number in 0..MEMBERS {
            let text = self.gateway(number).and_then(|it| it.get("/metrics"));
            let text = text.context("cannot read etcd's metrics")?;
            let lines = text.lines();
            let counters = lines.filter(|line| line.starts_with("grpc_server_started_total{"));
            let counters = counters.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
            calls += counters.sum::<f64>();
        }
        Ok(calls)
    }

    /// How a member has ended; `None` while it runs.
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
        let process = (self.place.0)(number, &executable)
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
        loop {
            // An empty transaction needs a leader.
            let answer = self
                .gateway(number)
                .and_then(|mut it| it.post("/v3/kv/txn", "{}"));
            let Err(error) = answer else {
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

/// The number at a place of an answer.
pub(super) fn number_at(answer: &serde_json::Value, pointer: &str) -> io::Result<u64> {
    let found = answer.pointer(pointer).and_then(number);
    found.ok_or_else(|| io::Error::other(format!("etcd's answer has no {pointer}")))
}
