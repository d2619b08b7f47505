//! The table of `--summary`: where the time of this node went. Pure.

use std::fmt;
use std::time::Duration;

use crate::agent::RoundRecord;

use super::round;

/// The most rounds of the table: the first and the last ones of a job that restarts often.
const ROWS_FIRST: usize = 10;
const ROWS_LAST: usize = 10;

/// The rounds so far.
#[derive(Debug, Default)]
pub(super) struct Summary {
    first: Vec<Row>,
    last: Vec<Row>,
    left_out: usize,
    total: Duration,
    /// Whether any round has reported steps.
    has_steps: bool,
    ran: Duration,
    productive: Duration,
    restarts_used: usize,
    restarts_left: usize,
}

#[derive(Debug)]
struct Row {
    round: Option<i64>,
    ended: &'static str,
    meeting: Duration,
    first_step: Option<Duration>,
    ran: Duration,
    /// Zero if the workers have reported no step, as then it is not known when they were done with their imports.
    productive: Duration,
    stop: Duration,
    total: Duration,
    last_step: Option<u64>,
}

impl Summary {
    pub(super) fn add(&mut self, record: &RoundRecord) {
        let phases = &record.phases;
        let row = Row {
            round: record.started.as_ref().map(|started| started.round),
            ended: round::ending(&record.ending).0,
            meeting: phases.rendezvous + phases.ranks + phases.start,
            first_step: record.first_progress,
            ran: phases.run,
            productive: productive(record),
            stop: phases.stop,
            total: phases.total(),
            last_step: record.last_step,
        };
        self.restarts_used = record.restarts;
        self.restarts_left = record.restarts_left;
        self.push(row);
    }

    fn push(&mut self, row: Row) {
        self.total += row.total;
        self.ran += row.ran;
        self.productive += row.productive;
        self.has_steps |= row.first_step.is_some();
        if self.first.len() < ROWS_FIRST {
            self.first.push(row);
            return;
        }
        if self.last.len() == ROWS_LAST {
            self.last.remove(0);
            self.left_out += 1;
        }
        self.last.push(row);
    }
}

/// From the first progress to the last.
fn productive(record: &RoundRecord) -> Duration {
    match (record.first_progress, record.last_progress) {
        (Some(first), Some(last)) => last.saturating_sub(first).min(record.phases.run),
        _ => Duration::ZERO,
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "where the time of this node went, in seconds:")?;
        writeln!(
            f,
            "{:>6}  {:<15} {:>9} {:>10} {:>10} {:>10} {:>8} {:>10}  last step",
            "round", "ended", "meeting", "ran", "first step", "productive", "stop", "total"
        )?;
        for row in &self.first {
            writeln!(f, "{row}")?;
        }
        if self.left_out > 0 {
            writeln!(f, "        ... {} more rounds", self.left_out)?;
        }
        for row in &self.last {
            writeln!(f, "{row}")?;
        }
        let total = self.total.as_secs_f64();
        let share = |part: Duration| match total {
            0.0 => 0.0,
            total => 100.0 * part.as_secs_f64() / total,
        };
        write!(f, "total {total:.1} s: ")?;
        if self.has_steps {
            write!(
                f,
                "{:.1} s productive ({:.0} %), {:.1} s lost",
                self.productive.as_secs_f64(),
                share(self.productive),
                self.total.saturating_sub(self.productive).as_secs_f64(),
            )?;
        } else {
            write!(
                f,
                "workers ran for {:.1} s ({:.0} %), imports included (no worker has reported a step: see --progress-file)",
                self.ran.as_secs_f64(),
                share(self.ran),
            )?;
        }
        writeln!(
            f,
            "; {} restarts used, {} left",
            self.restarts_used, self.restarts_left
        )
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let round = self.round.map_or("-".to_owned(), |round| round.to_string());
        let seconds = |time: Option<Duration>| {
            time.map_or("-".to_owned(), |time| format!("{:.1}", time.as_secs_f64()))
        };
        let productive = self.first_step.map(|_| self.productive);
        let step = self
            .last_step
            .map_or("-".to_owned(), |step| step.to_string());
        write!(
            f,
            "{round:>6}  {:<15} {:>9.1} {:>10.1} {:>10} {:>10} {:>8.1} {:>10.1}  {step}",
            self.ended,
            self.meeting.as_secs_f64(),
            self.ran.as_secs_f64(),
            seconds(self.first_step),
            seconds(productive),
            self.stop.as_secs_f64(),
            self.total.as_secs_f64(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn row(round: i64, ended: &'static str, productive: u64, step: Option<u64>) -> Row {
        Row {
            round: Some(round),
            ended,
            meeting: Duration::from_millis(1250),
            first_step: step.map(|_| seconds(30)),
            ran: seconds(productive + 30),
            productive: step.map_or(Duration::ZERO, |_| seconds(productive)),
            stop: seconds(5),
            total: seconds(productive + 40),
            last_step: step,
        }
    }

    #[test]
    fn the_table_shows_rounds_and_their_sum() {
        let mut summary = Summary::default();
        summary.push(row(0, "stuck", 100, Some(1700)));
        summary.push(row(1, "succeeded", 220, None));
        summary.restarts_used = 1;
        summary.restarts_left = 2;
        assert_eq!(
            summary.to_string(),
            "where the time of this node went, in seconds:\n \
             round  ended             meeting        ran first step productive     stop      total  last step\n     \
             0  stuck                 1.2      130.0       30.0      100.0      5.0      140.0  1700\n     \
             1  succeeded             1.2      250.0          -          -      5.0      260.0  -\n\
             total 400.0 s: 100.0 s productive (25 %), 300.0 s lost; 1 restarts used, 2 left\n"
        );
    }

    #[test]
    fn a_job_of_many_rounds_has_a_short_table_and_a_whole_sum() {
        let mut summary = Summary::default();
        for round in 0..1000 {
            summary.push(row(round, "failed", 60, None));
        }
        let text = summary.to_string();
        assert_eq!(
            text.lines().count(),
            2 + ROWS_FIRST + 1 + ROWS_LAST + 1,
            "{text}"
        );
        assert!(text.contains("\n        ... 980 more rounds\n"), "{text}");
        assert!(
            text.contains("\ntotal 100000.0 s: workers ran for 90000.0 s (90 %), imports included"),
            "{text}"
        );
    }

    #[test]
    fn an_empty_job_has_a_table() {
        assert!(
            Summary::default()
                .to_string()
                .contains("total 0.0 s: workers ran for 0.0 s (0 %)")
        );
    }
}
