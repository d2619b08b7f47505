//! An engine in memory that a test can stop, break and read. Tests of the relay include this file, and use a part of it.

#![allow(dead_code, reason = "see above")]

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use c10d_store::journal::{Journal, JournalError, JournalIdentity, Recovered};
use c10d_store::unstable::{Contents, effects};
use c10d_store::{ServerOptions, TcpStoreServer};

const LONG: Duration = Duration::from_secs(30);

/// What a journal has kept.
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

    /// What a crash at this moment leaves.
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

    /// What it says is in the store.
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

    fn append(&mut self, position: u64, batch: &[u8]) -> Result<(), JournalError> {
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
        let last = kept.batches.last().map(|(last, _)| *last);
        let last = last.or(kept.snapshot.as_ref().map(|(last, _)| *last));
        assert_eq!(position, last.unwrap_or(0) + 1, "without a gap");
        kept.batches.push((position, batch.to_vec()));
        Ok(())
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
