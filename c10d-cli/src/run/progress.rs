//! One line on a terminal that says who is there while a node waits for others.
//!
//! Where there is no terminal the log has a line now and then instead.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use elastic_rendezvous::{RendezvousEvent, RendezvousHandler, WaitReport};

/// A join that is over sooner needs no line.
const QUIET_MS: u128 = 500;

/// Wide terminals exist, but a line that wraps cannot be taken back.
const WIDTH_MAX: usize = 78;

/// Whether there is a line on the terminal that has to be taken back.
static IS_SHOWN: AtomicBool = AtomicBool::new(false);

/// Shows how joins of `handler` stand, if standard error is a terminal.
pub(crate) fn show(handler: &dyn RendezvousHandler) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    handler.add_listener(Arc::new(|event: &RendezvousEvent<'_>| match event {
        RendezvousEvent::Waiting(report) if report.waited.as_millis() >= QUIET_MS => {
            IS_SHOWN.store(true, Ordering::Relaxed);
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", line(report));
        }
        RendezvousEvent::MembershipChanged => end(),
        _ => {}
    }));
}

/// Takes the line back.
pub(crate) fn end() {
    if IS_SHOWN.swap(false, Ordering::Relaxed) {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}

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
    for (index, node) in report.participants.iter().enumerate() {
        let name = format!(
            "{}{} ({})",
            if index == 0 { ": " } else { ", " },
            node.addr,
            node.pid
        );
        if text.chars().count() + name.chars().count() + 5 > WIDTH_MAX {
            text.push_str(", ...");
            break;
        }
        text.push_str(&name);
    }
    // Addresses are what other nodes say: nothing of theirs may command a terminal.
    text.chars()
        .filter(|char| !char.is_control())
        .take(WIDTH_MAX)
        .collect()
}
