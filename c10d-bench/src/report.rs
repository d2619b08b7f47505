//! Figures of a benchmark, printed as a table or as JSON.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::failure::Failure;

/// The unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    OperationsPerSecond,
    Microseconds,
    Milliseconds,
    Percent,
    GigabytesPerSecond,
    Bytes,
    /// Connections, requests and the like.
    Count,
}

impl Unit {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::OperationsPerSecond => "ops/s",
            Self::Microseconds => "us",
            Self::Milliseconds => "ms",
            Self::Percent => "%",
            Self::GigabytesPerSecond => "GB/s",
            Self::Bytes => "bytes",
            Self::Count => "",
        }
    }

    pub(super) const fn decimals(self) -> usize {
        match self {
            Self::OperationsPerSecond | Self::Bytes => 0,
            Self::Microseconds | Self::Milliseconds | Self::Count => 1,
            Self::GigabytesPerSecond | Self::Percent => 2,
        }
    }
}

/// The samples of one figure.
#[derive(Debug, Clone, Default)]
pub(super) struct Samples(Vec<f64>);

impl Samples {
    pub(super) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// `None` without samples.
    pub(super) fn median(&self) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        if sorted.len().is_multiple_of(2) {
            Some((sorted.get(middle.checked_sub(1)?)? + sorted[middle]) / 2.0)
        } else {
            Some(sorted[middle])
        }
    }

    pub(super) fn min(&self) -> Option<f64> {
        self.0.iter().copied().min_by(f64::total_cmp)
    }

    pub(super) fn max(&self) -> Option<f64> {
        self.0.iter().copied().max_by(f64::total_cmp)
    }

    /// Each sample divided by the floor's of the same round.
    fn ratios(&self, floor: &Self) -> Self {
        self.compared(floor, |value, floor| value / floor)
    }

    /// Each sample less the floor's of the same round.
    fn differences(&self, floor: &Self) -> Self {
        self.compared(floor, |value, floor| value - floor)
    }

    fn compared(&self, floor: &Self, compare: impl Fn(f64, f64) -> f64) -> Self {
        let pairs = self.0.iter().zip(&floor.0);
        Self(
            pairs
                .map(|(value, floor)| compare(*value, *floor))
                .collect(),
        )
    }
}

impl Extend<f64> for Samples {
    fn extend<I: IntoIterator<Item = f64>>(&mut self, values: I) {
        self.0.extend(values);
    }
}

/// The goal of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Goal {
    RatioAtLeast(f64),
    RatioAtMost(f64),
    AtLeast(f64),
    AtMost(f64),
    /// The median of the differences to the floor of the same round.
    AboveFloorAtMost(f64),
}

impl Goal {
    /// Returns the goal's name in JSON, the start of its text in a table, and its value.
    const fn parts(self) -> (&'static str, &'static str, f64) {
        match self {
            Self::RatioAtLeast(value) => ("ratio_at_least", "ratio >=", value),
            Self::RatioAtMost(value) => ("ratio_at_most", "ratio <=", value),
            Self::AtLeast(value) => ("at_least", ">=", value),
            Self::AtMost(value) => ("at_most", "<=", value),
            Self::AboveFloorAtMost(value) => ("above_floor_at_most", "<= floor +", value),
        }
    }
}

/// A figure of a benchmark.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) unit: Unit,
    pub(super) samples: Samples,
    /// The floor's samples, one per round; empty if it was not measured.
    pub(super) floor: Samples,
    pub(super) goal: Option<Goal>,
}

impl Row {
    pub(super) fn new(name: impl Into<String>, unit: Unit) -> Self {
        Self {
            name: name.into(),
            unit,
            samples: Samples::default(),
            floor: Samples::default(),
            goal: None,
        }
    }

    /// Adds a sample, of the floor or of the measured software.
    pub(super) fn push(&mut self, is_floor: bool, value: f64) {
        if is_floor {
            self.floor.push(value);
        } else {
            self.samples.push(value);
        }
    }

    /// The median ratio of the server's figure to the floor's of the same round.
    fn ratio(&self) -> Option<f64> {
        self.samples.ratios(&self.floor).median()
    }

    /// `None` without a goal, or without the figures that it needs.
    fn goal_is_met(&self) -> Option<bool> {
        Some(match self.goal? {
            Goal::RatioAtLeast(least) => self.ratio()? >= least,
            Goal::RatioAtMost(most) => self.ratio()? <= most,
            Goal::AtLeast(least) => self.samples.median()? >= least,
            Goal::AtMost(most) => self.samples.median()? <= most,
            Goal::AboveFloorAtMost(most) => self.samples.differences(&self.floor).median()? <= most,
        })
    }

    fn goal_text(&self) -> String {
        let Some(goal) = self.goal else {
            return String::new();
        };
        let (_, text, value) = goal.parts();
        let text = match goal {
            Goal::RatioAtLeast(_) | Goal::RatioAtMost(_) => format!("{text} {value}"),
            _ => format!("{text} {}", with_separators(value, self.unit.decimals())),
        };
        match self.goal_is_met() {
            Some(true) => format!("{text} met"),
            Some(false) => format!("{text} MISSED"),
            None => text,
        }
    }

    /// Formats the figure for a table with different columns than a row: one value, or the median, the maximum and the
    /// number of values.
    pub(super) fn cell(&self) -> String {
        let decimals = self.unit.decimals() - usize::from(self.unit == Unit::Count);
        let show = |value: Option<f64>| value.map(|it| with_separators(it, decimals));
        let (median, max) = (show(self.samples.median()), show(self.samples.max()));
        let unit = if self.unit.name().is_empty() { "" } else { " " };
        let unit = format!("{unit}{}", self.unit.name());
        let text = match (self.samples.0.len(), median, max) {
            (1, Some(value), _) => format!("{value}{unit}"),
            (count, Some(median), Some(max)) => format!("{median} / {max}{unit} ({count})"),
            _ => return String::new(),
        };
        match self.goal_text() {
            goal if goal.is_empty() => text,
            goal => format!("{text} ({goal})"),
        }
    }

    fn json(&self) -> Value {
        let mut row = Map::new();
        row.insert("name".into(), json!(self.name));
        row.insert("unit".into(), json!(self.unit.name()));
        row.insert("median".into(), json!(self.samples.median()));
        row.insert("min".into(), json!(self.samples.min()));
        row.insert("max".into(), json!(self.samples.max()));
        row.insert("rounds".into(), json!(self.samples.0));
        let optional = [
            ("floor_median", self.floor.median()),
            ("ratio_to_floor", self.ratio()),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                row.insert(name.into(), json!(value));
            }
        }
        if let Some(goal) = self.goal {
            let (what, _, value) = goal.parts();
            row.insert(
                "goal".into(),
                json!({ what: value, "met": self.goal_is_met() }),
            );
        }
        Value::Object(row)
    }
}

/// Measures rows in `rounds` after a warm-up: with the floor, or only the measured software. The two are measured in
/// turn, so that other load affects both, and each is measured first in every second round, because the second
/// measurement finds caches filled by the first.
pub(super) fn measure_in_turn<const N: usize>(
    rows: &mut [Row; N],
    rounds: usize,
    has_floor: bool,
    mut measure: impl FnMut(bool) -> Result<[f64; N], Failure>,
) -> Result<(), Failure> {
    for round in 0..=rounds {
        for is_floor in order(round) {
            if is_floor && !has_floor {
                continue;
            }
            let figures = measure(is_floor)?;
            if round > 0 {
                for (row, figure) in rows.iter_mut().zip(figures) {
                    row.push(is_floor, figure);
                }
            }
        }
    }
    Ok(())
}

/// Whether the first and the second measurement of a round is the floor.
pub(super) const fn order(round: usize) -> [bool; 2] {
    let floor_first = !round.is_multiple_of(2);
    [floor_first, !floor_first]
}

/// The result of a benchmark.
#[derive(Debug)]
pub(super) struct Report {
    /// The measured subject, in words.
    pub(super) subject: String,
    /// Facts that a reader of the figures must know.
    pub(super) notes: Vec<String>,
    pub(super) rows: Vec<Row>,
}

impl Report {
    /// Prints one JSON object, or a table.
    pub(super) fn print(&self, as_json: bool) -> Result<(), Failure> {
        if as_json {
            print_line(self.json())
        } else {
            print(&self.table())
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "subject": self.subject,
            "notes": self.notes,
            "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
        })
    }

    pub(super) fn table(&self) -> String {
        const HEADINGS: [&str; 8] = ["", "median", "min", "max", "unit", "floor", "ratio", "goal"];
        let mut lines = vec![HEADINGS.map(str::to_owned)];
        lines.extend(self.rows.iter().map(|row| {
            let decimals = row.unit.decimals();
            let show = |value: Option<f64>| {
                value.map_or_else(String::new, |value| with_separators(value, decimals))
            };
            [
                row.name.clone(),
                show(row.samples.median()),
                show(row.samples.min()),
                show(row.samples.max()),
                row.unit.name().to_owned(),
                show(row.floor.median()),
                row.ratio()
                    .map_or_else(String::new, |ratio| format!("{ratio:.3}")),
                row.goal_text(),
            ]
        }));
        let mut table = format!("{}\n{}", self.subject, aligned(&lines, &[0, 4, 7]));
        for note in &self.notes {
            table.push_str("note: ");
            table.push_str(note);
            table.push('\n');
        }
        table
    }
}

/// Aligns the lines of a table, whose first line has the headings. Omits columns without cells; aligns the columns of
/// words left, and all other columns right.
pub(super) fn aligned<const N: usize>(lines: &[[String; N]], words: &[usize]) -> String {
    let mut widths = [0; N];
    for line in lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let shown = |column: usize| lines[1..].iter().any(|line| !line[column].is_empty());
    let mut table = String::new();
    for line in lines {
        let mut text = String::new();
        for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
            // Writing to a string cannot fail.
            let _ = match column {
                _ if !shown(column) => Ok(()),
                _ if words.contains(&column) => write!(text, "{cell:<width$}  "),
                _ => write!(text, "{cell:>width$}  "),
            };
        }
        table.push_str(text.trim_end());
        table.push('\n');
    }
    table
}

/// `1234567.8` as `1,234,568`.
fn with_separators(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let digits = text.find('.').unwrap_or(text.len());
    let mut separated = String::with_capacity(text.len() + digits / 3);
    for (index, character) in text.char_indices() {
        if index > 0
            && index < digits
            && (digits - index).is_multiple_of(3)
            && &text[..index] != "-"
        {
            separated.push(',');
        }
        separated.push(character);
    }
    separated
}

pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    written.map_err(|error| Failure::output(&error))
}

pub(crate) fn print_line(answer: impl std::fmt::Display) -> Result<(), Failure> {
    print(&format!("{answer}\n"))
}

/// Repeats an operation for `time`, at least once. Returns how long each took.
pub(super) fn repeat<E>(
    time: Duration,
    mut operation: impl FnMut() -> Result<(), E>,
) -> Result<Vec<Duration>, E> {
    let mut times = Vec::new();
    let mut started = Instant::now();
    let end = started + time;
    while times.is_empty() || started < end {
        operation()?;
        times.push(started.elapsed());
        started = Instant::now();
    }
    Ok(times)
}

/// The median and the 99th percentile in microseconds. `times` holds at least one.
pub(super) fn percentiles(times: &mut [Duration]) -> [f64; 2] {
    times.sort_unstable();
    let last = times.len() - 1;
    [last / 2, last * 99 / 100].map(|index| times[index].as_nanos() as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Samples {
        Samples(values.to_vec())
    }

    #[test]
    fn a_median_of_an_even_number_is_the_mean_of_the_middle_two() {
        assert_eq!(samples(&[]).median(), None);
        assert_eq!(samples(&[3.0]).median(), Some(3.0));
        assert_eq!(samples(&[9.0, 1.0]).median(), Some(5.0));
        assert_eq!(samples(&[9.0, 1.0, 2.0]).median(), Some(2.0));
    }

    #[test]
    fn the_floor_is_first_in_every_second_round() {
        assert_eq!([order(0), order(1)], [[false, true], [true, false]]);
        let mut rows = [Row::new("add", Unit::OperationsPerSecond)];
        let mut measured = Vec::new();
        measure_in_turn(&mut rows, 2, true, |is_floor| {
            measured.push(is_floor);
            Ok([measured.len() as f64])
        })
        .unwrap();
        assert_eq!(measured, [false, true, true, false, false, true]);
        // Round 0 is the warm-up.
        let [row] = &rows;
        assert_eq!(
            (&row.samples.0[..], &row.floor.0[..]),
            (&[4.0, 5.0][..], &[3.0, 6.0][..])
        );
    }

    #[test]
    fn numbers_are_grouped() {
        let table = [
            (0.0, 0, "0"),
            (999.0, 0, "999"),
            (1000.0, 0, "1,000"),
            (1_234_567.8, 0, "1,234,568"),
            (1234.56, 1, "1,234.6"),
            (-123.0, 0, "-123"),
        ];
        for (value, decimals, text) in table {
            assert_eq!(with_separators(value, decimals), text);
        }
    }

    #[test]
    fn a_goal_is_judged_by_the_median_of_the_ratios_per_round() {
        let mut row = Row::new("add", Unit::OperationsPerSecond);
        row.samples = samples(&[90.0, 190.0, 50.0]);
        row.goal = Some(Goal::RatioAtLeast(0.93));
        assert_eq!((row.ratio(), row.goal_is_met()), (None, None));
        row.floor = samples(&[100.0, 200.0, 50.0]);
        assert_eq!((row.ratio(), row.goal_is_met()), (Some(0.95), Some(true)));
        row.goal = Some(Goal::RatioAtMost(0.94));
        assert_eq!(row.goal_is_met(), Some(false));
        row.goal = Some(Goal::AtLeast(90.0));
        assert_eq!(row.goal_text(), ">= 90 met");
        row.goal = Some(Goal::AtMost(89.0));
        assert_eq!(row.goal_text(), "<= 89 MISSED");
        row.goal = Some(Goal::AboveFloorAtMost(0.0));
        assert_eq!(row.goal_text(), "<= floor + 0 met");
    }

    #[test]
    fn the_table_and_the_json_agree() {
        let mut row = Row::new("add", Unit::OperationsPerSecond);
        row.samples = samples(&[1500.0, 1000.0, 2000.0]);
        row.floor = samples(&[3000.0, 2000.0, 4000.0]);
        row.goal = Some(Goal::RatioAtLeast(0.93));
        let report = Report {
            subject: "a server".to_owned(),
            notes: vec!["one core".to_owned()],
            rows: vec![row],
        };
        assert_eq!(
            report.table(),
            "a server\n     median    min    max  unit   floor  ratio  goal\n\
     add   1,500  1,000  2,000  ops/s  3,000  0.500  ratio >= 0.93 MISSED\n\
     note: one core\n"
        );
        let json = report.json();
        let row = &json["rows"][0];
        assert_eq!(
            (&row["name"], &row["median"]),
            (&json!("add"), &json!(1500.0))
        );
        assert_eq!(
            (&row["ratio_to_floor"], &row["goal"]["met"]),
            (&json!(0.5), &json!(false))
        );
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_times() {
        let mut times: Vec<_> = (1..=201).rev().map(Duration::from_micros).collect();
        assert_eq!(percentiles(&mut times), [101.0, 199.0]);
        assert_eq!(percentiles(&mut [Duration::from_micros(7)]), [7.0, 7.0]);
    }
}
