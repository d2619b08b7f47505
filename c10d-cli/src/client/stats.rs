//! `c10d store stats`: the counters of a server, and how fast they change.

use std::thread;
use std::time::{Duration, Instant};

use c10d_inspect::http::{StatusError, StatusPages, StoreCounters};
use c10d_socket::printable;
use clap::Args;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::failure::Failure;
use crate::output::{print, print_json, print_line};
use crate::quantity::parse_duration_from;
use crate::status::{StatusArgs, ask_following};

/// Shorter intervals would measure the command itself.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// Print a line after each interval, until it is interrupted: 1s, 500ms. At least 100ms.
    #[arg(long, value_name = "TIME", value_parser = interval)]
    interval: Option<Duration>,

    /// Print the counters as one JSON object, or with --interval one for each line, with "rates" per second.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    status: StatusArgs,
}

fn interval(text: &str) -> Result<Duration, String> {
    parse_duration_from(INTERVAL_MIN, text)
}

/// The counters at one time.
#[derive(Debug)]
struct Sample {
    at: Instant,
    time: Timestamp,
    json: Value,
    counters: StoreCounters,
}

pub(super) fn run(args: &StatsArgs) -> Result<(), Failure> {
    let pages = args.status.open()?;
    let mut before = sample(&pages)?;
    let Some(interval) = args.interval else {
        return match args.json {
            true => print_json(&before.json),
            false => print(totals(&before.counters).as_bytes()),
        };
    };
    if !args.json {
        print_line(HEADING)?;
    }
    loop {
        let due = before.at + interval;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let now = ask_following(&pages, sample)?;
        let seconds = now.at.duration_since(before.at).as_secs_f64();
        let rates = rates_between(&before.counters, &now.counters, seconds);
        if args.json {
            let mut json = now.json.clone();
            json["time"] = format!("{:.3}", now.time).into();
            json["rates"] = json_of(&rates);
            print_json(&json)?;
        } else {
            print_line(line(now.time, &now.counters, &rates))?;
        }
        before = now;
    }
}

fn sample(pages: &StatusPages) -> Result<Sample, StatusError> {
    let json: Value = pages.get("/stats.json")?;
    let counters = StoreCounters::deserialize(&json)
        .map_err(|error| pages.not_understood("/stats.json", error))?;
    Ok(Sample {
        at: Instant::now(),
        time: Timestamp::now(),
        json,
        counters,
    })
}

/// The counters whose changes are shown.
const CHANGING: [&str; 5] = [
    "requests",
    "received_bytes",
    "sent_bytes",
    "opened",
    "closed",
];

/// Changes per second of [`CHANGING`].
type Rates = [f64; CHANGING.len()];

/// A counter that is smaller than before belongs to a restarted server, and counts from 0.
fn rates_between(before: &StoreCounters, now: &StoreCounters, seconds: f64) -> Rates {
    let counts = |of: &StoreCounters| {
        let closed = of.closed_by_peer + of.closed_by_failure + of.closed_by_refusal;
        [
            of.requests_total,
            of.received_bytes,
            of.sent_bytes,
            of.opened,
            closed,
        ]
    };
    let (before, now) = (counts(before), counts(now));
    std::array::from_fn(|at| {
        let change = now[at].checked_sub(before[at]).unwrap_or(now[at]);
        change as f64 / seconds.max(1e-3)
    })
}

fn json_of(rates: &Rates) -> Value {
    let rounded = rates.map(|rate| (rate * 1000.0).round() / 1000.0);
    let named = CHANGING.into_iter().zip(rounded);
    named.collect()
}

const HEADING: &str = "TIME                      CONNECTIONS  WAITS    KEYS   STORED B  REQUESTS/S  RECEIVED B/S    SENT B/S  OPENED/S  CLOSED/S";

fn line(time: Timestamp, counters: &StoreCounters, rates: &Rates) -> String {
    let [requests, received, sent, opened, closed] = rates;
    format!(
        "{time:.3}  {:>11}  {:>5}  {:>6}  {:>9}  {:>10.1}  {:>12.0}  {:>10.0}  {:>8.1}  {:>8.1}",
        counters.connections,
        counters.waits,
        counters.keys,
        counters.stored_bytes,
        requests,
        received,
        sent,
        opened,
        closed,
    )
}

/// All counters, one in each line.
fn totals(counters: &StoreCounters) -> String {
    let lines = [
        ("connections", counters.connections as u64),
        ("waits", counters.waits as u64),
        ("keys", counters.keys as u64),
        ("stored bytes", counters.stored_bytes as u64),
        ("received bytes", counters.received_bytes),
        ("sent bytes", counters.sent_bytes),
        ("connections opened", counters.opened),
        ("closed by peer", counters.closed_by_peer),
        ("closed by failure", counters.closed_by_failure),
        ("closed by refusal", counters.closed_by_refusal),
        ("turned away", counters.rejected),
        ("HTTP connections", counters.handed_over),
        ("waits cancelled", counters.waits_cancelled),
        ("requests", counters.requests_total),
    ];
    let lines = lines.map(|(name, count)| (name.to_owned(), count));
    let by_command = counters.requests.iter();
    let by_command =
        by_command.map(|(name, count)| (format!("  {}", printable(name, usize::MAX)), *count));
    let line = |(name, count)| format!("{name:<20}{count:>14}\n");
    lines.into_iter().chain(by_command).map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn counters(json: Value) -> StoreCounters {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn rates_are_changes_per_second() {
        let before = counters(json!({
            "requests_total": 100, "received_bytes": 1000, "opened": 5, "closed_by_peer": 1
        }));
        let now = counters(json!({
            "requests_total": 300, "received_bytes": 5000, "opened": 5, "closed_by_peer": 2,
            "closed_by_failure": 3, "connections": 4, "waits": 3, "keys": 12, "stored_bytes": 999
        }));
        let rates = rates_between(&before, &now, 2.0);
        assert_eq!(
            json_of(&rates),
            json!({
                "requests": 100.0, "received_bytes": 2000.0, "sent_bytes": 0.0, "opened": 0.0,
                "closed": 2.0
            })
        );
        let time = "2026-11-22T14:00:00Z".parse().unwrap();
        let line = line(time, &now, &rates);
        assert_eq!(
            line.split_whitespace().collect::<Vec<_>>(),
            [
                "2026-11-22T14:00:00.000Z",
                "4",
                "3",
                "12",
                "999",
                "100.0",
                "2000",
                "0",
                "0.0",
                "2.0"
            ]
        );
        assert_eq!(line.len(), HEADING.len());
        let restarted = rates_between(&now, &before, 1.0);
        assert_eq!(restarted[0], 100.0);
        assert!(rates_between(&before, &now, 0.0)[0].is_finite());
    }

    #[test]
    fn totals_name_each_command() {
        let text = totals(&counters(json!({
            "requests": [["SET", 4], ["WAIT\u{1b}", 2]], "requests_total": 6, "keys": 4
        })));
        assert!(
            text.contains("keys                             4\n"),
            "{text}"
        );
        let commands = text
            .lines()
            .rev()
            .take(2)
            .map(|line| line.split_whitespace());
        let commands: Vec<String> = commands.flatten().map(str::to_owned).collect();
        assert_eq!(commands, ["WAIT\\u{1b}", "2", "SET", "4"]);
        assert!(text.lines().all(|line| line.len() == 34), "{text}");
    }

    #[test]
    fn an_interval_has_a_minimum() {
        assert_eq!(interval("1s"), Ok(Duration::from_secs(1)));
        assert!(interval("99ms").is_err());
    }
}
