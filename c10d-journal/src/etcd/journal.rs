//! The engine: [`EtcdJournal`].

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use c10d_socket::{Cancel, Deadline, HostPort, Moment, host_name, sleep, wait_for_input};
use c10d_store::journal::{
    Authority, Formats, Journal, JournalError, JournalIdentity, JournalSource, Recovered,
};

use super::gateway::{CallError, Gateway, WatchStream};
use super::layout::{Layout, Leader, Registered};
use super::leader::{Candidate, Next};
use super::lease::Lease;
use super::life_line::{LifeLine, Retry, Seen, Vigil, Watching};
use super::log::Writer;
use super::loss::{OVERWRITTEN, Stopped, mark};
use super::message::{Answer, Failure, Request, Watched};
#[cfg(test)]
use super::mutant::{Defect, Mutant};
use super::options::{EtcdOptions, candidates_range, read_leader};
use super::reader::Piece;
use super::registration::Registration;

/// How long opening waits for a member of etcd that answers.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// How long one call takes before the log reports that etcd does not answer. The call continues.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// A standby that has received nothing for this time looks up the leader, unless it receives the leader's heartbeats:
/// a stopped member sends nothing.
const WATCH_SILENCE_MAX: Duration = Duration::from_secs(45);

/// How long etcd may take to keep a mark for other processes.
const MARK_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause after a watch that failed.
const WATCH_PAUSE: Duration = Duration::from_millis(100);

/// A journal in etcd. Any of several processes can serve it, one at a time.
///
/// [`recover`](Journal::recover) follows the log while another process leads, and returns once this process leads. It
/// then has a lease, which a thread renews. Its [authority](Journal::authority) to answer lasts as long as the lease
/// cannot have expired. Dropping the journal revokes the lease, so that another process can lead at once.
///
/// A call blocks until etcd has settled it, or until the lease has expired; without a majority of its members, etcd
/// settles nothing. The `Cancel` of the opening interrupts every call. A batch whose append was interrupted may have
/// been kept.
///
/// ```no_run
/// use std::net::TcpListener;
///
/// use c10d_journal::{EtcdJournal, EtcdOptions};
/// use c10d_store::{ServerOptions, TcpStoreServer};
///
/// let etcd: EtcdOptions = "etcd://node1:2379,node2:2379/c10d/job-17".parse()?;
/// let source = EtcdJournal::source(etcd, "node3:29400".parse()?);
/// let options = ServerOptions::default().with_journal(source);
/// let listener = TcpListener::bind("0.0.0.0:29400")?;
/// let server = TcpStoreServer::stand_by(vec![listener], options)?; // serves once it leads
/// # drop(server);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct EtcdJournal {
    options: EtcdOptions,
    me: Leader,
    gateway: Gateway,
    cancel: Cancel,
    /// No other process leads before the writer is dropped.
    lease: Option<Lease>,
    writer: Option<Writer>,
    has_failed: bool,
    /// The position of the log's last batch that this process has, for other candidates and for status requests.
    position: Arc<AtomicU64>,
    /// Dropped after the lease: its end shows that this process no longer answers.
    life_line: Option<LifeLine>,
    /// Keeps this candidate's key in etcd.
    registration: Option<Registration>,
    #[cfg(test)]
    pub(super) defect: Defect,
}

impl EtcdJournal {
    /// Returns the source of journals for servers at this address, for `TcpStoreServer::stand_by`.
    #[must_use]
    pub fn source(options: EtcdOptions, address: HostPort) -> JournalSource {
        let open = move |cancel: &Cancel| {
            let journal = Self::open(&options, &address, cancel)?;
            Ok(Box::new(journal) as Box<dyn Journal>)
        };
        JournalSource {
            open: Arc::new(open),
            on_failure: None,
        }
    }

    /// Opens the journal to serve its store at this address, which is announced to clients and standbys. Blocks until
    /// etcd has answered, for at most 30 s. `cancel` interrupts this call, and every later call of the journal.
    ///
    /// # Errors
    /// [`JournalError`]: etcd cannot be reached, has no JSON gateway or refuses, or the keys below the prefix are not
    /// a journal.
    pub fn open(
        options: &EtcdOptions,
        address: &HostPort,
        cancel: &Cancel,
    ) -> Result<Self, JournalError> {
        let mut gateway = Gateway::new(Arc::clone(&options.site), cancel.clone());
        let layout = &options.layout;
        let deadline = Deadline::after(Instant::now(), OPEN_TIMEOUT);
        let found = read_leader(&mut gateway, layout, deadline);
        if cancel.is_cancelled() {
            let place = layout.place();
            return Err(JournalError::Cancelled { place });
        }
        let found = found.map_err(|reason| JournalError::Engine {
            operation: "open",
            place: layout.place(),
            source: reason.into(),
        })?;
        // This check precedes the registration, so that no leader waits for a process that cannot read the journal.
        if let (_, Some(head)) = found {
            layout.parse_head(&head)?;
        }
        let position = Arc::new(AtomicU64::new(0));
        let life_line = LifeLine::start(address, options.life_port, Arc::clone(&position));
        let life_line = life_line.map_err(|error| {
            log::info!(
                "standbys will notice an exit of this process only when its lease expires: {error}"
            );
        });
        let life_line = life_line.ok();
        let me = Leader {
            address: address.to_string(),
            process: std::process::id().into(),
            host: host_name(),
            since: seconds_since_1970(),
            writer: fastrand::u64(..),
            life: life_line.as_ref().map(LifeLine::life),
        };
        let listed = Registered {
            leader: me.clone(),
            position: 0,
            formats: layout.formats,
        };
        let registration = Registration::start(listed, &gateway, layout, Arc::clone(&position))
            .map_err(|error| log::warn!("this candidate is not listed: {error}"))
            .ok();
        Ok(Self {
            options: options.clone(),
            me,
            gateway,
            cancel: cancel.clone(),
            lease: None,
            writer: None,
            has_failed: false,
            position,
            life_line,
            registration,
            #[cfg(test)]
            defect: Defect::new(Mutant::None),
        })
    }

    /// The lease of this leader.
    #[cfg(test)]
    pub(super) fn lease_id(&self) -> Option<u64> {
        self.lease.as_ref().map(Lease::id)
    }

    /// Reports the loss in etcd to other candidates, once: otherwise they detect it themselves.
    fn tell_lost(&mut self, what: &str) {
        let deadline = Deadline::after(Instant::now(), MARK_TIMEOUT);
        if let Err(error) = self.gateway.call(&mark(self.layout(), what), deadline) {
            log::warn!("cannot report a loss in etcd to the other servers: {error}");
        }
    }

    fn layout(&self) -> &Layout {
        &self.options.layout
    }

    /// Calls for some seconds. An unknown outcome is for the caller to repeat.
    fn call(
        &mut self,
        operation: &'static str,
        request: &Request,
    ) -> Result<Result<Answer, Failure>, JournalError> {
        let deadline = Deadline::after(Instant::now(), CALL_TIMEOUT);
        let place = self.layout().place();
        #[cfg(test)]
        let (sent, request) = (
            request,
            &self.defect.mutant.weakened(request, self.layout()),
        );
        #[cfg(test)]
        if let Some(answer) = self.defect.answer(sent, self.layout()) {
            return Ok(Ok(answer));
        }
        Ok(match self.gateway.call(request, deadline) {
            Ok(answer) => {
                #[cfg(test)]
                self.defect.answered(sent, &answer);
                Ok(answer)
            }
            Err(CallError::Refused { code, message, .. }) => {
                Err(Failure::Refused { code, message })
            }
            Err(CallError::Unknown(error)) => {
                log::warn!("cannot {operation} the journal {place} yet: {error}");
                Err(Failure::Unknown(error))
            }
            Err(CallError::Cancelled) => return Err(JournalError::Cancelled { place }),
            Err(CallError::Setup(what)) => {
                return Err(JournalError::Engine {
                    operation,
                    place,
                    source: what.into(),
                });
            }
        })
    }

    /// Follows the log until something else is to be done: watches it, or waits for the time to read it.
    fn follow(
        &mut self,
        candidate: &mut Candidate,
        from_revision: u64,
        watching: &mut Watching,
        visit: &mut dyn FnMut(Recovered<'_>) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let (key, end) = self.layout().watched();
        let gateway = self.gateway.another(self.cancel.clone());
        let mut pieces = Vec::new();
        if self.await_heartbeat(candidate, watching) {
            candidate.look();
            return Ok(());
        }
        let follow = || -> Result<Result<(), CallError>, JournalError> {
            let mut stream = match gateway.watch(&key, &end, from_revision) {
                Ok(stream) => stream,
                Err(error) => return Ok(Err(error)),
            };
            while let Next::Watch { .. } = candidate.next() {
                match self.next_message(&mut stream, candidate, watching) {
                    Ok(Some(message)) => {
                        candidate.watched(message, &mut pieces)?;
                        pass_on(&mut pieces, visit)?;
                        self.position.store(candidate.position(), Ordering::Relaxed);
                    }
                    Ok(None) => candidate.look(),
                    Err(error) => return Ok(Err(error)),
                }
            }
            Ok(Ok(()))
        };
        match follow()? {
            Ok(()) => return Ok(()),
            Err(CallError::Setup(what)) => {
                return Err(JournalError::Engine {
                    operation: "follow",
                    place: self.layout().place(),
                    source: what.into(),
                });
            }
            Err(error) => log::debug!("the watch of {} has ended: {error}", self.layout().place()),
        }
        // Another member may know more.
        candidate.look();
        self.gateway.next_member();
        sleep(WATCH_PAUSE, [&self.cancel]).map_err(|_| JournalError::Cancelled {
            place: self.layout().place(),
        })
    }

    /// While the log grows fast, waits until a heartbeat announces batches that this process lacks, or the leader's
    /// process has ended. `false`: the log is to be watched. etcd makes a message for each batch of those that watch.
    fn await_heartbeat(&self, candidate: &mut Candidate, watching: &mut Watching) -> bool {
        self.watch_over(candidate.leader(), watching);
        if let Watching::Process(vigil) = watching {
            // It has read all positions that earlier heartbeats have announced.
            vigil.lacks(candidate.position());
        }
        while let Watching::Process(vigil) = watching
            && let Some(until) = vigil.is_fast_until()
        {
            let seen = vigil.look(&self.cancel);
            if seen != Seen::Nothing {
                self.leave_vigil(seen, candidate, watching);
                return true;
            }
            if vigil.lacks(candidate.position()) {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            let waited = wait_for_input(vigil, left, &self.cancel);
            if !waited.is_ok_and(|is_heard| is_heard) {
                return false;
            }
        }
        false
    }

    /// The process that leads has ended, or its end can be seen no more.
    fn leave_vigil(&self, seen: Seen, candidate: &mut Candidate, watching: &mut Watching) {
        let Watching::Process(vigil) = watching else {
            return;
        };
        let id = vigil.id();
        *watching = Watching::NotNow(Retry::after_vigil(id, Instant::now()));
        if seen == Seen::Death {
            log::warn!("{}: the leader has exited", self.place());
            candidate.has_died(id);
        }
    }

    /// The next message of the watch. `None` after a long silence of it or of the leader, when the leader's process has
    /// ended, or when the log grows fast.
    fn next_message(
        &self,
        stream: &mut WatchStream,
        candidate: &mut Candidate,
        watching: &mut Watching,
    ) -> Result<Option<Watched>, CallError> {
        self.watch_over(candidate.leader(), watching);
        let mut silence = Deadline::after(Instant::now(), WATCH_SILENCE_MAX);
        if let Watching::NotNow(retry) = watching {
            silence = silence.min(Deadline::at(retry.at));
        }
        while let Watching::Process(vigil) = watching {
            let next = stream.next(Deadline::at(Instant::now()))?;
            if next.is_some() {
                return Ok(next);
            }
            let seen = vigil.look(&self.cancel);
            if seen == Seen::Nothing {
                let now = Instant::now();
                if vigil.is_fast_until().is_some_and(|by| now < by) {
                    return Ok(None);
                }
                // While the leader sends heartbeats, it leads.
                let doubts = vigil.doubts_at(candidate.position()).map(Deadline::at);
                let until = doubts.unwrap_or(silence);
                if until.has_passed(now) {
                    log::info!("{}: the leader or etcd is silent", self.place());
                    vigil.begin_anew(now);
                    return Ok(None);
                }
                stream.wait_beside(vigil.as_fd(), until)?;
            } else {
                self.leave_vigil(seen, candidate, watching);
                return Ok(None);
            }
        }
        stream.next(silence)
    }

    /// Watches over the process that leads now.
    fn watch_over(&self, leader: Option<&Leader>, watching: &mut Watching) {
        let Some((leader, life)) = leader.and_then(|leader| Some((leader, leader.life?))) else {
            *watching = Watching::Nobody;
            return;
        };
        let before = match watching {
            Watching::Process(vigil) if vigil.id() == life.id => return,
            Watching::NotNow(retry) if retry.holds_back(life.id, Instant::now()) => return,
            Watching::NotNow(retry) => Some(*retry),
            Watching::Nobody | Watching::Process(_) => None,
        };
        *watching = match Vigil::begin(leader, life, &self.cancel) {
            Ok(vigil) => {
                log::info!("an exit of {leader}, will be noticed at once");
                Watching::Process(vigil)
            }
            Err(what) => {
                let retry = Retry::after_failure(before, life.id, Instant::now());
                let level = match retry.is_news() {
                    true => log::Level::Info,
                    false => log::Level::Debug,
                };
                log::log!(
                    level,
                    "an exit of {leader}, will be noticed only when its lease expires: {what}"
                );
                Watching::NotNow(retry)
            }
        };
    }

    /// Follows until this process leads.
    fn recover_as(
        &mut self,
        candidate: &mut Candidate,
        visit: &mut dyn FnMut(Recovered<'_>) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        let mut pieces = Vec::new();
        let mut shown = None;
        let mut watching = Watching::Nobody;
        let mut has_followed = None;
        loop {
            let request = match candidate.next() {
                Next::Lead => break,
                Next::Watch { from_revision } => {
                    if let Some(leader) = candidate.leader()
                        && shown.as_ref() != Some(leader)
                    {
                        log::info!("{}: {leader} leads; this process follows", self.place());
                        shown = Some(leader.clone());
                    }
                    self.follow(candidate, from_revision, &mut watching, visit)?;
                    has_followed = Some(Instant::now());
                    continue;
                }
                Next::Call(request) => request,
            };
            // The revocation is the end of the lease, which must not be renewed in the meantime.
            if let Request::Revoke { .. } = request {
                self.lease = None;
            }
            let asked = Moment::now();
            let answer = self.call("read", &request)?;
            if let (Request::Grant { .. }, Ok(Answer::Lease { id, ttl_seconds })) =
                (&request, &answer)
            {
                candidate.campaigns_since(seconds_since_1970());
                self.lease = None;
                let lease = Lease::keep(*id, *ttl_seconds, asked, &self.gateway, &self.options);
                let lease = lease.map_err(|error| JournalError::Engine {
                    operation: "open",
                    place: self.place(),
                    source: Box::new(error),
                })?;
                if let Some(life_line) = &self.life_line {
                    life_line.leads(lease.authority().clone());
                }
                self.lease = Some(lease);
            }
            let tried = has_followed.map_or(Duration::ZERO, |end: Instant| end.elapsed());
            candidate.has_tried_for(tried.as_millis() as u64);
            candidate.answered(answer, &mut pieces)?;
            pass_on(&mut pieces, visit)?;
            self.position.store(candidate.position(), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Carries out what the writer has to do.
    fn write(
        &mut self,
        operation: &'static str,
        begin: impl FnOnce(&mut Writer),
    ) -> Result<(), JournalError> {
        let failed = |place: String, what: &'static str| JournalError::Engine {
            operation,
            place,
            source: what.into(),
        };
        if self.has_failed {
            return Err(failed(self.place(), "it has failed before"));
        }
        let Some(mut writer) = self.writer.take() else {
            return Err(failed(self.place(), "it is not recovered"));
        };
        // Until it has succeeded.
        self.has_failed = true;
        begin(&mut writer);
        while let Some(request) = writer.next() {
            let answer = self.call(operation, request)?;
            let is_unknown = matches!(answer, Err(Failure::Unknown(_)));
            if is_unknown && self.lease.as_ref().is_some_and(Lease::is_lost) {
                return Err(Stopped::Deposed(None).into_error(self.layout(), operation));
            }
            match writer.answered(answer) {
                Ok(()) => {}
                Err(Stopped::Overwritten) => {
                    let what = writer.known().lost(self.layout(), OVERWRITTEN);
                    self.tell_lost(&what);
                    return Err(self.layout().damaged(what));
                }
                Err(stopped) => return Err(stopped.into_error(self.layout(), operation)),
            }
        }
        self.options.memory.keep(Some(&writer.known()));
        self.position
            .store(writer.head().position, Ordering::Relaxed);
        self.writer = Some(writer);
        self.has_failed = false;
        Ok(())
    }
}

fn seconds_since_1970() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn pass_on(
    pieces: &mut Vec<Piece>,
    visit: &mut dyn FnMut(Recovered<'_>) -> Result<(), JournalError>,
) -> Result<(), JournalError> {
    for piece in pieces.drain(..) {
        visit(match &piece {
            Piece::Restart => Recovered::Restart,
            Piece::Chunk { position, bytes } => Recovered::Chunk {
                position: *position,
                bytes,
            },
            Piece::Batch { position, bytes } => Recovered::Batch {
                position: *position,
                bytes,
            },
        })?;
    }
    Ok(())
}

impl Drop for EtcdJournal {
    fn drop(&mut self) {
        // Revoked in parallel with the leader's lease, because etcd may not answer either request.
        if let Some(registration) = &self.registration {
            registration.end();
        }
    }
}

impl std::fmt::Debug for EtcdJournal {
    /// Shows everything except the requests of the writer.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdJournal")
            .field("place", &self.place())
            .field("leads", &self.writer.is_some())
            .finish_non_exhaustive()
    }
}

impl Journal for EtcdJournal {
    fn identity(&self) -> JournalIdentity {
        let head = self.writer.as_ref().map(Writer::head);
        JournalIdentity {
            store: head.map_or([0; 16], |head| head.store),
            epoch: head.map_or(0, |head| head.epoch),
        }
    }

    fn place(&self) -> String {
        self.options.to_string()
    }

    fn authority(&self) -> Option<Authority> {
        self.lease.as_ref().map(|lease| lease.authority().clone())
    }

    fn recover(
        &mut self,
        visit: &mut dyn FnMut(Recovered<'_>) -> Result<(), JournalError>,
    ) -> Result<u64, JournalError> {
        let mut store = [0; 16];
        fastrand::fill(&mut store);
        let mut candidate = Candidate::new(
            self.layout().clone(),
            self.me.clone(),
            self.options.ttl.as_secs().max(1),
            store,
            self.options.memory.get(),
        );
        let recovered = self.recover_as(&mut candidate, visit);
        self.options.memory.keep(candidate.known());
        if let Some(what) = candidate.lost() {
            self.tell_lost(what);
        }
        recovered?;
        let writer = candidate.into_writer().expect("it leads");
        let head = writer.head();
        let (epoch, position) = (head.epoch, head.position);
        if let Some(lease) = &self.lease {
            lease.leads(head.writer);
        }
        log::info!(
            "{}: this process leads in epoch {epoch}, from batch {position} on",
            self.place()
        );
        self.options.memory.keep(Some(&writer.known()));
        self.writer = Some(writer);
        if position == 0 {
            self.agree_on_format()?;
        }
        Ok(position)
    }

    fn formats(&self) -> Formats {
        self.layout().formats
    }

    fn format(&self) -> u8 {
        let head = self.writer.as_ref().map(Writer::head);
        head.map_or(self.formats().oldest, |head| head.format)
    }

    fn agree_on_format(&mut self) -> Result<u8, JournalError> {
        let operation = "agree on the format of";
        loop {
            let before = self.format();
            let listed = Request::Range(candidates_range(self.layout()));
            let answer = match self.call(operation, &listed)? {
                Ok(answer) => answer,
                Err(Failure::Unknown(_)) if !self.lease.as_ref().is_some_and(Lease::is_lost) => {
                    continue;
                }
                Err(Failure::Unknown(_)) => {
                    return Err(Stopped::Deposed(None).into_error(self.layout(), operation));
                }
                Err(Failure::Refused { code, message }) => {
                    let refused = Stopped::Refused { code, message };
                    return Err(refused.into_error(self.layout(), operation));
                }
            };
            let Answer::Range { revision, keys } = answer else {
                return Err(Stopped::Broken.into_error(self.layout(), operation));
            };
            let formats = keys.keys.iter().map(|it| {
                Registered::parse(&it.value).map_or(Formats::UNSAID, |candidate| candidate.formats)
            });
            let unseen = keys.is_cut.then_some(Formats::UNSAID);
            let agreed = self.formats().agree(before, formats.chain(unseen));
            if agreed == before {
                return Ok(before);
            }
            self.write(operation, |writer| writer.raise_format(agreed, revision))?;
            if self.format() == agreed {
                log::info!(
                    "{}: all servers can read format {agreed}; switching to it",
                    self.place()
                );
                return Ok(agreed);
            }
            // Another candidate was listed in the meantime.
        }
    }

    fn append(&mut self, position: u64, batch: &[u8]) -> Result<(), JournalError> {
        self.write("append to", |writer| writer.append(position, batch))
    }

    fn begin_snapshot(&mut self, position: u64) -> Result<(), JournalError> {
        self.write("write a snapshot into", |writer| {
            writer.begin_snapshot(position);
        })
    }

    fn add_to_snapshot(&mut self, chunk: &[u8]) -> Result<(), JournalError> {
        self.write("write a snapshot into", |writer| {
            writer.add_to_snapshot(chunk);
        })
    }

    fn finish_snapshot(&mut self) -> Result<(), JournalError> {
        self.write("write a snapshot into", Writer::finish_snapshot)
    }
}
