//! Asks the server for what `c10d top` shows.

use c10d_inspect::{RankReport, RankState, WorkersStore};
use serde::Deserialize;

use super::cause::Cause;
use super::model::{Answer, CHUNK, Cell, Overview, Request};
use crate::job_pages::follow;
use crate::status::StatusPages;
use crate::status_error::StatusError;

/// The pages that the user named, and those of the workers' store if it is another one.
#[derive(Debug)]
pub(super) struct Source {
    asked: StatusPages,
    workers: Option<StatusPages>,
}

impl Source {
    pub(super) const fn new(asked: StatusPages) -> Self {
        Self {
            asked,
            workers: None,
        }
    }

    /// Executes a request.
    pub(super) fn answer(&mut self, request: Request) -> Answer {
        let answer = match request {
            Request::Overview => self.overview().map(Answer::Overview),
            Request::Rows { chunk } => {
                let pages = self.workers.as_ref().unwrap_or(&self.asked);
                rows(pages, chunk).map(|rows| Answer::Rows { chunk, rows })
            }
        };
        answer.unwrap_or_else(|error| Answer::Failed(error.to_string()))
    }

    /// The ranks of the workers' store, which is asked for again when it does not answer: the next round may have
    /// another one.
    pub(super) fn overview(&mut self) -> Result<Overview, StatusError> {
        if let Some(pages) = self.workers.take()
            && let Ok(status) = status(&pages)
        {
            let target = pages.server().to_string();
            self.workers = Some(pages);
            return Ok(status.into_overview(target));
        }
        let first = status(&self.asked)?;
        let stores = match first.is_stuck {
            true => &[],
            false => &first.workers_stores[..],
        };
        Ok(match follow(&self.asked, stores, status)? {
            None => first.into_overview(self.asked.server().to_string()),
            Some(followed) => {
                let target = followed.pages.server().to_string();
                self.workers = Some(followed.pages);
                followed.answer.into_overview(target)
            }
        })
    }
}

fn status(pages: &StatusPages) -> Result<StatusJson, StatusError> {
    pages.get("/status.json")
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
    workers_stores: Vec<WorkersStore>,
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

impl StatusJson {
    fn into_overview(self, target: String) -> Overview {
        let status = self;
        let findings = status.findings.entries.into_iter().map(|finding| Cause {
            text: finding.text,
            culprits: finding.culprits,
            waiting: finding.waiting,
            is_consequence: finding.is_consequence,
        });
        Overview {
            target,
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
        let status = serde_json::from_str::<StatusJson>(json).unwrap();
        let overview = status.into_overview("node0:29500".to_owned());
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
