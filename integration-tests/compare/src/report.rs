//! Figures as Markdown for people and as JSON for programs.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::machine;
use crate::placement::Placement;
use crate::plan::{Load, Plan};
use crate::rival::{Family, Rival};

/// The unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Microseconds,
    CallsPerSecond,
    /// Payload in one direction. The other direction carries the same amount.
    MegabytesPerSecond,
}

impl Unit {
    const fn name(self) -> &'static str {
        match self {
            Self::Microseconds => "us",
            Self::CallsPerSecond => "calls/s",
            Self::MegabytesPerSecond => "MB/s",
        }
    }

    const fn less_is_better(self) -> bool {
        matches!(self, Self::Microseconds)
    }

    /// Converts a call rate to this unit.
    pub(crate) fn of_calls(self, calls_per_second: f64, load: Load) -> f64 {
        match self {
            Self::MegabytesPerSecond => calls_per_second * load.payload_bytes as f64 / 1e6,
            Self::Microseconds | Self::CallsPerSecond => calls_per_second,
        }
    }
}

/// One figure for all rivals, with a value for each round.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) load: Load,
    pub(crate) unit: Unit,
    what: &'static str,
    in_flight: usize,
    samples: Vec<(Rival, Vec<f64>)>,
}

/// The better of a family's rivals in one row.
#[derive(Debug, Clone, Copy)]
struct Entry<'a> {
    rival: Rival,
    samples: &'a [f64],
    median: f64,
}

impl Row {
    /// Empty rows for p50 and p99 with one call in flight, and for throughput.
    pub(crate) fn of_load(load: Load, rivals: &[Rival]) -> [Self; 3] {
        let throughput = if load.payload_bytes >= 1 << 20 {
            Unit::MegabytesPerSecond
        } else {
            Unit::CallsPerSecond
        };
        [
            ("p50", Unit::Microseconds, 1),
            ("p99", Unit::Microseconds, 1),
            ("throughput", throughput, load.in_flight),
        ]
        .map(|(what, unit, in_flight)| Self {
            load,
            unit,
            what,
            in_flight,
            samples: rivals.iter().map(|rival| (*rival, Vec::new())).collect(),
        })
    }

    /// Adds a round's value for the rival with this index.
    pub(crate) fn push(&mut self, rival: usize, value: f64) {
        self.samples[rival].1.push(value);
    }

    fn name(&self) -> String {
        format!(
            "{}, {} in flight: {}",
            self.load.name, self.in_flight, self.what
        )
    }

    /// `None` if the family was not measured.
    fn best_of(&self, family: Family) -> Option<Entry<'_>> {
        let entries = self
            .samples
            .iter()
            .filter(|(rival, _)| rival.family() == family)
            .filter_map(|(rival, samples)| {
                Some(Entry {
                    rival: *rival,
                    samples,
                    median: median(samples)?,
                })
            });
        let by_median = |a: &Entry<'_>, b: &Entry<'_>| a.median.total_cmp(&b.median);
        if self.unit.less_is_better() {
            entries.min_by(by_median)
        } else {
            entries.max_by(by_median)
        }
    }

    fn json(&self) -> Value {
        let rivals = self.samples.iter().map(|(rival, samples)| {
            json!({
                "rival": rival.family().name(),
                "runtime": rival.flavor().map(|flavor| flavor.name()),
                "median": median(samples),
                "rounds": samples,
                "ratio_to_bare": self.best_of(Family::Bare).and_then(|bare| ratio(samples, bare.samples)),
                "ratio_to_tarpc": self.best_of(Family::Tarpc).and_then(|tarpc| ratio(samples, tarpc.samples)),
            })
        });
        json!({
            "payload_bytes": self.load.payload_bytes,
            "in_flight": self.in_flight,
            "figure": self.what,
            "unit": self.unit.name(),
            "rivals": rivals.collect::<Vec<_>>(),
        })
    }
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) cores: usize,
    pub(crate) placement: Placement,
    pub(crate) plan: Plan,
    pub(crate) rows: Vec<Row>,
}

impl Report {
    pub(crate) fn json(&self) -> Value {
        json!({
            "machine": machine::describe(self.cores),
            "placement": self.placement.describe(),
            "versions": machine::versions().collect::<std::collections::BTreeMap<_, _>>(),
            "rounds": self.plan.rounds,
            "seconds": self.plan.time.as_secs_f64(),
            "figures": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
        })
    }

    pub(crate) fn table(&self) -> String {
        let mut table = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_table(&mut table);
        table
    }

    fn write_table(&self, table: &mut String) -> std::fmt::Result {
        writeln!(
            table,
            "| figure | rival | median | min | max | unit | to bare TCP | to tarpc | tokio runtime |"
        )?;
        writeln!(table, "|---|---|--:|--:|--:|---|--:|--:|---|")?;
        for row in &self.rows {
            let mut name = row.name();
            for family in Family::ALL {
                let Some(entry) = row.best_of(family) else {
                    continue;
                };
                let ratio_to = |other| {
                    row.best_of(other)
                        .and_then(|other| ratio(entry.samples, other.samples))
                        .map_or_else(String::new, |ratio| format!("{ratio:.2}"))
                };
                let show = |value| with_separators(value, row.unit);
                writeln!(
                    table,
                    "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                    // Only in the first row of each figure.
                    std::mem::take(&mut name),
                    family.name(),
                    show(entry.median),
                    show(entry.samples.iter().copied().fold(f64::INFINITY, f64::min)),
                    show(entry.samples.iter().copied().fold(0.0, f64::max)),
                    row.unit.name(),
                    ratio_to(Family::Bare),
                    ratio_to(Family::Tarpc),
                    entry.rival.flavor().map_or("", |flavor| flavor.name()),
                )?;
            }
        }
        let versions: Vec<_> = machine::versions()
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        writeln!(
            table,
            "\n{}. {}. Medians of {} rounds of {:?}; two processes on loopback, {}.",
            machine::describe(self.cores),
            versions.join(", "),
            self.plan.rounds,
            self.plan.time,
            self.placement.describe(),
        )
    }
}

/// `None` without samples.
fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len().is_multiple_of(2) {
        Some((sorted[sorted.len() / 2 - 1] + upper) / 2.0)
    } else {
        Some(upper)
    }
}

/// The median of the ratios of each round. Noise of a whole round affects both values, so the ratio cancels it.
fn ratio(samples: &[f64], others: &[f64]) -> Option<f64> {
    let ratios: Vec<_> = samples
        .iter()
        .zip(others)
        .map(|(sample, other)| sample / other)
        .collect();
    median(&ratios)
}

/// Formats `1234567.8` as `1,234,568`; times have one decimal place.
fn with_separators(value: f64, unit: Unit) -> String {
    let text = match unit {
        Unit::Microseconds => format!("{value:.1}"),
        Unit::CallsPerSecond | Unit::MegabytesPerSecond => format!("{value:.0}"),
    };
    let digits = text.find('.').unwrap_or(text.len());
    let mut separated = String::with_capacity(text.len() + digits / 3);
    for (index, character) in text.char_indices() {
        if index > 0 && index < digits && (digits - index).is_multiple_of(3) {
            separated.push(',');
        }
        separated.push(character);
    }
    separated
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load = Load {
        name: "64 B",
        payload_bytes: 64,
        in_flight: 64,
    };

    fn rows() -> [Row; 3] {
        let rivals = [
            Rival::Bare,
            Rival::TarpcMultiThread,
            Rival::TarpcCurrentThread,
        ];
        let mut rows = Row::of_load(LOAD, &rivals);
        for (index, values) in [[10.0, 20.0, 30.0], [20.0, 40.0, 30.0], [15.0, 30.0, 60.0]]
            .into_iter()
            .enumerate()
        {
            for value in values {
                for row in &mut rows {
                    row.push(index, value);
                }
            }
        }
        rows
    }

    #[test]
    fn ratios_compare_values_of_the_same_round() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[9.0, 1.0]), Some(5.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(ratio(&[20.0, 40.0, 30.0], &[10.0, 20.0, 30.0]), Some(2.0));
        assert_eq!(ratio(&[], &[1.0]), None);
    }

    #[test]
    fn the_better_runtime_is_the_faster_one_whatever_the_unit() {
        let mut rows = rows();
        rows[0].samples[1].1[2] = 80.0;
        rows[2].samples[1].1[2] = 80.0;
        let best = |row: &Row| row.best_of(Family::Tarpc).unwrap().rival;
        assert_eq!(best(&rows[0]), Rival::TarpcCurrentThread);
        assert_eq!(best(&rows[2]), Rival::TarpcMultiThread);
    }

    #[test]
    fn the_table_has_the_better_runtime_and_the_json_has_both() {
        let report = Report {
            cores: 2,
            placement: Placement::Free,
            plan: Plan::quick(),
            rows: rows().into(),
        };
        let table = report.table();
        let mut lines = table.lines().skip(2);
        assert_eq!(
            lines.next(),
            Some(
                "| 64 B, 1 in flight: p50 | bare TCP | 20.0 | 10.0 | 30.0 | us | 1.00 | 0.50 |  |"
            )
        );
        assert!(lines.next().unwrap().starts_with("|  | tarpc | 30.0 |"));
        assert!(!table.contains("tonic |"), "{table}");

        let json = report.json();
        let rivals = json["figures"][0]["rivals"].as_array().unwrap();
        let runtimes: Vec<_> = rivals.iter().map(|rival| &rival["runtime"]).collect();
        assert_eq!(
            runtimes,
            [
                &Value::Null,
                &json!("multi-thread"),
                &json!("current-thread")
            ]
        );
        assert_eq!(rivals[1]["ratio_to_bare"], json!(2.0));
    }

    #[test]
    fn throughput_of_large_payloads_is_in_bytes() {
        let large = Load {
            payload_bytes: 1 << 20,
            ..LOAD
        };
        let [_, _, row] = Row::of_load(large, &[]);
        assert_eq!(row.unit, Unit::MegabytesPerSecond);
        assert_eq!(row.unit.of_calls(1000.0, large), 1048.576);
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(with_separators(999.0, Unit::CallsPerSecond), "999");
        assert_eq!(
            with_separators(1_234_567.8, Unit::CallsPerSecond),
            "1,234,568"
        );
        assert_eq!(with_separators(1234.56, Unit::Microseconds), "1,234.6");
    }
}
