//! Ranks whose gloo listens at loopback while other ranks of the group are on other hosts.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::draft::Draft;
use crate::identity::shown_name;
use crate::job::{Job, MemberState};
use crate::launched::Worker;
use crate::network::gloo_assignment;
use crate::report::FindingKind;
use crate::text;

/// The most ranks whose address is given.
const NAMED_MAX: usize = 4;

pub(super) fn find(job: &Job<'_>, drafts: &mut Vec<Draft>) {
    let Some(state) = job.newest_main() else {
        return;
    };
    let members = state.members.iter().filter(|member| !member.is_orphan);
    let placed: Vec<(&MemberState<'_>, Worker<'_>)> = members
        .filter_map(|member| Some((member, job.launched.worker(member.rank?)?)))
        .collect();
    // Processes that share loopback see the same addresses of their host.
    let hosts: BTreeSet<&[IpAddr]> = placed
        .iter()
        .map(|(_, worker)| &worker.node.announced.addresses[..])
        .filter(|addresses| !addresses.is_empty())
        .collect();
    let at_loopback = |member: &MemberState<'_>| {
        let ip = member.published.address.address.ip();
        ip.to_canonical().is_loopback()
    };
    let mut wrong = placed.iter().filter(|(member, _)| at_loopback(member));
    if hosts.len() < 2 || wrong.clone().next().is_none() {
        return;
    }
    let since = placed
        .iter()
        .map(|(member, _)| member.published.key.written);
    let since = since.max().unwrap_or_default();
    let count = wrong.clone().count();
    let named = wrong.by_ref().take(NAMED_MAX).map(|(member, worker)| {
        let (node, address) = (&worker.node.announced, &member.published.address);
        let host = match node.node_rank {
            Some(rank) => format!("node {rank} ({})", shown_name(&node.host)),
            None => shown_name(&node.host),
        };
        format!(
            "rank {} on {host} {}",
            member.published.rank, address.address
        )
    });
    let named = named.collect::<Vec<_>>().join(", ");
    let more = match count.saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {} more", text::count(more, "rank")),
    };
    let text = format!(
        "gloo advertises loopback to ranks on other hosts: {named}{more}, because the host names lead there. Set {}.",
        gloo_assignment(job.launched),
    );
    let ranks: BTreeSet<usize> = placed
        .iter()
        .map(|(member, _)| member.published.rank)
        .collect();
    for draft in drafts.iter_mut() {
        let culprits = &draft.finding.culprits.0;
        let follows =
            draft.is_about_default_group() || draft.finding.kind == FindingKind::WorkerEnded;
        draft.is_explained |= follows && !culprits.is_empty() && culprits.is_subset(&ranks);
    }
    drafts.push(Draft::new(FindingKind::GlooLoopback, text, since).waited_by(ranks));
}

#[cfg(test)]
mod tests {
    use crate::announced::AnnouncedNode;
    use crate::report::{FindingKind, Report};
    use crate::sim::Script;

    /// Two nodes with a rank each, whose gloo listens at 127.0.0.1.
    fn report(addresses: [&str; 2], interfaces: [Option<&str>; 2]) -> Report {
        let mut script = Script::new();
        let ranks = script.run_all(2);
        for (rank, (address, interface)) in addresses.into_iter().zip(interfaces).enumerate() {
            let (launcher, node) = script.launch(&ranks[rank..=rank]);
            let node = AnnouncedNode {
                host: "localhost".to_owned(),
                node_rank: Some(rank),
                nodes: Some(2),
                world_size: Some(2),
                addresses: vec![address.parse().expect("an address")],
                interface: interface.map(str::to_owned),
                ..node
            };
            script.store.announce(launcher, &node);
        }
        script.report()
    }

    #[test]
    fn loopback_between_hosts_is_named_with_the_variable() {
        let report = report(["10.8.8.1", "10.8.8.2"], [Some("eth0"), Some("eth0")]);
        assert_eq!(report.findings[0].kind, FindingKind::GlooLoopback);
        assert!(report.is_stuck);
        let parts = [
            "rank 0 on node 0 (localhost) 127.0.0.1:30100",
            "rank 1 on node 1 (localhost) 127.0.0.1:30101",
            "Set GLOO_SOCKET_IFNAME=eth0.",
        ];
        for part in parts {
            assert!(report.headline.contains(part), "{}", report.headline);
        }
    }

    #[test]
    fn hosts_with_different_interfaces_are_told_both() {
        let report = report(["10.8.8.1", "10.8.8.2"], [Some("eth0"), Some("ib0")]);
        let text = "Set GLOO_SOCKET_IFNAME to the interface of the node: eth0 or ib0.";
        assert!(report.headline.ends_with(text), "{}", report.headline);
    }

    #[test]
    fn loopback_on_one_host_is_right() {
        let report = report(["10.8.8.1", "10.8.8.1"], [None, None]);
        assert!(
            report
                .findings
                .iter()
                .all(|it| it.kind != FindingKind::GlooLoopback)
        );
    }
}
