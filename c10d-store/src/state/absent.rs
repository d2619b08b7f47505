//! Stand-ins without values for the types of `extensions/`, in a store without extensions.

use std::sync::Arc;

use crate::known::Known;

/// The place of an effect in the journal.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mark(());

/// A change that a journal keeps.
pub(super) enum Effect<'a> {
    Put { key: &'a [u8], value: &'a [u8] },
    Append { key: &'a [u8], bytes: &'a [u8] },
    Delete { key: &'a [u8] },
    Push { key: &'a [u8], element: &'a [u8] },
    Pop { key: &'a [u8], count: u32 },
}

/// The recorder of a journal.
#[derive(Debug)]
pub(crate) enum Recorder {}

impl Recorder {
    pub(super) const fn look(&self, _key: &[u8], _last: Mark) {}

    pub(super) const fn record(&mut self, _last: Mark, _effect: Effect<'_>) -> Mark {
        match *self {}
    }

    pub(super) const fn removed(&mut self, _key: &[u8], _last: Mark) {}

    pub(crate) const fn dependency(&self) -> u64 {
        match *self {}
    }
}

/// The ownership of an ephemeral key.
#[derive(Debug)]
pub(super) enum Ownership {}

impl Ownership {
    pub(super) const fn will_bytes(&self) -> usize {
        match *self {}
    }
}

/// A snapshot in progress.
#[derive(Debug)]
pub(super) enum Copying {}

impl Copying {
    pub(super) const fn copy<S>(&mut self, _key: &Arc<[u8]>, _slot: &mut S, _snapshot: u32) {}
}

/// A deletion of a prefix that is under way.
#[derive(Debug)]
pub(super) enum Sweeping {}

impl Sweeping {
    pub(super) const fn slot_moves(&mut self, _name: &Arc<[u8]>, _from: usize, _to: usize) {}
}

/// The keys of a WAIT_GET.
#[derive(Debug)]
pub(super) enum WantedKeys {}

impl WantedKeys {
    pub(super) const fn bytes(&self) -> usize {
        match *self {}
    }
}

/// The known value of a WAIT_CHANGE.
#[derive(Debug)]
pub(super) enum KnownValue {}

impl KnownValue {
    pub(super) const fn as_known(&self) -> Known<'_> {
        match *self {}
    }
}
