//! `c10d top` without a terminal and without a server.

mod model;
mod view;

use std::time::Duration;

use c10d_inspect::http::{FindingSummary, RankCell, StatusOverview};
use c10d_inspect::{RankReport, RankState};

use super::model::{Answer, CHUNK, Input, Key, Next, Overview, Request, Top};

/// The answers of a server.
pub(super) struct Job {
    pub(super) overview: Overview,
    pub(super) rows: Vec<RankReport>,
}

impl Job {
    /// `world` ranks that wait for rank `missing`, on hosts of 8 ranks each.
    pub(super) fn stuck(world: usize, missing: usize) -> Self {
        let rows = (0..world).map(|rank| {
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
        let rows: Vec<RankReport> = rows.collect();
        let cells = rows.iter().map(RankCell::of);
        let text = format!("Waiting for rank {missing} (1 of {world}) for 31 s.");
        let mut cause = FindingSummary::default();
        cause.text.clone_from(&text);
        cause.culprits = format!("rank {missing}");
        cause.waiting = format!("ranks 0-{}", world - 1);
        let mut follows = FindingSummary::default();
        follows.text = "A barrier waits as well.".to_owned();
        follows.is_consequence = true;
        let mut status = StatusOverview::default();
        status.headline = text;
        status.is_stuck = true;
        status.findings = vec![cause, follows];
        status.cells = cells.collect();
        let target = "127.0.0.1:29500".to_owned();
        let overview = Overview { target, status };
        Self { overview, rows }
    }

    pub(super) fn answer(&self, request: Request) -> Answer {
        match request {
            Request::Overview => Answer::Overview(self.overview.clone()),
            Request::Rows { chunk } => {
                let rows = self.rows.iter().skip(chunk * CHUNK).take(CHUNK);
                Answer::Rows {
                    chunk,
                    rows: rows.cloned().collect(),
                }
            }
        }
    }

    /// Takes an input, answers what is asked until nothing is, and returns what was asked.
    pub(super) fn run(&self, top: &mut Top, now: Duration, input: Input) -> Vec<Request> {
        let mut asked = Vec::new();
        let mut next = top.step(now, input);
        while let Next::Fetch(request) = next {
            asked.push(request);
            assert!(asked.len() < 1000, "never settles");
            next = top.step(now, Input::Answer(self.answer(request)));
        }
        asked
    }

    /// A screen that shows this job.
    pub(super) fn shown(&self, columns: usize, rows: usize) -> Top {
        let mut top = Top::new(columns, rows);
        self.run(&mut top, Duration::ZERO, Input::Tick);
        top
    }

    pub(super) fn press(&self, top: &mut Top, now: Duration, keys: &[Key]) -> Vec<Request> {
        let press = |key: &Key| self.run(top, now, Input::Key(*key));
        keys.iter().flat_map(press).collect()
    }

    pub(super) fn type_text(&self, top: &mut Top, now: Duration, text: &str) {
        for char in text.chars() {
            self.press(top, now, &[Key::Char(char)]);
        }
    }
}

pub(super) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
