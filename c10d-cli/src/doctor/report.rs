//! The report of a check, as text and as JSON. Pure.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use c10d_socket::printable;
use serde_json::{Value, json};

use crate::output::columns;

use super::findings::{Finding, Node, TABLE_NODES_MAX};

const TEXT_CHARS_MAX: usize = 40;

/// The most missing ranks that the report lists.
const RANKS_SHOWN_MAX: usize = 16;

/// The result of a check, as this node prints it.
pub(super) struct Report<'a> {
    pub(super) run_id: &'a str,
    pub(super) endpoint: String,
    /// The number of this node.
    pub(super) own: usize,
    pub(super) nodes: &'a [Node],
    pub(super) findings: &'a [Finding],
    /// The least number of nodes of the job.
    pub(super) expected: usize,
}

impl Report<'_> {
    /// The exit code. 0: all nodes have reported, and no check of this node has failed. 1: a check of this node has
    /// failed. 3: nodes are missing.
    pub(super) fn exit_code(&self) -> u8 {
        let mut findings = self.findings.iter();
        match findings.any(|it| it.is_failure && it.nodes.contains(&self.own)) {
            true => 1,
            false if self.nodes.len() < self.expected => 3,
            false => 0,
        }
    }

    pub(super) fn to_json(&self) -> Value {
        let nodes = self.nodes.iter().enumerate();
        let nodes = nodes.map(|(number, node)| {
            json!({ "number": number, "facts": node.facts, "measured": node.measured })
        });
        json!({
            "run_id": self.run_id,
            "endpoint": self.endpoint,
            "number": self.own,
            "expected": self.expected,
            "nodes": nodes.collect::<Vec<_>>(),
            "findings": self.findings,
            "exit_code": self.exit_code(),
        })
    }

    pub(super) fn to_text(&self) -> String {
        let Self {
            nodes, expected, ..
        } = self;
        let run_id = printable(self.run_id, TEXT_CHARS_MAX);
        let arrived = nodes.len();
        // More than the least number, where nodes may come and go.
        let of = match arrived > *expected {
            true => String::new(),
            false => format!(" of {expected}"),
        };
        let mut text = format!(
            "{arrived}{of} nodes of run \"{run_id}\" have reported at {}. This is node {}.\n\n",
            self.endpoint, self.own
        );
        text += &table(&self.node_rows());
        if nodes.len() > 1 {
            text += "\nMilliseconds until a store answers, from the node of the row to the node of the column:\n";
            text += &table(&self.link_rows());
        }
        if arrived < *expected {
            let missing = expected - arrived;
            let _ = write!(
                text,
                "\nFAILED: {missing} of {expected} nodes did not report in time{}\n  Start c10d doctor on each machine of the job \
                 within --timeout, with the same --rdzv-endpoint and --rdzv-id.\n",
                self.missing_ranks()
            );
        }
        for finding in self.findings {
            let kind = if finding.is_failure {
                "FAILED"
            } else {
                "warning"
            };
            let _ = write!(
                text,
                "\n{kind}: {}\n  {}.\n",
                finding.problem,
                capitalized(&finding.cure)
            );
        }
        if self.findings.is_empty() && arrived >= *expected {
            text += "\nAll checks passed.\n";
        }
        text
    }

    fn node_rows(&self) -> Vec<Vec<String>> {
        let header = [
            "node",
            "host",
            "address",
            "c10d",
            "round trip",
            "clock",
            "open files",
            "/dev/shm",
        ];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        for (number, node) in self.nodes.iter().enumerate() {
            let (facts, measured) = (&node.facts, node.measured.as_ref());
            let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
            let clock = measured.and_then(|it| it.clock);
            rows.push(vec![
                number.to_string(),
                printable(&facts.host, TEXT_CHARS_MAX).to_string(),
                printable(&facts.address.host, TEXT_CHARS_MAX).to_string(),
                printable(&facts.version, TEXT_CHARS_MAX).to_string(),
                or_dash(
                    measured
                        .and_then(|it| it.round_trip_us)
                        .map(|it| format!("{:.2} ms", it as f64 / 1e3)),
                ),
                or_dash(clock.map(|it| format!("{:+.3} s", it.ahead_ms as f64 / 1e3))),
                facts
                    .open_files
                    .map_or_else(|| "no limit".to_owned(), |it| it.to_string()),
                or_dash(facts.shared_memory.map(|it| format!("{} MiB", it >> 20))),
            ]);
        }
        rows
    }

    /// The links of all pairs of nodes, or only the links of this node if there are many nodes.
    fn link_rows(&self) -> Vec<Vec<String>> {
        let links = |number: usize| {
            let measured = self.nodes[number].measured.as_ref();
            measured.map(|it| &it.links[..]).unwrap_or_default()
        };
        let all = || (0..self.nodes.len()).collect::<Vec<_>>();
        let (rows, columns) = match self.nodes.len() > TABLE_NODES_MAX {
            true => {
                let tried = links(self.own).iter().map(|link| link.to);
                (vec![self.own], tried.collect())
            }
            false => (all(), all()),
        };
        let cell = |from: usize, to: usize| {
            let link = links(from).iter().find(|link| link.to == to);
            match link.map(|link| &link.took_us) {
                Some(Ok(took)) => ms(*took),
                Some(Err(_)) => "FAILED".to_owned(),
                None if from == to => ".".to_owned(),
                None => "-".to_owned(),
            }
        };
        let row = |name: String, cells: &dyn Fn(usize) -> String| {
            let cells = columns.iter().map(|to| cells(*to));
            std::iter::once(name).chain(cells).collect::<Vec<_>>()
        };
        let header = row("node".to_owned(), &|to| to.to_string());
        let rows = rows.into_iter();
        let rows = rows.map(|from| row(from.to_string(), &|to| cell(from, to)));
        std::iter::once(header).chain(rows).collect()
    }

    /// `: node rank 1, 3` if the nodes that have reported were given ranks, and nothing otherwise: who is missing is then
    /// not known.
    fn missing_ranks(&self) -> String {
        let ranks = self.nodes.iter().map(|node| node.facts.node_rank);
        let Some(known) = ranks.collect::<Option<BTreeSet<i64>>>() else {
            return String::new();
        };
        let all = 0..i64::try_from(self.expected).unwrap_or(i64::MAX);
        // Two nodes may have one rank.
        if known.len() < self.nodes.len() || known.iter().any(|rank| !all.contains(rank)) {
            return String::new();
        }
        let missing = all.filter(|rank| !known.contains(rank));
        let shown = missing.take(RANKS_SHOWN_MAX).map(|rank| rank.to_string());
        let shown = shown.collect::<Vec<_>>().join(", ");
        match (self.expected - known.len()).saturating_sub(RANKS_SHOWN_MAX) {
            0 => format!(": node rank {shown}"),
            more => format!(": node rank {shown} and {more} more"),
        }
    }
}

fn ms(micros: u64) -> String {
    format!("{:.1}", micros as f64 / 1e3)
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(chars).collect()
}

/// Indented columns.
fn table(rows: &[Vec<String>]) -> String {
    let text = columns(rows, 0..0);
    text.lines().map(|line| format!("  {line}\n")).collect()
}
