//! An engine in etcd, for a store that any of several processes may serve, one at a time, on any host.
//!
//! The parts: [`log`] writes and [`reader`] reads a log of batches with snapshots, [`leader`] decides when a process
//! may lead, and [`loss`] detects that etcd has lost data. All four are pure, and are tried against a simulated etcd
//! in `sim`. [`journal`] runs them over [`gateway`], [`lease`] keeps the leader's lease, and [`life_line`] shows
//! standbys that the leader's process has exited.

mod gateway;
#[cfg(test)]
mod histories;
mod http;
mod journal;
mod layout;
mod leader;
mod lease;
mod life_line;
mod log;
mod loss;
#[cfg(test)]
mod lost_tests;
mod message;
#[cfg(test)]
mod mutant;
mod options;
mod reader;
#[cfg(all(test, feature = "tls"))]
mod real_certificates;
#[cfg(test)]
mod real_site;
#[cfg(test)]
mod real_tests;
#[cfg(all(test, feature = "tls"))]
mod real_tls_tests;
mod registration;
#[cfg(test)]
mod served_tests;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod sim_tests;
#[cfg(test)]
mod upgrade_tests;

pub use journal::EtcdJournal;
pub use message::MemberStatus as EtcdMemberStatus;
pub use options::{
    EtcdAddressError, EtcdCandidate, EtcdDirectory, EtcdLeader, EtcdLookupError, EtcdMember,
    EtcdOptions, EtcdStatus, EtcdTakeover,
};
