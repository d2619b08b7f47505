//! An engine in the keys of another store, for a server that any of several processes may run, one at a time.
//!
//! A log of slots: keys `1`, `2`, ... that COMPARE_SET writes once and nobody deletes. To open the log is to write the slot after
//! its last one. The owner before wants this slot for its next append, so that append fails, and with it that owner's server.
//! So what an owner has confirmed is in the log before the opening of the next one, and is read by it.

use std::fmt::Write as _;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use c10d_store::journal::{Journal, JournalError, JournalIdentity, Recovered};
use c10d_store::{Store, StoreError};

/// Keeps a store in the keys of another one, such as PyTorch's, which needs no extension.
///
/// Its keys are not deleted: an owner that was stopped for an hour must find its slot taken. So it suits a store that
/// changes little, as one that only has process groups. Every call blocks for at most the other store's timeout.
pub struct StoreJournal {
    store: Arc<dyn Store>,
    prefix: String,
    /// Tells this owner's slots from those of others.
    owner: String,
    identity: JournalIdentity,
    /// How many slots are written.
    slots: u64,
    /// What [`open`](Self::open) has read, until it is recovered.
    read: Vec<Slot>,
    snapshot: Option<(u64, Vec<Vec<u8>>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Opening,
    Batch,
    Snapshot,
}

/// A line of text, `KIND EPOCH OWNER POSITION LENGTHS`, and the bytes of the batch or of the snapshot's chunks.
#[derive(Debug)]
struct Slot {
    kind: Kind,
    epoch: u64,
    owner: String,
    position: u64,
    chunks: Vec<Vec<u8>>,
}

impl StoreJournal {
    /// Opens the log of these keys as the next owner after this epoch, which is 0 before the first. From then on the owner
    /// before can append nothing.
    ///
    /// # Errors
    /// [`JournalError::InUse`] if another process has opened it since that epoch, [`JournalError::Engine`] if the store
    /// fails, [`JournalError::Damaged`] if a slot is not as it was written.
    pub fn open(store: Arc<dyn Store>, prefix: &str, after: u64) -> Result<Self, JournalError> {
        let mut journal = Self::unread(store, prefix, after + 1);
        loop {
            while let Some(slot) = journal.next_slot()? {
                journal.read.push(slot);
            }
            let newest = journal.read.last();
            if let Some(newest) = newest.filter(|slot| slot.epoch != after) {
                return Err(journal.in_use(&newest.owner));
            }
            let first = journal.read.first();
            let first = first.map_or(&journal.owner, |slot| &slot.owner);
            journal.identity.store = first.as_bytes().try_into().unwrap_or([0; 16]);
            // Else the owner before has written another batch.
            if journal.put("open", Kind::Opening, 0, &[])?.is_none() {
                return Ok(journal);
            }
        }
    }

    /// The epoch of the last owner; 0 if there was none.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn epoch(store: Arc<dyn Store>, prefix: &str) -> Result<u64, JournalError> {
        let mut journal = Self::unread(store, prefix, 0);
        let mut epoch = 0;
        while let Some(slot) = journal.next_slot()? {
            epoch = slot.epoch;
        }
        Ok(epoch)
    }

    fn unread(store: Arc<dyn Store>, prefix: &str, epoch: u64) -> Self {
        Self {
            store,
            prefix: prefix.to_owned(),
            owner: format!("{:016x}", RandomState::new().hash_one(0_u64)),
            identity: JournalIdentity {
                store: [0; 16],
                epoch,
            },
            slots: 0,
            read: Vec::new(),
            snapshot: None,
        }
    }

    /// Reads the slot after those that are known.
    fn next_slot(&mut self) -> Result<Option<Slot>, JournalError> {
        let key = self.key(self.slots + 1);
        let value = self.store.try_get(&key);
        let value = value.map_err(|error| self.failed("read", error))?;
        let slot = value.map(|value| self.parse(&value)).transpose()?;
        self.slots += u64::from(slot.is_some());
        Ok(slot)
    }

    /// Writes the next slot, unless another owner has. Returns what that has written.
    fn put(
        &mut self,
        operation: &'static str,
        kind: Kind,
        position: u64,
        chunks: &[&[u8]],
    ) -> Result<Option<Slot>, JournalError> {
        let slot = Slot {
            kind,
            epoch: self.identity.epoch,
            owner: self.owner.clone(),
            position,
            chunks: chunks.iter().map(|chunk| chunk.to_vec()).collect(),
        };
        let value = slot.encode();
        let key = self.key(self.slots + 1);
        let now = self.store.compare_set_bytes(&key, b"", &value);
        let now = now.map_err(|error| self.failed(operation, error))?;
        if now.value() != value {
            return Ok(Some(self.parse(now.value())?));
        }
        self.slots += 1;
        Ok(None)
    }

    /// Writes the next slot, which only an owner after this one can have taken.
    fn put_ours(
        &mut self,
        operation: &'static str,
        kind: Kind,
        position: u64,
        chunks: &[&[u8]],
    ) -> Result<(), JournalError> {
        match self.put(operation, kind, position, chunks)? {
            None => Ok(()),
            Some(slot) => Err(self.in_use(&slot.owner)),
        }
    }

    fn parse(&self, value: &[u8]) -> Result<Slot, JournalError> {
        Slot::parse(value).ok_or_else(|| JournalError::Damaged {
            place: self.place(),
            what: format!("slot {} cannot be read", self.slots + 1),
        })
    }

    fn key(&self, slot: u64) -> String {
        format!("{}{slot}", self.prefix)
    }

    fn in_use(&self, owner: &str) -> JournalError {
        JournalError::InUse {
            place: self.place(),
            owner: Some(format!("its owner {owner}")),
        }
    }

    fn failed(&self, operation: &'static str, error: StoreError) -> JournalError {
        JournalError::Engine {
            operation,
            place: self.place(),
            source: Box::new(error),
        }
    }
}

impl std::fmt::Debug for StoreJournal {
    /// Without what it has read.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreJournal")
            .field("place", &self.place())
            .field("owner", &self.owner)
            .field("slots", &self.slots)
            .finish_non_exhaustive()
    }
}

impl Journal for StoreJournal {
    fn identity(&self) -> JournalIdentity {
        self.identity
    }

    fn place(&self) -> String {
        format!("in the keys {}N of {}", self.prefix, self.store.label())
    }

    fn recover(
        &mut self,
        visit: &mut dyn FnMut(Recovered<'_>) -> Result<(), JournalError>,
    ) -> Result<u64, JournalError> {
        let slots = std::mem::take(&mut self.read);
        let is_snapshot = |slot: &Slot| slot.kind == Kind::Snapshot;
        let mut last = 0;
        if let Some(snapshot) = slots.iter().rfind(|slot| is_snapshot(slot)) {
            let position = snapshot.position;
            last = position;
            for bytes in &snapshot.chunks {
                visit(Recovered::Chunk { position, bytes })?;
            }
        }
        let batches = slots.iter().filter(|slot| slot.kind == Kind::Batch);
        for slot in batches
            .filter(|slot| slot.position > last)
            .collect::<Vec<_>>()
        {
            let position = slot.position;
            for bytes in &slot.chunks {
                visit(Recovered::Batch { position, bytes })?;
            }
            last = position;
        }
        Ok(last)
    }

    fn append(&mut self, position: u64, batch: &[u8]) -> Result<(), JournalError> {
        self.put_ours("append to", Kind::Batch, position, &[batch])
    }

    fn begin_snapshot(&mut self, position: u64) -> Result<(), JournalError> {
        self.snapshot = Some((position, Vec::new()));
        Ok(())
    }

    fn add_to_snapshot(&mut self, chunk: &[u8]) -> Result<(), JournalError> {
        if let Some((_, chunks)) = &mut self.snapshot {
            chunks.push(chunk.to_vec());
        }
        Ok(())
    }

    fn finish_snapshot(&mut self) -> Result<(), JournalError> {
        let Some((position, chunks)) = self.snapshot.take() else {
            return Ok(());
        };
        let chunks: Vec<_> = chunks.iter().map(Vec::as_slice).collect();
        self.put_ours("write a snapshot into", Kind::Snapshot, position, &chunks)
    }
}

impl Slot {
    fn encode(&self) -> Vec<u8> {
        let kind = match self.kind {
            Kind::Opening => "opening",
            Kind::Batch => "batch",
            Kind::Snapshot => "snapshot",
        };
        let mut line = format!("{kind} {} {} {}", self.epoch, self.owner, self.position);
        for chunk in &self.chunks {
            // A string takes all.
            let _ = write!(line, " {}", chunk.len());
        }
        line.push('\n');
        let mut value = line.into_bytes();
        self.chunks.iter().for_each(|chunk| value.extend(chunk));
        value
    }

    fn parse(value: &[u8]) -> Option<Self> {
        let end = value.iter().position(|byte| *byte == b'\n')?;
        let mut words = std::str::from_utf8(&value[..end]).ok()?.split(' ');
        let kind = match words.next()? {
            "opening" => Kind::Opening,
            "batch" => Kind::Batch,
            "snapshot" => Kind::Snapshot,
            _ => return None,
        };
        let epoch = words.next()?.parse().ok()?;
        let owner = words.next()?.to_owned();
        let position = words.next()?.parse().ok()?;
        let mut rest = &value[end + 1..];
        let mut chunks = Vec::new();
        for length in words {
            let (chunk, after) = rest.split_at_checked(length.parse().ok()?)?;
            chunks.push(chunk.to_vec());
            rest = after;
        }
        rest.is_empty().then_some(Self {
            kind,
            epoch,
            owner,
            position,
            chunks,
        })
    }
}
