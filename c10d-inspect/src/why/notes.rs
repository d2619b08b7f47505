//! Findings that are not a hang: no rank waits on the store, or ranks would not survive the loss of its server.

use std::collections::BTreeSet;

use c10d_membership::status_of;

use crate::job::Job;
use crate::keys::Family;
use crate::launched::Worker;
use crate::network::nccl_hint;
use crate::report::{Finding, FindingKind};
use crate::text;

/// The finding that all ranks are connected and none waits; `None` while some are not, and while members of a group wait for
/// others. `is_at_work` is true if launchers observe that the workers use the CPU, read or write.
pub(crate) fn nothing_waits(job: &Job<'_>, is_at_work: bool) -> Option<Finding> {
    let mut groups = job.index.snapshot.groups.iter().filter_map(status_of);
    let are_settled =
        groups.all(|it| it.stopped_for.is_none() && it.members.iter().all(|it| !it.is_awaited));
    if !job.waits.is_empty() || !are_settled {
        return None;
    }
    let text = match job.ranks_now() {
        Some(ranks) => all_are_idle(job, &ranks, is_at_work)?,
        None => nccl_readers(job)?,
    };
    Some(Finding::new(FindingKind::NotInTheStore, text))
}

fn all_are_idle(job: &Job<'_>, ranks: &BTreeSet<usize>, is_at_work: bool) -> Option<String> {
    let size = ranks.len();
    let is_joining = job.mains().any(|state| !state.is_complete());
    if size == 0 || !ranks.iter().all(|&rank| job.is_connected(rank)) || is_joining {
        return None;
    }
    let state = match is_at_work {
        true => "connected, and their processes use the CPU, read or write",
        false => "connected and idle",
    };
    Some(format!(
        "All {} are {state}; none waits on the store. If the job hangs it is not in the store: {}{}",
        text::count(size, "rank"),
        next_step(job),
        while_nccl_connects(job).unwrap_or_default(),
    ))
}

/// The variable that NCCL may need, in a job that uses it. NCCL connects the ranks without the store.
fn while_nccl_connects(job: &Job<'_>) -> Option<String> {
    let mut others = job.index.others.iter();
    let has_id = others.any(|(family, _)| matches!(family, Family::NcclId { .. }));
    nccl_hint(job.launched).filter(|_| has_id)
}

/// Returns the next step to find a hang outside of the store.
fn next_step(job: &Job<'_>) -> &'static str {
    let has_socket = |worker: Worker<'_>| worker.worker.debug_socket.is_some();
    let mut others = job.index.others.iter();
    let has_debug_servers = job.launched.workers().any(has_socket)
        || others.any(|(family, _)| matches!(family, Family::DebugServer { .. }));
    if has_debug_servers {
        "c10d flight names the rank that skipped a collective, c10d stacks --all shows where each rank is."
    } else {
        "c10d stacks --all shows the lines of the processes. In a job of c10d run --debug-server, c10d flight names the rank \
         that skipped a collective."
    }
}

/// A NCCL job without a launcher: neither its size nor its ranks are on the wire.
fn nccl_readers(job: &Job<'_>) -> Option<String> {
    let ids = job
        .index
        .others
        .iter()
        .filter_map(|(family, key)| match family {
            Family::NcclId { group, .. } if group.is_default() => Some(key),
            _ => None,
        });
    let id = ids.max_by_key(|key| key.version)?;
    let readers: BTreeSet<_> = (0..job.index.connections.len())
        .filter(|&slot| job.index.connections[slot].reads.contains(&id.version))
        .collect();
    let have = text::verb(readers.len(), "has", "have");
    Some(format!(
        "{} {have} read the NCCL id of the default group; none waits on the store. How many ranks a NCCL \
         job has, and which, is not visible in the store: start it with c10d run to see who is missing.",
        text::capitalized(&text::count(readers.len(), "process")),
    ))
}

/// Names the ranks with connections that no other server can continue. Returns `None` if there are no such ranks, or if the
/// store itself does not survive its process.
pub(crate) fn connected_directly(job: &Job<'_>) -> Option<Finding> {
    if !job.index.snapshot.is_kept {
        return None;
    }
    let is_direct = |rank: &usize| {
        let mut slots = job.who.connections(*rank).iter();
        slots.any(|&slot| job.index.is_open(slot) && !job.index.connections[slot].resumes)
    };
    let direct: BTreeSet<usize> = job.who.seen().filter(is_direct).collect();
    if direct.is_empty() {
        return None;
    }
    let text = format!(
        "{} {} connected to this store directly: {} would not survive a restart or a takeover of its server. Ranks behind \
         relays would (c10d run --relay).",
        text::ranks_start(&direct),
        text::verb(direct.len(), "is", "are"),
        text::verb(direct.len(), "it", "they"),
    );
    Some(Finding::new(FindingKind::ConnectedDirectly, text))
}

#[cfg(test)]
mod tests {
    use crate::report::FindingKind;
    use crate::sim::Script;

    #[test]
    fn a_hang_elsewhere_is_told_with_the_next_command() {
        let mut script = Script::new();
        let ranks = script.run_all(2);
        script.pass(10.0);
        let cause = script.cause();
        assert_eq!(cause.kind, FindingKind::NotInTheStore);
        assert_eq!(
            cause.text,
            "All 2 ranks are connected and idle; none waits on the store. If the job hangs it is not in the store: \
         c10d stacks --all shows the lines of the processes. In a job of c10d run --debug-server, c10d flight names the \
         rank that skipped a collective."
        );
        let (launcher, mut node) = script.launch(&ranks);
        node.workers[1].debug_socket = Some("/run/c10d/0-1".into());
        script.store.announce(launcher, &node);
        let text = script.cause().text;
        assert!(
        text.ends_with(
            "it is not in the store: c10d flight names the rank that skipped a collective, c10d stacks --all shows \
             where each rank is."
        ),
        "{text}"
    );
    }

    /// `c10d store watch` waits for a change, not for a rank.
    #[test]
    fn a_watcher_of_changes_is_not_waited_for() {
        let mut script = Script::new();
        script.run_all(2);
        let address = script.address();
        let watcher = script.store.connect(address, 0xC10D_0000);
        script.store.wait(watcher, &["any".to_owned()]);
        script.store.watch(watcher);
        script.pass(10.0);
        let report = script.report();
        assert_eq!(report.findings[0].kind, FindingKind::NotInTheStore);
        assert_eq!(report.waits, []);
    }
}
