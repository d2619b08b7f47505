//! Why a change of a round's members restarts the workers, as text for the log.

use elastic_rendezvous::Membership;

/// How many changes one log line names.
const REASONS_SHOWN_MAX: usize = 8;

/// What a membership means for the workers of this node, if the rendezvous is not closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MembersChange {
    None,
    /// They have to start again, for this reason.
    Certain(String),
    /// The same, unless this many nodes have left because their workers have succeeded.
    UnlessFinished {
        why: String,
        departed: usize,
    },
}

impl MembersChange {
    pub(crate) fn of(membership: &Membership) -> Self {
        match why_members_changed(membership) {
            _ if membership.is_closed => Self::None,
            None => Self::None,
            // A PyTorch node writes no heartbeat while it waits in the exit barrier.
            Some(why) if membership.waiting.is_empty() && !membership.is_evicted => {
                Self::UnlessFinished {
                    why,
                    departed: membership.departed(),
                }
            }
            Some(why) => Self::Certain(why),
        }
    }
}

/// What changed about the members of a round: nodes that were lost, that left, or that wait to join.
pub(super) fn why_members_changed(membership: &Membership) -> Option<String> {
    let mut reasons = Vec::new();
    for lost in &membership.lost {
        reasons.push(format!("lost {lost}"));
    }
    if membership.is_evicted {
        reasons.push("the other nodes removed this one from the round".to_owned());
    } else {
        reasons.extend(membership.left.iter().map(ToString::to_string));
        match membership.unnamed {
            0 => {}
            1 => reasons.push("one more member is gone".to_owned()),
            more => reasons.push(format!("{more} more members are gone")),
        }
        let others = membership.waiting.iter();
        let newcomers = others.filter(|node| membership.left.iter().all(|it| it.node != **node));
        reasons.extend(newcomers.map(|node| format!("{} waits to join", node.named())));
    }
    let more = reasons.len().saturating_sub(REASONS_SHOWN_MAX);
    reasons.truncate(REASONS_SHOWN_MAX);
    if more > 0 {
        reasons.push(format!("and {more} more"));
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use elastic_rendezvous::{LeftNode, LostNode, NodeId};

    use super::*;

    fn node(name: &str) -> NodeId {
        NodeId::new(name, 7, 0)
    }

    #[test]
    fn a_restart_reason_distinguishes_lost_nodes_from_restarting_ones() {
        let mut membership = Membership::default();
        assert_eq!(why_members_changed(&membership), None);
        membership.lost = vec![LostNode::new(node("c"), Duration::from_millis(15_300))];
        membership.left = vec![
            LeftNode::new(node("b"), true),
            LeftNode::new(node("d"), false),
        ];
        membership.waiting = vec![node("b"), node("e")];
        assert_eq!(
            why_members_changed(&membership).as_deref(),
            Some(
                "lost c (pid 7): no heartbeat for 15 s; b (pid 7) left the round to restart; \
                 d (pid 7) left the round; e (pid 7) waits to join"
            )
        );
        membership.is_evicted = true;
        assert_eq!(
            why_members_changed(&membership).as_deref(),
            Some(
                "lost c (pid 7): no heartbeat for 15 s; the other nodes removed this one from the round"
            )
        );
    }

    #[test]
    fn a_restart_reason_stays_short_for_a_thousand_nodes() {
        let mut membership = Membership::default();
        membership.left = (0..1000).map(|_| LeftNode::new(node("b"), true)).collect();
        let why = why_members_changed(&membership).unwrap();
        assert!(why.ends_with("; and 992 more"), "{why}");
    }
}
