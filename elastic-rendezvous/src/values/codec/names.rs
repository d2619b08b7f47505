//! The names of the classes and attributes in a pickled state.
//!
//! In PyTorch: `torch/distributed/elastic/rendezvous/dynamic_rendezvous.py`.

/// The module of [`STATE`] and [`NODE`].
pub(super) const RENDEZVOUS_MODULE: &str =
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous";
pub(super) const STATE: &str = "_RendezvousState";
pub(super) const NODE: &str = "_NodeDesc";

/// The module of Python's times, and its class of the same name.
pub(super) const DATETIME: &str = "datetime";
pub(super) const TIMEZONE: &str = "timezone";
pub(super) const TIMEDELTA: &str = "timedelta";

pub(super) const ADDR: &str = "addr";
pub(super) const PID: &str = "pid";
pub(super) const LOCAL_ID: &str = "local_id";

pub(super) const ROUND: &str = "round";
pub(super) const COMPLETE: &str = "complete";
pub(super) const DEADLINE: &str = "deadline";
pub(super) const CLOSED: &str = "closed";
pub(super) const PARTICIPANTS: &str = "participants";
pub(super) const WAIT_LIST: &str = "wait_list";
pub(super) const REDUNDANCY_LIST: &str = "redundancy_list";
pub(super) const LAST_HEARTBEATS: &str = "last_heartbeats";

/// The state's attributes in the order in which PyTorch writes them.
pub(super) const ATTRIBUTES: [&str; 8] = [
    ROUND,
    COMPLETE,
    DEADLINE,
    CLOSED,
    PARTICIPANTS,
    WAIT_LIST,
    REDUNDANCY_LIST,
    LAST_HEARTBEATS,
];
