//! Options and status of a journal in etcd.

use std::error::Error;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, thread};

use c10d_socket::{Cancel, Credentials, Deadline, HostPort, HostPortError, is_printable};
use c10d_store::journal::Formats;
use c10d_store::{DataLost, Lookup};

use super::gateway::{CallError, Gateway, Site, User};
use super::layout::{Head, Layout, Leader, Registered};
use super::life_line::position_of;
use super::loss::{Memory, found_in};
use super::message::{Answer, MemberStatus, Op, Range, Request, Txn};

/// The members of etcd, and the prefix of the journal's keys: `etcd://H1:2379,H2:2379/PREFIX`.
///
/// ```
/// use c10d_journal::EtcdOptions;
///
/// let options: EtcdOptions = "etcd://node1:2379,node2:2379/c10d/job-17".parse()?;
/// assert_eq!(options.to_string(), "etcd://node1:2379,node2:2379/c10d/job-17");
/// assert!("etcd://node1:2379".parse::<EtcdOptions>().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdOptions {
    pub(super) site: Arc<Site>,
    pub(super) layout: Layout,
    pub(super) ttl: Duration,
    /// The port, or 0 if the system chooses it.
    pub(super) life_port: u16,
    /// The memory of all journals in this process that were opened with clones of these options.
    pub(super) memory: Memory,
}

/// A text that is not an address of a journal in etcd.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not etcd://HOST:PORT,.../PREFIX: {reason}")]
pub struct EtcdAddressError {
    text: String,
    reason: String,
}

/// How long a silent leader keeps its leadership: etcd's shortest lease at its default election timeout.
const LEASE_TTL: Duration = Duration::from_secs(2);

/// The longest prefix.
const PREFIX_BYTES_MAX: usize = 512;

impl EtcdOptions {
    /// Sends the certificate of these credentials to etcd, if they have one, and checks that etcd's certificate is of
    /// their authority. If etcd has users, the certificate must have no common name: etcd's gateway refuses
    /// certificates with a common name.
    #[must_use]
    pub fn with_credentials(mut self, credentials: Credentials) -> Self {
        Arc::make_mut(&mut self.site).credentials = Some(credentials);
        self
    }

    /// Sets the name and the password of a user of etcd. The user needs permission to read and write below the
    /// prefix.
    #[must_use]
    pub fn with_user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        let user = User {
            name: name.into(),
            password: password.into(),
        };
        Arc::make_mut(&mut self.site).user = Some(user);
        self
    }

    /// Returns the members of etcd.
    #[must_use]
    pub fn members(&self) -> &[HostPort] {
        &self.site.endpoints
    }

    /// Sets how long a silent leader keeps its leadership, in whole seconds. etcd grants at least 1.5 times its
    /// election timeout. Default 2 s.
    #[must_use]
    pub const fn with_lease_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets the port at which standbys detect that the process of a journal has exited, for a firewall in between.
    /// Default: a port that the system chooses. If the port is in use, standbys only detect that the lease has
    /// expired.
    #[must_use]
    pub const fn with_life_port(mut self, port: u16) -> Self {
        self.life_port = port;
        self
    }
}

impl FromStr for EtcdOptions {
    type Err = EtcdAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |reason: String| EtcdAddressError {
            text: text.to_owned(),
            reason,
        };
        let rest = text.strip_prefix("etcd://");
        let rest = rest.ok_or_else(|| fail("it does not begin with etcd://".to_owned()))?;
        let (hosts, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_end_matches('/');
        if prefix.is_empty() || prefix.len() > PREFIX_BYTES_MAX {
            let reason = format!(
                "the prefix has {} bytes, not 1 to {PREFIX_BYTES_MAX}",
                prefix.len()
            );
            return Err(fail(reason));
        }
        if prefix
            .chars()
            .any(|it| it.is_whitespace() || !is_printable(it))
        {
            return Err(fail(
                "the prefix has a space or a character that cannot be shown".to_owned(),
            ));
        }
        let endpoints = hosts.split(',').map(str::parse).collect::<Result<_, _>>();
        let endpoints = endpoints.map_err(|error: HostPortError| fail(error.to_string()))?;
        Ok(Self {
            site: Arc::new(Site {
                endpoints,
                credentials: None,
                user: None,
            }),
            layout: Layout::new(prefix),
            ttl: LEASE_TTL,
            life_port: 0,
            memory: Memory::default(),
        })
    }
}

impl fmt::Display for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("etcd://")?;
        for (index, endpoint) in self.site.endpoints.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{endpoint}")?;
        }
        write!(f, "/{}", self.layout.prefix())
    }
}

/// Finds the process that serves the store of a journal in etcd. As a [`Lookup`], it makes a
/// [`StoreAddress`](c10d_store::StoreAddress).
///
/// ```no_run
/// use std::time::{Duration, Instant};
///
/// use c10d_journal::{EtcdDirectory, EtcdOptions};
/// use c10d_socket::{Cancel, Deadline};
///
/// let options: EtcdOptions = "etcd://node1:2379,node2:2379/c10d/job-17".parse()?;
/// let directory = EtcdDirectory::new(options);
/// let deadline = Deadline::after(Instant::now(), Duration::from_secs(5));
/// match directory.lookup(deadline, &Cancel::NEVER)? {
///     Some(leader) => println!("{} serves the store at {}", leader.process, leader.address),
///     None => println!("no process serves the store"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdDirectory(EtcdOptions);

/// The process that serves the store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EtcdLeader {
    /// The address of its store.
    pub address: String,
    /// The number of times that the store was opened to serve, including this time: a later leader has a higher
    /// epoch.
    pub epoch: u64,
    /// The id and the host of the process, for messages.
    pub process: String,
    /// The time when the process began to lead, in seconds since 1970 by its clock.
    pub since: u64,
}

/// A process that serves, or that follows the log to take over.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EtcdCandidate {
    /// The address of its store once it serves.
    pub address: String,
    /// The id and the host of the process, for messages.
    pub process: String,
    /// The time when the process became a candidate, in seconds since 1970 by its clock.
    pub since: u64,
    /// The last batch that it has read or written. Up to 45 s old if the candidate does not answer, because a
    /// firewall is in between or it has exited.
    pub position: u64,
    /// The versions of the journal's format that it reads.
    pub formats: Formats,
}

/// The last takeover: by the present leader, or by the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EtcdTakeover {
    /// The address of the previous leader's store.
    pub address: String,
    /// The id and the host of the previous leader, for messages.
    pub process: String,
    /// The time of the takeover, in seconds since 1970 by the new leader's clock.
    pub at: u64,
    /// The time from the moment at which it noticed the exit of the previous leader until it led. If the previous
    /// leader was stopped or cut off, the time from the expiry of its lease.
    pub duration: Duration,
}

/// One member of etcd, with its status.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EtcdMember {
    /// The address of the member, as given in the options.
    pub address: HostPort,
    /// The status that the member reported, or why there is none.
    pub status: Result<MemberStatus, String>,
}

/// The state of the journal at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EtcdStatus {
    /// The process that serves, if one does.
    pub leader: Option<EtcdLeader>,
    /// The position of the last batch; 0 without batches.
    pub position: u64,
    /// The position of the snapshot's last batch; 0 without a snapshot.
    pub snapshot_position: u64,
    /// The newest version of the journal's format in the log; `None` without a log.
    pub format: Option<u8>,
    /// The bytes of the batches after the snapshot. `None` if the release that wrote them does not count them.
    pub log_bytes: Option<u64>,
    /// The bytes of the snapshot. `None` if there is none, or the release that wrote it does not count them.
    pub snapshot_bytes: Option<u64>,
    /// The last time that a process took over from another process. A process that served again after a pause does
    /// not count, if no other process served in between.
    pub takeover: Option<EtcdTakeover>,
    /// All processes that may lead, including the leader. A killed process is listed for another minute.
    pub candidates: Vec<EtcdCandidate>,
}

/// The address of the store could not be looked up in etcd.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} the store in {place}: {reason}", if *is_loss { "no server serves" } else { "cannot look up who serves" })]
pub struct EtcdLookupError {
    place: String,
    reason: String,
    /// A server has found that etcd's data has gone back.
    is_loss: bool,
}

impl EtcdDirectory {
    /// Creates a directory for the journal of these options. Does not connect yet.
    #[must_use]
    pub const fn new(options: EtcdOptions) -> Self {
        Self(options)
    }

    /// Returns the status of each member of etcd. Asks all members at once, with a thread each. Blocks for at most
    /// 1.5 s.
    #[must_use]
    pub fn members(&self, cancel: &Cancel) -> Vec<EtcdMember> {
        let options = &self.0;
        let members = options.members();
        let asked = ask_all(members, |address| member_status(options, address, cancel));
        let asked = asked.into_iter().zip(members);
        let members = asked.map(|(status, address)| EtcdMember {
            address: address.clone(),
            status: status.flatten(),
        });
        members.collect()
    }

    /// Returns the process that serves now; `None` while no process does. Uses a new connection. Blocks until the
    /// deadline at most.
    ///
    /// # Errors
    /// [`EtcdLookupError`]: no member of etcd answers in time, or it refuses, or its keys are not of a journal.
    pub fn lookup(
        &self,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<Option<EtcdLeader>, EtcdLookupError> {
        let (found, head) = self.read(deadline, cancel)?;
        Ok(leader_of(found.leader.as_ref(), head.as_ref()))
    }

    /// Returns the leader, the candidates, and the position of the log. Blocks until the deadline at most, then for
    /// at most 1.3 s while each candidate is asked for its position, with a thread each.
    ///
    /// # Errors
    /// The errors of [`lookup`](Self::lookup).
    pub fn status(
        &self,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<EtcdStatus, EtcdLookupError> {
        let (found, head) = self.read(deadline, cancel)?;
        let leader = leader_of(found.leader.as_ref(), head.as_ref());
        let position = head.as_ref().map_or(0, |head| head.position);
        let asked = &found.candidates[..found.candidates.len().min(ASKED_MAX)];
        let asked = ask_all(asked, |it| {
            let of = |leader: &Leader| (leader.address.clone(), leader.process);
            match found.leader.as_ref().map(of) == Some(of(&it.leader)) {
                true => Some(position),
                false => position_of(&it.leader, cancel),
            }
        });
        let unasked = std::iter::repeat(None);
        let asked = asked.into_iter().map(|said| said.ok().flatten());
        let candidates = found.candidates.into_iter().zip(asked.chain(unasked));
        let candidates = candidates.map(|(it, said)| EtcdCandidate {
            process: process_of(it.leader.process, &it.leader.host),
            address: it.leader.address,
            since: it.leader.since,
            position: said.unwrap_or(it.position),
            formats: it.formats,
        });
        Ok(EtcdStatus {
            position,
            format: head.as_ref().map(|head| head.format),
            log_bytes: head.as_ref().and_then(|head| head.log_bytes),
            snapshot_bytes: head.as_ref().and_then(|head| head.snapshot.as_ref()?.bytes),
            takeover: head.as_ref().and_then(|head| {
                let takeover = head.takeover.as_ref()?;
                Some(EtcdTakeover {
                    address: takeover.address.clone(),
                    process: process_of(takeover.process, &takeover.host),
                    at: takeover.at,
                    duration: Duration::from_millis(takeover.millis),
                })
            }),
            snapshot_position: head.as_ref().map_or(0, Head::snapshot_position),
            candidates: candidates.collect(),
            leader,
        })
    }

    fn read(
        &self,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<(Found, Option<Head>), EtcdLookupError> {
        let EtcdOptions { site, layout, .. } = &self.0;
        let mut gateway = Gateway::new(Arc::clone(site), cancel.clone());
        let failed = |reason| EtcdLookupError {
            place: self.name(),
            reason,
            is_loss: false,
        };
        let found = read_all(&mut gateway, layout, deadline).map_err(failed)?;
        if let Some(lost) = &found.lost {
            return Err(EtcdLookupError {
                is_loss: true,
                ..failed(found_in(lost))
            });
        }
        let head = found.head.as_ref();
        let head = head.map(|head| layout.parse_head_of_any(head)).transpose();
        let head = head.map_err(|error| failed(error.to_string()))?;
        Ok((found, head))
    }
}

/// The leader that serves. Until it has written the head, it does not: that is of the leader before.
fn leader_of(leader: Option<&Leader>, head: Option<&Head>) -> Option<EtcdLeader> {
    let (leader, head) = (leader?, head?);
    (leader.writer == head.writer).then(|| EtcdLeader {
        process: process_of(leader.process, &leader.host),
        address: leader.address.clone(),
        epoch: head.epoch,
        since: leader.since,
    })
}

/// Asks all at once, with a thread each. Returns the answers in the same order, or why there is no thread.
fn ask_all<T: Sync, A: Send>(all: &[T], ask: impl Fn(&T) -> A + Sync) -> Vec<Result<A, String>> {
    let ask = &ask;
    thread::scope(|scope| {
        let asked: Vec<_> = all
            .iter()
            .map(|one| {
                let thread = thread::Builder::new().name("c10d-etcd-ask".to_owned());
                thread.spawn_scoped(scope, move || ask(one))
            })
            .collect();
        let answers = asked.into_iter().map(|asked| match asked {
            Ok(asked) => asked
                .join()
                .map_err(|_| "the thread of the request panicked".to_owned()),
            Err(error) => Err(format!("cannot start a thread to ask: {error}")),
        });
        answers.collect()
    })
}

fn process_of(process: u64, host: &str) -> String {
    format!("process {process} on {host}")
}

/// How long a member may take to report its status.
const MEMBER_TIMEOUT: Duration = Duration::from_millis(1500);

fn member_status(
    options: &EtcdOptions,
    address: &HostPort,
    cancel: &Cancel,
) -> Result<MemberStatus, String> {
    let mut site = Site::clone(&options.site);
    site.endpoints = vec![address.clone()];
    let mut gateway = Gateway::new(Arc::new(site), cancel.clone());
    let deadline = Deadline::after(Instant::now(), MEMBER_TIMEOUT);
    match gateway.call(&Request::Status, deadline) {
        Ok(Answer::Status(status)) => Ok(status),
        Ok(_) => Err("its answer is not one to this request".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

impl Lookup for EtcdDirectory {
    fn name(&self) -> String {
        self.0.to_string()
    }

    fn leader(
        &self,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> Result<Option<c10d_store::Leader>, Box<dyn Error + Send + Sync>> {
        let found = match self.lookup(deadline, cancel) {
            Err(error) if error.is_loss => return Err(DataLost(error.to_string()).into()),
            found => found?,
        };
        let Some(found) = found else {
            return Ok(None);
        };
        Ok(Some(c10d_store::Leader {
            address: found.address.parse()?,
            epoch: found.epoch,
        }))
    }
}

struct Found {
    leader: Option<Leader>,
    head: Option<Vec<u8>>,
    /// The mark of a candidate that has found a loss of data.
    lost: Option<Vec<u8>>,
    candidates: Vec<Registered>,
}

/// The most candidates that are asked how far they have read.
const ASKED_MAX: usize = 16;

/// The most candidates that are read.
const CANDIDATES_MAX: u64 = 1000;

/// Returns the range of all listed candidates.
pub(super) fn candidates_range(layout: &Layout) -> Range {
    let (key, end) = layout.candidates();
    Range {
        end: Some(end),
        limit: CANDIDATES_MAX,
        ..Range::key(key)
    }
}

/// The leader, and the head as it is in etcd, at one moment.
pub(super) fn read_leader(
    gateway: &mut Gateway,
    layout: &Layout,
    deadline: Deadline,
) -> Result<(Option<Leader>, Option<Vec<u8>>), String> {
    let found = read_all(gateway, layout, deadline)?;
    Ok((found.leader, found.head))
}

/// The leader, the head and the candidates at one moment.
fn read_all(gateway: &mut Gateway, layout: &Layout, deadline: Deadline) -> Result<Found, String> {
    let ranges = [
        Range::key(layout.leader()),
        Range::key(layout.head()),
        candidates_range(layout),
        Range::key(layout.lost()),
    ];
    let look = Request::Txn(Txn {
        compare: Vec::new(),
        success: ranges.map(Op::Range).to_vec(),
        failure: Vec::new(),
    });
    let answer = gateway.call(&look, deadline);
    let answer = answer.map_err(|error: CallError| error.to_string())?;
    let Answer::Txn { ranges, .. } = answer else {
        return Err("etcd's answer is not one to this request".to_owned());
    };
    let [leader, head, candidates, lost] = &*ranges else {
        return Err("etcd's answer is incomplete".to_owned());
    };
    let candidates = candidates.keys.iter();
    let candidates = candidates.filter_map(|it| Registered::parse(&it.value));
    Ok(Found {
        leader: leader.first().and_then(|it| Leader::parse(&it.value)),
        head: head.first().map(|head| head.value.clone()),
        lost: lost.first().map(|it| it.value.clone()),
        candidates: candidates.collect(),
    })
}
