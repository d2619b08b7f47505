//! Asks the server for what `c10d top` shows.

use c10d_inspect::{RankReport, RankState};
use serde::Deserialize;

use super::model::{Answer, CHUNK, Cause, Cell, Overview, Request};
use crate::status::StatusPages;
use crate::status_error::StatusError;

/// Executes a request.
pub(super) fn answer(pages: &StatusPages, request: Request) -> Answer {
    let answer = match request {
        Request::Overview => overview(pages).map(Answer::Overview),
        Request::Rows { chunk } => rows(pages, chunk).map(|rows| Answer::Rows { chunk, rows }),
    };
    answer.unwrap_or_else(|error| Answer::Failed(error.to_string()))
}

pub(super) fn overview(pages: &StatusPages) -> Result<Overview, StatusError> {
    Ok(pages.get::<StatusJson>("/status.json")?.into())
}

fn rows(pages: &StatusPages, chunk: usize) -> Result<Vec<RankReport>, StatusError> {
    let from = chunk.saturating_mul(CHUNK);
    pages.get(&format!("/ranks.json?from={from}&count={CHUNK}"))
}

/// The part of `/status.json` that is used here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StatusJson {
    headline: String,
    is_stuck: bool,
    findings: Entries,
    /// A letter for each rank, in capitals for suspects.
    cells: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Entries {
    entries: Vec<FindingJson>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FindingJson {
    text: String,
    culprits: String,
    waiting: String,
    is_consequence: bool,
}

impl From<StatusJson> for Overview {
    fn from(status: StatusJson) -> Self {
        let findings = status.findings.entries.into_iter().map(|finding| Cause {
            text: finding.text,
            culprits: finding.culprits,
            waiting: finding.waiting,
            is_consequence: finding.is_consequence,
        });
        Self {
            headline: status.headline,
            is_stuck: status.is_stuck,
            findings: findings.collect(),
            cells: status.cells.chars().map(cell_of).collect(),
        }
    }
}

/// The state that a letter stands for. A letter of a newer server is a rank of which nothing is known.
fn cell_of(letter: char) -> Cell {
    let state = match letter.to_ascii_lowercase() {
        's' => RankState::Starting,
        'c' => RankState::Connecting,
        'w' => RankState::Waiting,
        'i' => RankState::Idle,
        'e' => RankState::Ended,
        'l' => RankState::Lost,
        _ => RankState::NotSeen,
    };
    Cell {
        state,
        is_suspect: letter.is_ascii_uppercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_an_overview() {
        let json = r#"{
            "version": "9", "headline": "Waiting for rank 2.", "is_stuck": true,
            "findings": {"entries": [{"kind": "never_connected", "text": "t", "culprits": "2",
                "first_culprit": 2, "waiting": "0-1, 3", "age_ms": 1, "is_consequence": false}],
                "left_out": 0},
            "cells": "wiN-Lsce?"
        }"#;
        let overview = Overview::from(serde_json::from_str::<StatusJson>(json).unwrap());
        assert_eq!(overview.headline, "Waiting for rank 2.");
        assert!(overview.is_stuck);
        assert_eq!(overview.findings[0].waiting, "0-1, 3");
        let states: Vec<RankState> = overview.cells.iter().map(|cell| cell.state).collect();
        use RankState::{Connecting, Ended, Idle, Lost, NotSeen, Starting, Waiting};
        let expected = [
            Waiting, Idle, NotSeen, NotSeen, Lost, Starting, Connecting, Ended, NotSeen,
        ];
        assert_eq!(states, expected);
        let suspects = overview.cells.iter().filter(|cell| cell.is_suspect);
        assert_eq!(suspects.count(), 2);
        assert_eq!(serde_json::from_str::<StatusJson>("{}").unwrap().cells, "");
    }
}
