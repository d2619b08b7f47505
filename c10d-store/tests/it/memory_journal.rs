//! An engine in memory that a test can stop, break and read. Tests of the relay include this file, and use a part of it.

#![allow(dead_code, reason = "see above")]

use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use c10d_socket::{Cancel, Moment};
use c10d_store::journal::{
    Authority, Formats, Journal, JournalError, JournalIdentity, JournalSource, Recovered,
};
use c10d_store::unstable::{Contents, effects};
use c10d_store::{ServerOptions, TcpStoreServer};

const LONG: Duration = Duration::from_secs(30);

/// The content of a journal.
#[derive(Debug, Default, Clone)]
pub(crate) struct Kept {
    pub(crate) snapshot: Option<(u64, Vec<Vec<u8>>)>,
    pub(crate) batches: Vec<(u64, Vec<u8>)>,
    /// The snapshot in progress.
    unfinished: Option<(u64, Vec<Vec<u8>>)>,
    is_blocked: bool,
    pub(crate) fails: bool,
    /// The batch that waits until the engine is not blocked.
    appending: u64,
    opened: u64,
    /// The candidate that leads.
    leader: Option<u64>,
    /// The candidate that is to lead once there is no leader.
    next_leader: Option<u64>,
    /// The versions that it reads; `None` for the versions of this program. The next version is for tests only.
    pub(crate) formats: Option<Formats>,
    /// Its version, if it has versions, and the version that the other processes read.
    pub(crate) format: u8,
    pub(crate) others_read: u8,
}

/// An engine in memory. Clones share what is kept.
#[derive(Debug, Default, Clone)]
pub(crate) struct Memory {
    kept: Arc<Mutex<Kept>>,
    changed: Arc<Condvar>,
}

impl Memory {
    pub(crate) fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("no test panics with it")
    }

    pub(crate) fn set_blocked(&self, is_blocked: bool) {
        self.kept().is_blocked = is_blocked;
        self.changed.notify_all();
    }

    /// Waits until a batch is being appended, which cannot be durable as the engine is blocked.
    #[track_caller]
    pub(crate) fn wait_until_appending(&self) {
        let waited = self
            .changed
            .wait_timeout_while(self.kept(), LONG, |kept| kept.appending == 0);
        let (kept, _) = waited.expect("no test panics with it");
        assert!(kept.appending > 0, "no batch");
    }

    /// The state after a crash at this moment.
    pub(crate) fn crashed(&self) -> Self {
        let mut kept = self.kept().clone();
        kept.unfinished = None;
        kept.is_blocked = false;
        kept.fails = false;
        kept.appending = 0;
        let kept = Arc::new(Mutex::new(kept));
        Self {
            kept,
            changed: Arc::default(),
        }
    }

    /// The content of the store, according to the journal.
    pub(crate) fn contents(&self) -> Contents {
        let mut contents = Contents::default();
        let kept = self.kept();
        let snapshot = kept.snapshot.iter().flat_map(|(position, chunks)| {
            let chunks = chunks.iter();
            chunks.map(|chunk| (*position, chunk))
        });
        let batches = kept.batches.iter();
        for (position, bytes) in snapshot.chain(batches.map(|(position, batch)| (*position, batch)))
        {
            for effect in effects(position, bytes).expect("intact") {
                assert!(contents.apply(effect.expect("intact")));
            }
        }
        contents
    }

    /// Whether there is a complete snapshot.
    pub(crate) fn has_snapshot(&self) -> bool {
        self.kept().snapshot.is_some()
    }

    pub(crate) fn serve(&self) -> TcpStoreServer {
        self.serve_with(ServerOptions::default())
    }

    pub(crate) fn serve_with(&self, options: ServerOptions) -> TcpStoreServer {
        let options = options.with_journal(self.clone());
        TcpStoreServer::bind("127.0.0.1:0", options).expect("a server")
    }

    /// An engine of one of several processes, which leads once it is [told](Self::lead) to.
    pub(crate) fn candidate(&self, number: u64) -> Candidate {
        Candidate {
            log: self.clone(),
            number,
            epoch: 0,
            authority: Authority::none(),
        }
    }

    /// This candidate leads from now on, and no other one can append.
    pub(crate) fn lead(&self, number: u64) {
        let mut kept = self.kept();
        kept.leader = None;
        kept.next_leader = Some(number);
        self.changed.notify_all();
    }

    /// How often it was opened to lead.
    pub(crate) fn epoch(&self) -> u64 {
        self.kept().opened
    }

    /// Waits until that candidate leads.
    #[track_caller]
    pub(crate) fn wait_until_led_by(&self, number: u64) {
        let waited = self
            .changed
            .wait_timeout_while(self.kept(), LONG, |kept| kept.leader != Some(number));
        let (kept, _) = waited.expect("no test panics with it");
        assert_eq!(kept.leader, Some(number));
    }

    fn append_if(
        &self,
        position: u64,
        batch: &[u8],
        is_allowed: impl Fn(&Kept) -> bool,
    ) -> Result<(), JournalError> {
        let mut kept = self.kept();
        kept.appending = position;
        self.changed.notify_all();
        while kept.is_blocked {
            kept = self.changed.wait(kept).expect("no test panics with it");
        }
        kept.appending = 0;
        if kept.fails {
            drop(kept);
            return Err(self.failed());
        }
        if !is_allowed(&kept) {
            drop(kept);
            return Err(JournalError::Deposed {
                place: self.place(),
                reason: "another candidate leads".to_owned(),
            });
        }
        let last = kept.batches.last().map(|(last, _)| *last);
        let last = last.or(kept.snapshot.as_ref().map(|(last, _)| *last));
        assert_eq!(position, last.unwrap_or(0) + 1, "without a gap");
        kept.batches.push((position, batch.to_vec()));
        Ok(())
    }

    fn failed(&self) -> JournalError {
        JournalError::Engine {
            operation: "append to",
            place: self.place(),
            source: Box::new(io::Error::other("the disk is gone")),
        }
    }
}

impl Journal for Memory {
    fn identity(&self) -> JournalIdentity {
        JournalIdentity {
            store: [7; 16],
            epoch: self.kept().opened,
        }
    }

    fn place(&self) -> String {
        "of a test".to_owned()
    }

    fn recover(
        &mut self,
        visit: &mut dyn FnMut(Recovered<'_>) -> Result<(), JournalError>,
    ) -> Result<u64, JournalError> {
        self.kept().opened += 1;
        let kept = self.kept().clone();
        let mut last = 0;
        if let Some((position, chunks)) = &kept.snapshot {
            last = *position;
            for bytes in chunks {
                let position = *position;
                visit(Recovered::Chunk { position, bytes })?;
            }
        }
        for (position, bytes) in &kept.batches {
            last = *position;
            let position = *position;
            visit(Recovered::Batch { position, bytes })?;
        }
        Ok(last)
    }

    fn formats(&self) -> Formats {
        self.kept().formats.unwrap_or(Formats::OWN)
    }

    fn format(&self) -> u8 {
        let kept = self.kept();
        kept.formats.map_or(Formats::OWN.newest, |_| kept.format)
    }

    fn agree_on_format(&mut self) -> Result<u8, JournalError> {
        let mut kept = self.kept();
        kept.format = kept.others_read;
        Ok(kept.format)
    }

    fn append(&mut self, position: u64, batch: &[u8]) -> Result<(), JournalError> {
        self.append_if(position, batch, |_| true)
    }

    fn begin_snapshot(&mut self, position: u64) -> Result<(), JournalError> {
        self.kept().unfinished = Some((position, Vec::new()));
        Ok(())
    }

    fn add_to_snapshot(&mut self, chunk: &[u8]) -> Result<(), JournalError> {
        let mut kept = self.kept();
        let (_, chunks) = kept.unfinished.as_mut().expect("it has begun");
        chunks.push(chunk.to_vec());
        Ok(())
    }

    fn finish_snapshot(&mut self) -> Result<(), JournalError> {
        let mut kept = self.kept();
        let snapshot = kept.unfinished.take().expect("it has begun");
        kept.batches.retain(|(position, _)| *position > snapshot.0);
        kept.snapshot = Some(snapshot);
        Ok(())
    }
}

/// An engine whose log several processes follow; one of them leads.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    log: Memory,
    number: u64,
    epoch: u64,
    pub(crate) authority: Authority,
}

impl Candidate {
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn source(&self) -> JournalSource {
        let candidate = self.clone();
        let open = move |cancel: &Cancel| {
            let (candidate, cancel) = (candidate.clone(), cancel.clone());
            Ok(Box::new(Opened { candidate, cancel }) as Box<dyn Journal>)
        };
        JournalSource {
            open: Arc::new(open),
            on_failure: None,
        }
    }

    /// A standby server, at a separate port.
    pub(crate) fn stand_by(&self, options: ServerOptions) -> TcpStoreServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let options = options.with_journal(self.source());
        TcpStoreServer::stand_by(vec![listener], options).expect("a server")
    }

    /// Extends the authority for this time, if this candidate leads.
    pub(crate) fn renew(&self, lease: Duration) {
        let asked = Moment::now();
        if self.log.kept().leader == Some(self.number) {
            self.authority.extend(asked + lease);
        }
    }
}

/// The engine that a candidate opens for its server.
#[derive(Debug)]
struct Opened {
    candidate: Candidate,
    cancel: Cancel,
}

impl Journal for Opened {
    fn identity(&self) -> JournalIdentity {
        JournalIdentity {
            store: [7; 16],
            epoch: self.candidate.epoch,
        }
    }

    fn place(&self) -> String {
        format!("of candidate {}", self.candidate.number)
    }

    fn authority(&self) -> Option<Authority> {
        Some(self.candidate.authority.clone())
    }

    fn recover(
        &mut self,
        visit: &mut dyn FnMut(Recovered<'_>) -> Result<(), JournalError>,
    ) -> Result<u64, JournalError> {
        let number = self.candidate.number;
        let log = self.candidate.log.clone();
        let mut last = 0;
        loop {
            let mut kept = log.kept();
            if kept.leader.is_none() && kept.next_leader == Some(number) {
                kept.leader = Some(number);
                kept.opened += 1;
                self.candidate.epoch = kept.opened;
                log.changed.notify_all();
            }
            let is_leader = kept.leader == Some(number);
            let snapshot = kept
                .snapshot
                .clone()
                .filter(|(position, _)| *position > last);
            let after = snapshot.as_ref().map_or(last, |(position, _)| *position);
            let batches = kept
                .batches
                .iter()
                .filter(|(position, _)| *position > after);
            let batches: Vec<_> = batches.cloned().collect();
            if !is_leader && snapshot.is_none() && batches.is_empty() {
                // The timeout is for the cancel.
                let waited = log.changed.wait_timeout(kept, Duration::from_millis(5));
                drop(waited.expect("no test panics with it"));
                if self.cancel.is_cancelled() {
                    return Err(JournalError::Cancelled {
                        place: self.place(),
                    });
                }
                continue;
            }
            drop(kept);
            if let Some((position, chunks)) = snapshot {
                visit(Recovered::Restart)?;
                last = position;
                for bytes in &chunks {
                    visit(Recovered::Chunk { position, bytes })?;
                }
            }
            for (position, bytes) in &batches {
                last = *position;
                let position = *position;
                visit(Recovered::Batch { position, bytes })?;
            }
            if is_leader {
                return Ok(last);
            }
        }
    }

    fn append(&mut self, position: u64, batch: &[u8]) -> Result<(), JournalError> {
        if self.cancel.is_cancelled() {
            return Err(JournalError::Cancelled {
                place: self.place(),
            });
        }
        let number = self.candidate.number;
        self.candidate
            .log
            .append_if(position, batch, |kept| kept.leader == Some(number))
    }

    fn begin_snapshot(&mut self, position: u64) -> Result<(), JournalError> {
        self.candidate.log.begin_snapshot(position)
    }

    fn add_to_snapshot(&mut self, chunk: &[u8]) -> Result<(), JournalError> {
        self.candidate.log.add_to_snapshot(chunk)
    }

    fn finish_snapshot(&mut self) -> Result<(), JournalError> {
        self.candidate.log.finish_snapshot()
    }
}
