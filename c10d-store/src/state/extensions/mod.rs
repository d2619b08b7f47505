//! Our extensions of PyTorch's store (docs/spec/wire-extensions.md): the state's part that exists only with the feature
//! `extensions`. Requests arrive in `dispatch.rs`. The rest of the state imports only the items that are listed here.
//!
//! Without the feature, `plain.rs` has stand-ins for the items and methods that the rest of the state uses.

mod activity;
mod announcements;
mod closed;
mod copies;
#[cfg(test)]
mod crash_tests;
mod delete_prefix;
mod directory;
mod dispatch;
mod end_waits;
mod ephemeral;
#[cfg(test)]
mod ephemeral_tests;
mod fields;
mod groups;
mod image;
mod missed_ends;
#[cfg(test)]
mod missed_ends_tests;
mod outcomes;
mod owners;
mod pending_wait;
mod queue_take;
mod recorder;
mod recovery;
mod served_groups;
#[cfg(test)]
mod snapshot_tests;
mod snapshots;
#[cfg(test)]
mod sweep_tests;
mod sweeps;
mod wait_change;
mod wait_get;

pub(super) use crate::journal::batch::Effect;
pub(super) use {
    copies::Copying,
    fields::Extensions,
    image::KeysImage,
    owners::Ownership,
    pending_wait::{KnownValue, WantedKeys},
    recorder::Mark,
    sweeps::{Sweep, Sweeping},
};
pub(crate) use {image::Image, owners::KeptClient, recorder::Recorder, snapshots::SNAPSHOT_SLICE};
