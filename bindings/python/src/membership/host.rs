//! The service over a store that has none, as PyTorch's: a server in the process of one of the members, whom the others reach by
//! a key. What its groups decide is kept in a log of the store (`StoreJournal`), which has one owner at a time: one that
//! takes over from a member that cannot be reached continues with the generation, and a host that was only stopped can
//! decide nothing any more.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use c10d_journal::StoreJournal;
use c10d_socket::{Cancel, ConnectOptions, sleep};
use c10d_store::journal::{JournalError, JournalSource};
use c10d_store::membership::{GroupOptions, MemberKey, Membership};
use c10d_store::{
    ServerOptions, Store, StoreError, StoreExt, StoreHandle, TcpStore, TcpStoreOptions,
    TcpStoreServer,
};

/// How long to look at the store before each of its members takes over, by the id of the member: mostly one does.
const TURN: Duration = Duration::from_millis(25);
const TURNS_MAX: u32 = 40;

/// How often to look at the store meanwhile.
const PAUSE: Duration = Duration::from_millis(10);

/// A host that has taken over and has published no address after this time has died.
const PUBLISH_MAX: Duration = Duration::from_secs(2);

/// How long a host waits for the others to learn of the end of the group.
const LINGER: Duration = Duration::from_secs(2);

/// What a member needs to find the service, or to be its host.
#[derive(Debug)]
pub(super) struct Host {
    store: Arc<dyn Store>,
    group: String,
    options: GroupOptions,
    key_prefix: String,
    member: MemberKey,
    /// Where it listens.
    address: IpAddr,
    /// The longest that a host may take for an answer.
    answer_max: Duration,
    server: Mutex<Option<TcpStoreServer>>,
}

/// The value of the key: `EPOCH ADDRESS ID INCARNATION`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    epoch: u64,
    address: SocketAddr,
    member: MemberKey,
}

impl Host {
    /// `peer` is a process that all members reach, such as the server of the store: the address from which this one reaches
    /// it is that of its own server.
    pub(super) fn new(
        store: Arc<dyn Store>,
        peer: (&str, u16),
        group: &str,
        options: GroupOptions,
        key_prefix: &str,
        member: MemberKey,
        answer_max: Duration,
    ) -> io::Result<Self> {
        Ok(Self {
            store,
            group: group.to_owned(),
            options,
            key_prefix: key_prefix.to_owned(),
            member,
            address: own_address(peer)?,
            answer_max,
            server: Mutex::new(None),
        })
    }

    /// Connects to the host, or becomes it.
    ///
    /// # Errors
    /// If the store fails, if the group is open with other options, or if `cancel` ends it.
    pub(super) fn find(&self, cancel: &Cancel) -> Result<Membership, StoreError> {
        let store = self.store.with_cancel(cancel);
        let turns = u32::try_from(self.member.id.0).unwrap_or(TURNS_MAX);
        let turn = TURN * turns.min(TURNS_MAX);
        // The host that cannot be reached, and since when.
        let mut gone: Option<Record> = None;
        let mut since = Instant::now();
        let mut serve_at = since + turn;
        let mut epoch = 0;
        loop {
            let record = self.record(&*store)?.filter(|it| gone.as_ref() != Some(it));
            if let Some(record) = record {
                match self.connect(record.address, cancel) {
                    Ok(group) => return Ok(group),
                    Err(
                        error @ (StoreError::Interrupted { .. }
                        | StoreError::InvalidArgument { .. }),
                    ) => {
                        return Err(error);
                    }
                    Err(_) => {
                        epoch = record.epoch;
                        gone = Some(record);
                        since = Instant::now();
                        serve_at = since + turn;
                    }
                }
            }
            if Instant::now() >= serve_at {
                if let Some(group) = self.serve(&store, epoch, gone.as_ref(), cancel)? {
                    return Ok(group);
                }
                serve_at = Instant::now() + PUBLISH_MAX / 10;
            }
            if since.elapsed() >= turn + PUBLISH_MAX {
                epoch = StoreJournal::epoch(Arc::clone(&store), &self.key("log/"))?;
                since = Instant::now();
            }
            // The next call of the store says that it was cancelled.
            let _ = sleep(PAUSE, [cancel]);
        }
    }

    /// Stops the server, if this process has it. Waits before until the other members have learned of the group's end.
    pub(super) fn close(&self, has_ended: bool) {
        let Some(server) = self.server().take() else {
            return;
        };
        let until = Instant::now() + LINGER;
        while has_ended && server.connection_count() > 0 && Instant::now() < until {
            thread::sleep(PAUSE);
        }
    }

    /// Becomes the host after this epoch. `None` if another process has.
    fn serve(
        &self,
        store: &Arc<dyn Store>,
        after: u64,
        gone: Option<&Record>,
        cancel: &Cancel,
    ) -> Result<Option<Membership>, StoreError> {
        let is_late = Arc::new(AtomicBool::new(false));
        let (prefix, log) = (self.key("log/"), Arc::clone(&self.store));
        let late = Arc::clone(&is_late);
        let open = move |_: &Cancel| {
            let journal = StoreJournal::open(Arc::clone(&log), &prefix, after);
            if matches!(journal, Err(JournalError::InUse { .. })) {
                late.store(true, Ordering::Relaxed);
            }
            Ok(Box::new(journal?) as _)
        };
        let options = ServerOptions::default().with_journal(JournalSource {
            open: Arc::new(open),
            on_failure: None,
        });
        // An earlier server of this process has lost its log.
        drop(self.server().take());
        let server = match TcpStoreServer::bind((self.address, 0), options) {
            Ok(server) => server,
            Err(_) if is_late.load(Ordering::Relaxed) => return Ok(None),
            Err(error) => return Err(error),
        };
        let record = Record {
            epoch: after + 1,
            address: server.local_addr(),
            member: self.member,
        };
        *self.server() = Some(server);
        let group = self.connect(record.address, cancel)?;
        if let Some(gone) = gone
            && gone.member != self.member
        {
            group.dead(gone.member)?;
        }
        self.publish(&**store, &record)?;
        Ok(Some(group))
    }

    /// A handle of the open group of a host.
    fn connect(&self, address: SocketAddr, cancel: &Cancel) -> Result<Membership, StoreError> {
        let options = TcpStoreOptions::default()
            .with_timeout(self.answer_max / 2)
            .with_connect_options(ConnectOptions::default().with_rounds_max(1))
            .with_cancel(cancel.clone());
        let store = TcpStore::open(&address.ip().to_string(), address.port(), options)?;
        store.set_timeout(Some(self.answer_max));
        let group = store.membership(&self.group)?;
        group.open(&self.options, &self.key_prefix)?;
        Ok(group)
    }

    fn record(&self, store: &dyn Store) -> Result<Option<Record>, StoreError> {
        let value = store.try_get(&self.key("host"))?;
        Ok(value.and_then(|value| Record::parse(std::str::from_utf8(&value).ok()?)))
    }

    /// Writes the record, unless there is a later one.
    fn publish(&self, store: &dyn Store, record: &Record) -> Result<(), StoreError> {
        let key = self.key("host");
        let text = record.to_string();
        let mut known = Vec::new();
        loop {
            let now = store.compare_set_bytes(&key, &known, text.as_bytes())?;
            let now = now.into_value();
            let newest = std::str::from_utf8(&now).ok().and_then(Record::parse);
            if newest.is_some_and(|newest| newest.epoch >= record.epoch) {
                return Ok(());
            }
            known = now;
        }
    }

    fn key(&self, name: &str) -> String {
        format!("c10d_rs/{}/service/{name}", self.group)
    }

    fn server(&self) -> MutexGuard<'_, Option<TcpStoreServer>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let epoch = words.next()?.parse().ok()?;
        let address = words.next()?.parse().ok()?;
        let member = MemberKey::new(words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        words.next().is_none().then_some(Self {
            epoch,
            address,
            member,
        })
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemberKey { id, incarnation } = self.member;
        let (epoch, address) = (self.epoch, self.address);
        write!(f, "{epoch} {address} {} {}", id.0, incarnation.0)
    }
}

/// The address from which this process reaches another one. Nothing is sent.
fn own_address(peer: (&str, u16)) -> io::Result<IpAddr> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for peer in peer.to_socket_addrs()? {
        let any: SocketAddr = if peer.is_ipv4() {
            (Ipv4Addr::UNSPECIFIED, 0).into()
        } else {
            (Ipv6Addr::UNSPECIFIED, 0).into()
        };
        let own = UdpSocket::bind(any).and_then(|socket| {
            socket.connect(peer)?;
            socket.local_addr()
        });
        match own {
            Ok(own) => return Ok(own.ip()),
            Err(error) => last = error,
        }
    }
    Err(last)
}
