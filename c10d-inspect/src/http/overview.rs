//! The client's part of `/status.json`.

use serde::de::Deserializer;
use serde::{Deserialize, Serialize};

use super::cell::RankCell;
use crate::report::{WorkersStore, stores_elsewhere};
use crate::text::has_rank;

/// The part of `/status.json` that shows a job: small enough to be read every second for 16,384 ranks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct StatusOverview {
    /// The answer in one or two sentences.
    pub headline: String,
    /// Whether somebody waits for somebody who is missing or stands still.
    pub is_stuck: bool,
    /// What was found, causes first; 100 at most.
    #[serde(deserialize_with = "entries")]
    pub findings: Vec<FindingSummary>,
    /// Each group whose members agree through the server, with its generation and for whom it waits; 100 at most.
    #[serde(deserialize_with = "entries")]
    pub memberships: Vec<String>,
    /// The state of each rank from rank 0 on.
    #[serde(deserialize_with = "cells")]
    pub cells: Vec<RankCell>,
    /// As [`Report::workers_stores`](crate::Report::workers_stores).
    pub workers_stores: Vec<WorkersStore>,
}

/// A finding with its ranks as text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct FindingSummary {
    /// One or two sentences.
    pub text: String,
    /// The ranks to blame, as in "ranks 0-3 and 7". Empty if there is none.
    pub culprits: String,
    /// The ranks that wait for them.
    pub waiting: String,
    /// Whether another finding explains this one.
    pub is_consequence: bool,
}

impl StatusOverview {
    /// As [`Report::stores_elsewhere`](crate::Report::stores_elsewhere).
    #[must_use]
    pub fn stores_elsewhere(&self) -> &[WorkersStore] {
        stores_elsewhere(self.is_stuck, &self.workers_stores)
    }
}

impl FindingSummary {
    /// Whether this rank is to blame, as far as the text names ranks: the first 8 ranges.
    #[must_use]
    pub fn is_to_blame(&self, rank: usize) -> bool {
        has_rank(&self.culprits, rank)
    }

    /// Whether this rank waits for those to blame, as far as the text names ranks: the first 8 ranges.
    #[must_use]
    pub fn is_holding_up(&self, rank: usize) -> bool {
        has_rank(&self.waiting, rank)
    }
}

fn entries<'de, T: Deserialize<'de>, D: Deserializer<'de>>(list: D) -> Result<Vec<T>, D::Error> {
    #[derive(Deserialize)]
    struct List<T> {
        #[serde(default = "Vec::new")]
        entries: Vec<T>,
    }
    Ok(List::deserialize(list)?.entries)
}

fn cells<'de, D: Deserializer<'de>>(letters: D) -> Result<Vec<RankCell>, D::Error> {
    let letters = String::deserialize(letters)?;
    Ok(letters.chars().map(RankCell::of_letter).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_an_overview() {
        let json = r#"{
            "version": "9", "headline": "Waiting for rank 2.", "is_stuck": true,
            "findings": {"entries": [{"kind": "never_connected", "text": "t", "culprits": "rank 2",
                "first_culprit": 2, "waiting": "ranks 0, 1 and 3", "age_ms": 1, "is_consequence": false}],
                "left_out": 0},
            "memberships": {"entries": ["g: no generation; forming"], "left_out": 0},
            "cells": "wiN-L"
        }"#;
        let overview = serde_json::from_str::<StatusOverview>(json).unwrap();
        assert_eq!(overview.headline, "Waiting for rank 2.");
        assert!(overview.is_stuck);
        let finding = &overview.findings[0];
        assert!(finding.is_to_blame(2) && !finding.is_to_blame(3));
        assert!(finding.is_holding_up(3) && !finding.is_holding_up(2));
        assert_eq!(overview.memberships, ["g: no generation; forming"]);
        let suspects = overview.cells.iter().map(|cell| cell.is_suspect);
        assert_eq!(
            suspects.collect::<Vec<_>>(),
            [false, false, true, false, true]
        );
        let empty = serde_json::from_str::<StatusOverview>("{}").unwrap();
        assert_eq!(empty, StatusOverview::default());
    }
}
