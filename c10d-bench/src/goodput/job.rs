//! A job with its hosts and processes: starts the processes that are due, and reads the output of
//! the ranks.

mod nemesis;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

use c10d_journal::{EtcdDirectory, EtcdOptions};
use rustix::time::{ClockId, clock_gettime};

use super::history::{Launcher, Process as RankProcess, SideHistory};
use super::hosts::{Hosts, log_file};
use super::plan::{Abilities, NODES, RANKS};
use super::records::Record;
use super::scheduler::Scheduler;
use super::sides::{self, Meeting, Side, Tools};
use super::training::Training;
use crate::failure::{Context as _, Failure};
use crate::process::Process;
use crate::workload::etcd::{MEMBERS, Site};

/// The port of the rendezvous and of candidates, if they have separate hosts.
const PORT: u16 = 29_400;

/// The port of relays, if nodes have separate hosts.
const RELAY_PORT: u16 = 29_500;

const PREFIX: &str = "c10d/goodput";

/// The role of a supervised process, in the order of the processes' numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Launcher(usize),
    Relay(usize),
    Candidate(usize),
    Etcd(usize),
}

impl Role {
    /// The hosts after the nodes have a member of etcd and a candidate each.
    const fn host(self) -> usize {
        match self {
            Self::Launcher(node) | Self::Relay(node) => node,
            Self::Candidate(number) | Self::Etcd(number) => NODES + number,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Launcher(node) => format!("launcher-{node}"),
            Self::Relay(node) => format!("relay-{node}"),
            Self::Candidate(number) => format!("candidate-{number}"),
            Self::Etcd(number) => format!("etcd-{number}"),
        }
    }
}

/// The effect of a fault until the fault is over.
#[derive(Debug, Clone, Copy)]
enum Lasting {
    Stopped(Process),
    LinkDown(usize),
    LinkSlow(usize),
    DiskFull,
}

/// Ends with all its processes when it is dropped.
pub(super) struct Job {
    side: Side,
    tools: Tools,
    meeting: Meeting,
    candidate_ports: Vec<u16>,
    roles: Vec<Role>,
    children: Vec<Option<Child>>,
    scheduler: Scheduler,
    site: Option<Site>,
    directory: Option<EtcdDirectory>,
    origin_ms: u64,
    records: BTreeMap<String, (Record, u64)>,
    launchers: Vec<Launcher>,
    /// The lasting effects of faults, with the times of their ends.
    lasting: Vec<(u64, Lasting)>,
    // Last: it kills what is left.
    hosts: Hosts,
}

impl Job {
    pub(super) fn start(side: Side, tools: &Tools, is_loopback: bool) -> Result<Self, Failure> {
        let controls = if side.keeps_ranks() { MEMBERS } else { 0 };
        let hosts = Hosts::start(NODES + controls, is_loopback)?;
        let worker = hosts.folder().join("worker.py");
        fs::write(&worker, include_str!("worker.py")).context("cannot write the script")?;
        let mut site = None;
        let mut directory = None;
        let mut roles: Vec<_> = (0..NODES).map(Role::Launcher).collect();
        let endpoint = if controls > 0 {
            let addresses = [0, 1, 2].map(|number| hosts.address(NODES + number));
            let started = Site::start_on(addresses, hosts.place(NODES), hosts.folder())?;
            let endpoint = started.address(PREFIX);
            directory = Some(EtcdDirectory::new(endpoint.parse::<EtcdOptions>()?));
            site = Some(started);
            roles.extend((0..NODES).map(Role::Relay));
            roles.extend((0..controls).map(Role::Candidate));
            roles.extend((0..controls).map(Role::Etcd));
            endpoint
        } else {
            SocketAddr::new(hosts.address(0), port(&hosts, PORT)?).to_string()
        };
        let ports = |count, own| {
            (0..count)
                .map(|_| port(&hosts, own))
                .collect::<Result<Vec<_>, _>>()
        };
        let meeting = Meeting {
            endpoint,
            relay_ports: ports(NODES, RELAY_PORT)?,
        };
        Ok(Self {
            side,
            tools: Tools {
                worker,
                ..tools.clone()
            },
            candidate_ports: ports(controls, PORT)?,
            meeting,
            children: roles.iter().map(|_| None).collect(),
            scheduler: Scheduler::new(roles.len(), NODES),
            roles,
            site,
            directory,
            origin_ms: clock_ms(),
            records: BTreeMap::new(),
            launchers: Vec::new(),
            lasting: Vec::new(),
            hosts,
        })
    }

    pub(super) fn abilities(&self) -> Abilities {
        Abilities {
            has_relays: self.side.keeps_ranks(),
            has_namespaces: self.hosts.has_namespaces(),
        }
    }

    /// Milliseconds since the start.
    pub(super) fn now_ms(&self) -> u64 {
        clock_ms() - self.origin_ms
    }

    pub(super) fn logs(&self) -> PathBuf {
        self.hosts.logs()
    }

    /// Notices what has ended, starts what is due, and ends faults that have lasted long enough.
    pub(super) fn advance(&mut self) -> Result<(), Failure> {
        for index in 0..self.roles.len() {
            let ended = match self.roles[index] {
                Role::Etcd(number) => self.site.as_mut().and_then(|site| site.ended(number)),
                _ => self.children[index]
                    .as_mut()
                    .and_then(|it| it.try_wait().ok()?),
            };
            // One of etcd is asked again until it starts.
            if let Some(status) = ended.filter(|_| self.scheduler.is_running(index)) {
                self.ended(index, status);
            }
        }
        let now_ms = self.now_ms();
        for index in self.scheduler.start(now_ms) {
            self.spawn(index, now_ms)?;
        }
        if self
            .lasting
            .iter()
            .any(|it| matches!(it.1, Lasting::DiskFull))
        {
            self.hosts.fill_disk();
        }
        let (over, lasting) = std::mem::take(&mut self.lasting)
            .into_iter()
            .partition(|it| it.0 <= now_ms);
        self.lasting = lasting;
        let over: Vec<(u64, Lasting)> = over;
        over.into_iter()
            .try_for_each(|(_, what)| self.restore(what))
    }

    fn ended(&mut self, index: usize, status: ExitStatus) {
        let now_ms = self.now_ms();
        self.children[index] = None;
        self.scheduler.ended(index, now_ms, status.success());
        let away = self.lasting.iter().filter_map(|(until, what)| match what {
            Lasting::LinkDown(host) if *host == self.roles[index].host() => Some(*until),
            _ => None,
        });
        if let Some(until) = away.max() {
            self.scheduler.hold(index, until);
        }
        if let Role::Launcher(node) = self.roles[index] {
            let mut lives = self.launchers.iter_mut().rev();
            if let Some(life) = lives.find(|it| it.node == node) {
                life.end_ms = Some(now_ms);
                life.how = match status.signal() {
                    Some(signal) => format!("signal {signal}"),
                    None => format!("exit code {}", status.code().unwrap_or_default()),
                };
            }
        }
    }

    fn spawn(&mut self, index: usize, now_ms: u64) -> Result<(), Failure> {
        let role = self.roles[index];
        let c10d = &self.tools.c10d;
        let mut command = match role {
            Role::Etcd(number) => {
                if let Some(site) = &mut self.site {
                    // The first time they run already.
                    if site.ended(number).is_some() {
                        return site.spawn(number);
                    }
                }
                return Ok(());
            }
            Role::Launcher(node) => {
                self.launchers.push(Launcher {
                    node,
                    begin_ms: now_ms,
                    end_ms: None,
                    how: String::new(),
                });
                let submission = self.scheduler.submission();
                sides::launcher(
                    self.side,
                    node,
                    submission,
                    &self.hosts,
                    &self.tools,
                    &self.meeting,
                )
            }
            Role::Relay(node) => sides::relay(node, &self.hosts, c10d, &self.meeting),
            Role::Candidate(number) => {
                let port = self.candidate_ports[number];
                sides::candidate(role.host(), port, &self.hosts, c10d, &self.meeting)
            }
        };
        self.children[index] = Some(start(&mut command, &self.hosts.logs(), &role.name())?);
        Ok(())
    }

    /// Reads the output of the ranks.
    pub(super) fn read(&mut self, training: &mut Training) -> Result<(), Failure> {
        let folder = self.hosts.ranks();
        for entry in fs::read_dir(&folder)
            .context("cannot read a folder")?
            .flatten()
        {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let known = self.records.contains_key(&name);
            if let Some(record) = (!known)
                .then(|| Record::new(&name, self.origin_ms))
                .flatten()
            {
                self.records.insert(name, (record, 0));
            }
        }
        for (name, (record, offset)) in &mut self.records {
            let mut file =
                File::open(folder.join(name)).context("cannot read what a rank wrote")?;
            if file.metadata()?.len() > *offset {
                let mut text = String::new();
                file.seek(SeekFrom::Start(*offset))?;
                *offset += file.read_to_string(&mut text)? as u64;
                record.feed(&text, training)?;
            }
        }
        Ok(())
    }

    /// Whether all ranks are one group, which has done a step.
    pub(super) fn is_whole(&self) -> bool {
        let processes = self.records.values().map(|it| &it.0.process);
        let groups = processes.clone().filter_map(|it| it.joined.last());
        let Some(newest) = groups.map(|it| it.generation).max() else {
            return false;
        };
        let members = processes.filter(|it| {
            let is_in = it.joined.last().is_some_and(|it| it.generation == newest);
            is_in && it.runs.last().is_some_and(|it| it.generation == newest)
        });
        members.count() == RANKS
    }

    /// Has the ranks end.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        let path = self.hosts.ranks().join("finish");
        File::create(path)
            .context("cannot tell the ranks to end")
            .map(drop)
    }

    pub(super) fn is_over(&self) -> bool {
        self.scheduler.is_over()
    }

    /// The history of launchers and ranks.
    pub(super) fn history(&self) -> SideHistory {
        let processes = self.records.values().map(|it| it.0.process.clone());
        let mut processes: Vec<RankProcess> = processes.collect();
        processes.sort_by_key(|it| (it.start_ms, it.node, it.local));
        SideHistory {
            side: self.side.text().to_owned(),
            keeps_ranks: self.side.keeps_ranks(),
            launchers: self.launchers.clone(),
            processes,
            ..SideHistory::default()
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for host in 0..self.hosts.count() {
            self.hosts.kill(host);
        }
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn start(command: &mut Command, logs: &std::path::Path, name: &str) -> Result<Child, Failure> {
    let log = log_file(logs, name)?;
    let copy = log.try_clone().context("cannot write a log")?;
    // The terminal's signals are for this process.
    let child = command.stdout(copy).stderr(log).process_group(0).spawn();
    child.with_context(|| format!("cannot start {command:?}"))
}

/// The clock of Python's `time.monotonic`.
fn clock_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// A port of a host: the port `own` if each host has its own address, otherwise a free port.
fn port(hosts: &Hosts, own: u16) -> Result<u16, Failure> {
    if hosts.has_namespaces() {
        return Ok(own);
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let address = listener.and_then(|it| it.local_addr());
    Ok(address.context("cannot find a free port")?.port())
}
