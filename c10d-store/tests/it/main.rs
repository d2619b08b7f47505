//! Tests of the public API, in one binary because that builds faster than several.
//!
//! A test that needs its own process is a separate file next to this folder.

mod blocked;
#[cfg(all(feature = "extensions", feature = "file"))]
mod cancel;
#[cfg(feature = "extensions")]
mod carried;
mod closing;
mod conform;
#[cfg(feature = "extensions")]
mod conform_mistakes;
mod debug_output;
#[cfg(feature = "extensions")]
mod delete_prefix;
#[cfg(feature = "extensions")]
mod end_waits;
#[cfg(all(feature = "extensions", feature = "file"))]
mod ephemeral;
#[cfg(feature = "tls")]
mod few_descriptors;
#[cfg(feature = "file")]
mod file_store;
mod give_way;
mod hash_store;
#[cfg(feature = "extensions")]
mod journal;
mod log_lines;
#[cfg(feature = "extensions")]
mod memory_journal;
#[cfg(feature = "extensions")]
mod memory_limit;
#[cfg(feature = "extensions")]
mod observer;
mod prefix_store;
mod raw;
mod reconnect;
mod rendezvous;
#[cfg(feature = "tls")]
mod secret;
mod server;
mod slow_strangers;
#[cfg(feature = "extensions")]
mod standby;
mod store_contract;
mod tcp_store;
#[cfg(feature = "extensions")]
mod turns;
mod whole_crate;
mod without_extensions;
