//! `c10d top` without a terminal and without a server.

mod model;
mod view;

use std::time::Duration;

use c10d_inspect::{Finding, FindingKind, RankReport, RankState, Report};
use ratatui::crossterm::event::KeyCode as Key;

use super::model::{Answer, Top};

/// `world` ranks that wait for rank `missing`, on hosts of 8 ranks each.
pub(super) fn stuck(world: usize, missing: usize) -> Answer {
    let ranks = (0..world).map(|rank| {
        let mut row = RankReport::default();
        row.rank = rank;
        row.host = Some(format!("node{}", rank / 8));
        row.is_suspect = rank == missing;
        if rank == missing {
            row.doing = "started 40 s ago, has not connected".to_owned();
            return row;
        }
        row.state = RankState::Waiting;
        row.doing = format!("waits for rank {missing}");
        row.pid = Some(u32::try_from(4000 + rank).unwrap());
        row.last_request = Some(format!("WAIT /default_pg/0//cpu//0/{missing}"));
        row.last_request_ms = Some(30_000 + rank as u64);
        row.waits_for = Some(format!("/default_pg/0//cpu//0/{missing}"));
        row.waits_ms = Some(30_000 + rank as u64);
        row
    });
    let text = format!("Waiting for rank {missing} (1 of {world}) for 31 s.");
    let mut cause = Finding::new(FindingKind::NeverConnected, text.clone());
    cause.culprits.0.insert(missing);
    cause.waiting.0 = (0..world).filter(|rank| *rank != missing).collect();
    let mut follows = Finding::new(FindingKind::Barrier, "A barrier waits as well.".to_owned());
    follows.is_consequence = true;
    let mut report = Report::default();
    report.headline = text;
    report.is_stuck = true;
    report.findings = vec![cause, follows];
    report.ranks = ranks.collect();
    Answer {
        server: "127.0.0.1:29500".to_owned(),
        report,
    }
}

/// A screen of this size that shows an answer.
pub(super) fn shown(answer: Answer, columns: usize, lines: usize) -> Top {
    let mut top = Top::default();
    top.resize((columns, lines));
    top.take(Duration::ZERO, Ok(answer));
    top
}

pub(super) fn press(top: &mut Top, keys: &[Key]) {
    for key in keys {
        assert!(!top.press(*key), "{key:?} ends it");
    }
}

pub(super) fn type_text(top: &mut Top, text: &str) {
    text.chars().for_each(|char| press(top, &[Key::Char(char)]));
}
