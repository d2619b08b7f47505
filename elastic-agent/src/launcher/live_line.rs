//! The live line on a terminal: which nodes have joined, while a node waits for others.

use std::sync::Arc;

use elastic_rendezvous::{Listener, NodeId, RanksReport, RendezvousEvent, WaitReport};

use super::feature::{Feature, JobEnd};
use super::screen::Screen;

/// Shorter joins show no line.
const QUIET_MS: u128 = 500;

/// The line, on a screen that can show it.
#[derive(Debug)]
pub(super) struct LiveLine(pub(super) Arc<dyn Screen>);

impl Feature for LiveLine {
    /// Shows the progress of joins. A completed join hides the line before workers start.
    fn rendezvous_listener(&self) -> Option<Listener> {
        let screen = Arc::clone(&self.0);
        Some(Arc::new(move |event: &RendezvousEvent<'_>| match event {
            RendezvousEvent::Waiting(report) if report.waited.as_millis() >= QUIET_MS => {
                screen.show(&line(report));
            }
            RendezvousEvent::WaitingForRanks(report) if report.waited.as_millis() >= QUIET_MS => {
                screen.show(&line_of_ranks(report));
            }
            RendezvousEvent::MembershipChanged => screen.hide(),
            _ => {}
        }))
    }

    fn workers_ended(&mut self, _: &mut JobEnd) {
        self.0.hide();
    }
}

/// The most important part comes first, as a narrow terminal truncates the line.
fn line(report: &WaitReport) -> String {
    let here = report.joined;
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
    list(&mut text, "; missing: ", report.missing_nodes().map(named));
    let not_joining = report.not_joining.iter();
    list(
        &mut text,
        "; not joining: ",
        not_joining.map(|it| format!("{}: {}", named(&it.node), it.why)),
    );
    list(
        &mut text,
        "; joined: ",
        report.participants.iter().map(named),
    );
    text
}

/// The same for a static rendezvous, in which each node has its rank from the start.
fn line_of_ranks(report: &RanksReport) -> String {
    let time_left = report.time_left.as_secs();
    if !report.is_connected {
        return format!(
            "no store at {} yet (hosted by node rank 0), {time_left} s left",
            report.endpoint
        );
    }
    let mut text = format!("{} of {} nodes", report.joined, report.world_size);
    if !report.has_names {
        text.push_str(&format!(
            ", {} missing, {time_left} s left",
            report.missing()
        ));
        return text;
    }
    let unnamed = report.unnamed_ranks().count();
    // PyTorch's nodes are counted but not named, so any unnamed rank may be a missing one.
    let label = if report.missing() < unnamed {
        format!(", {} missing of node ranks ", report.missing())
    } else {
        ", missing node ranks ".to_owned()
    };
    let ranks = report.unnamed_ranks().map(|rank| rank.to_string());
    list(&mut text, &label, ranks);
    text.push_str(&format!(", {time_left} s left"));
    let joined = report.named.iter();
    list(
        &mut text,
        "; joined: ",
        joined.map(|(rank, node)| format!("{rank} {}", named(node))),
    );
    text
}

fn named(node: &NodeId) -> String {
    format!("{} ({})", node.addr, node.pid)
}

/// Appends the first items; a terminal shows no more.
fn list(text: &mut String, label: &str, items: impl Iterator<Item = String>) {
    const ITEMS_MAX: usize = 16;
    for (index, item) in items.take(ITEMS_MAX).enumerate() {
        text.push_str(if index == 0 { label } else { ", " });
        text.push_str(&item);
    }
}
