//! Runs the built command as users do.
#![forbid(unsafe_code)]

#[cfg(feature = "etcd")]
mod candidates;
#[cfg(feature = "etcd")]
#[path = "../../../c10d-journal/src/etcd/real_certificates.rs"]
mod certificates;
mod client;
mod command;
mod completions;
mod doctor;
#[cfg(feature = "etcd")]
mod etcd;
mod gloo;
mod golden;
#[cfg(feature = "journal")]
mod journal;
#[cfg(all(target_os = "linux", feature = "journal"))]
mod journal_place;
mod lease;
mod pages;
mod process;
#[cfg(target_os = "linux")]
mod pty;
mod relay;
mod run;
mod run_as_torchrun;
#[cfg(feature = "etcd")]
mod run_candidates;
#[cfg(feature = "etcd")]
mod run_etcd_access;
mod run_explain;
mod run_failures;
mod run_first_use;
mod run_health;
mod run_health_port;
mod run_keep;
#[cfg(feature = "etcd")]
mod run_keep_in_etcd;
mod run_keep_why;
mod run_nccl;
mod run_options;
mod run_other_listener;
mod run_outages;
mod run_restarts;
mod run_spares;
#[cfg(feature = "journal")]
mod run_store_dir;
#[cfg(target_os = "linux")]
mod run_terminal;
mod secret;
mod serve;
mod stacks;
mod store_status;
#[cfg(feature = "etcd")]
mod takeover_openers;
#[cfg(feature = "journal")]
mod tour;
#[cfg(feature = "journal")]
mod tutorials;
#[cfg(feature = "etcd")]
mod upgrade;
#[cfg(feature = "etcd")]
mod upgrade_interface;
mod why;
mod why_job;
