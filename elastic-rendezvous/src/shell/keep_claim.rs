//! Keeps nodes that differ in `--keep-workers` out of one job: docs/spec/rendezvous.md, KEEPING. Their workers would form two
//! groups, and each group would do the whole job.

use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, printable, sleep};
use c10d_store::{Store, StoreExt};
use indexmap::IndexMap;

use crate::shell::backend::RendezvousBackend;
use crate::shell::board::state_key;
use crate::shell::stored_state::StoredState;
use crate::values::error::RendezvousError;
use crate::values::node::NodeId;
use crate::values::timestamp::Timestamp;

/// The first word of a claim: whether the nodes of the job keep their workers.
const KEEP: &str = "keep";
const RESTART: &str = "restart";

/// How often the nodes of a job with a different claim are checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

const NODE_CHARS_MAX: usize = 120;

/// When each listed node wrote its last heartbeat.
type Heartbeats = IndexMap<NodeId, Timestamp>;

/// The claim of a node that keeps its workers, or does not.
pub(crate) fn claim_of(node: &str, keeps: bool) -> String {
    let kind = if keeps { KEEP } else { RESTART };
    format!("{kind} {node}")
}

/// Compares the claim of the job with the setting of this node.
///
/// # Errors
/// [`RendezvousError::KeepingDiffers`] if the nodes disagree about keeping workers.
pub(crate) fn compare(
    run_id: &str,
    claim: &[u8],
    node: &str,
    keeps: bool,
) -> Result<(), RendezvousError> {
    let claim = String::from_utf8_lossy(claim);
    let (kind, other) = claim.split_once(' ').unwrap_or_default();
    let other = printable(other, NODE_CHARS_MAX).to_string();
    let (with, without) = match (kind, keeps) {
        (KEEP, false) => (other, node.to_owned()),
        (RESTART, true) => (node.to_owned(), other),
        // The claims agree, or this release does not write such a claim.
        _ => return Ok(()),
    };
    let run_id = run_id.to_owned();
    Err(RendezvousError::KeepingDiffers {
        run_id,
        with,
        without,
    })
}

/// Whether a node other than `me` is at work: it was listed, or has written a heartbeat, since the first look.
fn is_any_live(first: &Heartbeats, now: &Heartbeats, me: &NodeId) -> bool {
    now.iter()
        .any(|(node, heartbeat)| node != me && first.get(node) != Some(heartbeat))
}

/// A job, and a node that is about to join it.
#[derive(Debug)]
pub(crate) struct Applicant<'a> {
    pub(crate) store: &'a Arc<dyn Store>,
    pub(crate) backend: &'a Arc<dyn RendezvousBackend>,
    pub(crate) run_id: &'a str,
    pub(crate) me: &'a NodeId,
    /// After this long without a heartbeat, a node counts as dead.
    pub(crate) dead_after: Duration,
    pub(crate) cancel: &'a Cancel,
}

impl Applicant<'_> {
    /// Claims the job for nodes that keep their workers, or do not. A claim that differs is replaced if no node of the job
    /// is at work, which takes as long as a node may be silent. Blocks for that long, and for the store's timeout.
    ///
    /// # Errors
    /// [`RendezvousError::KeepingDiffers`] if the nodes disagree about keeping workers,
    /// [`RendezvousError::Interrupted`] after an interrupt, or an error of the store.
    pub(crate) fn claim(&self, keeps: bool) -> Result<(), RendezvousError> {
        let node = self.me.named().to_string();
        let own = claim_of(&node, keeps);
        let deadline = Deadline::after(Instant::now(), self.dead_after);
        let mut first = None;
        loop {
            // A node with the same setting may have replaced the claim.
            let claim = self.write(b"", &own)?;
            let Err(differs) = compare(self.run_id, &claim, &node, keeps) else {
                return Ok(());
            };
            let now = self.heartbeats()?;
            if is_any_live(first.get_or_insert_with(|| now.clone()), &now, self.me) {
                return Err(differs);
            }
            if deadline.has_passed(Instant::now()) {
                log::info!(
                    "claiming the store for nodes like this one, because no node that has claimed it answers"
                );
                return compare(self.run_id, &self.write(&claim, &own)?, &node, keeps);
            }
            if sleep(LOOK_INTERVAL, [self.cancel]).is_err() {
                let run_id = self.run_id.to_owned();
                return Err(RendezvousError::Interrupted { run_id });
            }
        }
    }

    /// Returns the claim after the write.
    fn write(&self, expected: &[u8], claim: &str) -> Result<Vec<u8>, RendezvousError> {
        let key = format!("{}/keep", state_key(self.run_id));
        let written = self.store.compare_set(&key, expected, claim.as_bytes());
        let written = written.map_err(|error| RendezvousError::connection(self.run_id, error))?;
        Ok(written.into_value())
    }

    fn heartbeats(&self) -> Result<Heartbeats, RendezvousError> {
        let state = StoredState::new(Arc::clone(self.backend), self.run_id);
        match state.read() {
            Ok(stored) => Ok(stored.map_or_else(Heartbeats::new, |(it, _)| it.last_heartbeats)),
            Err(RendezvousError::StateLost { .. }) => Ok(Heartbeats::new()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use c10d_store::HashStore;

    use super::*;
    use crate::shell::c10d_backend::C10dBackend;
    use crate::values::codec;
    use crate::values::state::RendezvousState;

    fn node(name: &str) -> NodeId {
        NodeId::new(name, 7, 1)
    }

    struct Job {
        store: Arc<dyn Store>,
        backend: Arc<dyn RendezvousBackend>,
    }

    impl Job {
        fn new() -> Self {
            let store: Arc<dyn Store> = Arc::new(HashStore::new());
            let backend = Arc::new(C10dBackend::new(Arc::clone(&store), "job").unwrap());
            Self { store, backend }
        }

        fn claim(&self, name: &str, keeps: bool) -> Result<(), String> {
            let me = node(name);
            let applicant = Applicant {
                store: &self.store,
                backend: &self.backend,
                run_id: "job",
                me: &me,
                dead_after: Duration::from_millis(300),
                cancel: &Cancel::NEVER,
            };
            applicant.claim(keeps).map_err(|error| error.to_string())
        }

        fn write(&self, listed: &[(&str, i64)]) {
            let mut state = RendezvousState::default();
            for (name, seconds) in listed {
                state.participants.insert(node(name), 0);
                let at = Timestamp::from_micros(*seconds);
                state.last_heartbeats.insert(node(name), at);
            }
            let token = self.backend.get_state().unwrap().map(|stored| stored.token);
            let bytes = codec::encode(&state);
            self.backend.set_state(&bytes, token.as_ref()).unwrap();
        }
    }

    /// docs/spec/rendezvous.md, KEEPING 1.
    #[test]
    fn nodes_that_differ_are_refused_with_both_names() {
        let job = Job::new();
        job.claim("a", true).unwrap();
        job.claim("b", true).unwrap();
        job.write(&[("a", 1)]);
        std::thread::scope(|scope| {
            let refused = scope.spawn(|| job.claim("c", false).unwrap_err());
            std::thread::sleep(Duration::from_millis(20));
            // The heartbeat of a node that has not claimed the job is one as well.
            job.write(&[("a", 1), ("b", 2)]);
            let text = refused.join().unwrap();
            assert!(text.contains("a (pid 7) has --keep-workers"), "{text}");
            assert!(text.contains("c (pid 7) has not"), "{text}");
        });
    }

    /// docs/spec/rendezvous.md, KEEPING 1: all nodes were stopped, and start with another option.
    #[test]
    fn the_claim_of_nodes_that_have_gone_is_replaced() {
        for listed in [&[][..], &[("a", 1)]] {
            let job = Job::new();
            job.claim("a", false).unwrap();
            job.write(listed);
            job.claim("c", true).unwrap();
            job.write(&[("c", 9)]);
            job.claim("c", true).unwrap();
        }
    }

    /// docs/spec/rendezvous.md, KEEPING 1: all nodes start again with another option, and one has replaced the claim first.
    #[test]
    fn a_node_that_waits_joins_those_like_it() {
        let job = Job::new();
        job.claim("a", false).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| job.claim("c", true));
            std::thread::sleep(Duration::from_millis(20));
            let first =
                job.store
                    .compare_set("torch.rendezvous.job/keep", b"restart a (pid 7)", b"keep b");
            assert_eq!(first.unwrap().into_value(), b"keep b");
            job.write(&[("b", 1)]);
            second.join().unwrap().unwrap();
        });
    }

    #[test]
    fn bytes_of_strangers_are_no_claim() {
        for claim in [&b""[..], b"keep", b"stop a", b"\xff\xff a"] {
            compare("job", claim, "b", true).unwrap();
            compare("job", claim, "b", false).unwrap();
        }
        let error = compare("job", b"keep \x1b[31m", "b", false).unwrap_err();
        assert!(!error.to_string().contains('\x1b'), "{error}");
    }
}
