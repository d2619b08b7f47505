//! The shell, which owns threads, clocks and stores. It carries out the requests of the engines, and decides
//! nothing about rounds.

mod access;
pub(crate) mod address_search;
pub(crate) mod backend;
pub(crate) mod board;
pub(crate) mod bootstrap;
pub(crate) mod c10d_backend;
mod candidate;
pub(crate) mod check_store;
pub(crate) mod dynamic_rendezvous;
pub(crate) mod factory;
pub(crate) mod group_store;
pub(crate) mod handler;
mod handler_loop;
mod handler_state;
mod keep_claim;
pub(crate) mod listener_watch;
mod mailbox;
pub(crate) mod marks;
mod notices;
pub(crate) mod open_store;
pub(crate) mod own_host;
mod reconnection;
pub(crate) mod static_rendezvous;
mod stored_state;
pub mod this_host;
mod workers_claim;
mod workers_reach;
pub(crate) mod write_lease;
