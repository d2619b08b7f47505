//! One line on a terminal that says which nodes have joined while a node waits for others.

use std::sync::Arc;

use elastic_rendezvous::{RendezvousEvent, RendezvousHandler, WaitReport};

use crate::terminal;

/// A join that is over sooner needs no line.
const QUIET_MS: u128 = 500;

/// Shows how joins of `handler` stand, if standard error is a terminal. A join that completes hides
/// the line before workers start.
pub(super) fn show(handler: &dyn RendezvousHandler) {
    if !terminal::is_live() {
        return;
    }
    handler.add_listener(Arc::new(|event: &RendezvousEvent<'_>| match event {
        RendezvousEvent::Waiting(report) if report.waited.as_millis() >= QUIET_MS => {
            terminal::show(&line(report));
        }
        RendezvousEvent::MembershipChanged => terminal::hide(),
        _ => {}
    }));
}

/// What matters comes first, as the terminal may be narrow.
fn line(report: &WaitReport) -> String {
    let here = report.participants.len();
    let wanted = if report.min_nodes == report.max_nodes {
        report.min_nodes.to_string()
    } else {
        format!("{} to {}", report.min_nodes, report.max_nodes)
    };
    let missing = match report.missing() {
        0 => "waiting for more".to_owned(),
        missing => format!("{missing} missing"),
    };
    let mut text = format!(
        "{here} of {wanted} nodes, {missing}, {} s left",
        report.time_left.as_secs()
    );
    let lost: Vec<_> = report.dropped.iter().map(|lost| &lost.node).collect();
    let joined: Vec<_> = report.participants.iter().collect();
    for (label, nodes) in [("; lost: ", lost), ("; joined: ", joined)] {
        for (index, node) in nodes.into_iter().enumerate() {
            text.push_str(if index == 0 { label } else { ", " });
            text.push_str(&format!("{} ({})", node.addr, node.pid));
        }
    }
    text
}
