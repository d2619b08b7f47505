//! The tests of the public API, in one binary: one is built and linked faster than five.
//!
//! A test that needs a process of its own goes to a file of its own beside this folder.

mod blocked;
mod debug_output;
mod file_store;
mod hash_store;
mod log_lines;
mod prefix_store;
mod raw;
mod rendezvous;
mod server;
mod store_contract;
mod tcp_store;
mod without_extensions;
