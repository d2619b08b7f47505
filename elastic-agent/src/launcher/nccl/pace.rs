//! How often the service is asked, and by which launchers. Pure.
//!
//! Each answer is about the whole job, and costs a message to each of its processes. So the first nodes take turns, and the
//! job is asked once in five seconds however many nodes it has.

use std::time::Duration;

use c10d_inspect::AnnouncedNode;
use c10d_inspect::nccl::AnnouncedNccl;

/// How often the job is asked.
const INTERVAL: Duration = Duration::from_secs(5);

/// How many nodes ask.
const ASKERS: usize = 8;

/// A problem that is younger may be one of a moment: the next answer comes soon.
const YOUNG_MS: u64 = 10_000;

/// What the last question led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    NoAnswer,
    Settled,
    /// A problem that the next answer confirms, or not.
    Young,
}

impl Outcome {
    pub(super) fn of(nccl: &AnnouncedNccl) -> Self {
        let mut problems = nccl.problems.iter();
        match problems.any(|problem| problem.for_ms < YOUNG_MS) {
            true => Self::Young,
            false => Self::Settled,
        }
    }
}

/// Whether this launcher asks: it is one of the first nodes, and a worker runs.
pub(super) fn is_asking(node: &AnnouncedNode) -> bool {
    let is_first = node.node_rank.is_some_and(|rank| rank < ASKERS);
    is_first && node.workers.iter().any(|worker| worker.end.is_none())
}

/// The time until the next question.
pub(super) fn pause(node: &AnnouncedNode, outcome: &Outcome) -> Duration {
    match outcome {
        // A connection that this machine refuses costs nothing.
        Outcome::NoAnswer | Outcome::Young => INTERVAL,
        Outcome::Settled => {
            let askers = node.nodes.unwrap_or(1).clamp(1, ASKERS);
            INTERVAL * u32::try_from(askers).unwrap_or(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use c10d_inspect::AnnouncedWorker;
    use c10d_inspect::nccl::NcclProblem;

    use super::*;

    fn node(rank: usize, nodes: usize, workers: usize) -> AnnouncedNode {
        let mut node = AnnouncedNode::default();
        node.node_rank = Some(rank);
        node.nodes = Some(nodes);
        node.workers = vec![AnnouncedWorker::default(); workers];
        node
    }

    #[test]
    fn the_first_nodes_take_turns() {
        let turns = |nodes| pause(&node(0, nodes, 1), &Outcome::Settled).as_secs();
        assert_eq!([1, 2, 8, 2000].map(turns), [5, 10, 40, 40]);
        let asks = |rank| is_asking(&node(rank, 2000, 8));
        assert_eq!([0, 7, 8, 1999].map(asks), [true, true, false, false]);
        assert!(!is_asking(&node(0, 1, 0)) && !is_asking(&AnnouncedNode::default()));
    }

    #[test]
    fn a_young_problem_is_confirmed_soon() {
        let outcome = |for_ms: &[u64]| {
            let mut nccl = AnnouncedNccl::default();
            let problems = for_ms.iter().map(|for_ms| {
                let mut problem = NcclProblem::default();
                problem.for_ms = *for_ms;
                problem
            });
            nccl.problems = problems.collect();
            Outcome::of(&nccl)
        };
        assert_eq!(outcome(&[]), Outcome::Settled);
        assert_eq!(outcome(&[10_000]), Outcome::Settled);
        assert_eq!(outcome(&[10_000, 9_999]), Outcome::Young);
        let many = node(3, 2000, 8);
        assert_eq!(pause(&many, &Outcome::Young).as_secs(), 5);
        assert_eq!(pause(&many, &Outcome::NoAnswer).as_secs(), 5);
    }
}
