//! What has threads, clocks and stores: it carries out what the engines ask, and decides nothing about rounds.

mod access;
pub(crate) mod backend;
pub(crate) mod board;
pub(crate) mod bootstrap;
pub(crate) mod built_in;
pub(crate) mod c10d_backend;
mod candidate;
mod clock;
pub(crate) mod dynamic;
mod group_operations;
pub(crate) mod group_store;
pub(crate) mod handler;
mod handler_loop;
pub(crate) mod listener_watch;
mod mailbox;
mod many_keys;
mod notices;
pub(crate) mod open_store;
mod reconnecting;
pub(crate) mod round_entry;
mod shared;
pub(crate) mod static_rendezvous;
mod stored_state;
pub mod this_host;
mod workers_claim;
mod workers_keys;
pub(crate) mod write_lease;
