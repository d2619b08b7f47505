//! Whole-system tests in one program, because each test program links all crates.
//!
//! `tests/scale.rs` is a separate program because it raises the limit on open files.

mod addresses;
mod architecture;
mod blame;
mod conform;
mod debug_servers;
mod doctor;
mod documents;
mod durable;
#[path = "../../../c10d-cli/tests/cli/etcd.rs"]
mod etcd;
mod file_store;
mod gpu;
mod groups;
mod hangs;
#[path = "../../../c10d-relay/tests/it/history.rs"]
mod history;
mod hosts;
mod idle_waits;
mod in_etcd;
mod job_failure;
mod kill_matrix;
mod lost_nodes;
mod mixed;
mod outages;
mod preload;
mod preload_torch;
mod process_group;
mod public_rules;
mod reachability;
mod relays;
mod rendezvous_backend;
mod rendezvous_codec;
mod rendezvous_urls;
mod resiliency;
mod rpc;
mod rules;
mod run_torch;
mod setups;
mod silent_interpreter;
mod stop_signals;
mod store_kills;
mod strangers_text;
mod torch_client;
mod torch_server;
mod why;
#[path = "../../../c10d-relay/tests/it/workload.rs"]
mod workload;
