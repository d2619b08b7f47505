//! Tests of the public API, in one binary because that builds faster than several.
//!
//! A test that needs its own process is a separate file next to this folder.

mod blocked;
mod cancel;
mod carried;
mod closing;
mod conform;
mod conform_mistakes;
mod debug_output;
mod delete_prefix;
mod end_waits;
mod ephemeral;
#[cfg(feature = "tls")]
mod few_descriptors;
mod file_store;
mod give_way;
mod hash_store;
mod journal;
mod log_lines;
mod memory_journal;
mod memory_limit;
mod observer;
mod prefix_store;
mod raw;
mod reconnect;
mod rendezvous;
#[cfg(feature = "tls")]
mod secret;
mod server;
mod slow_strangers;
mod standby;
mod store_contract;
mod tcp_store;
mod turns;
mod whole_crate;
mod without_extensions;
