//! `c10d flight`: which collective each rank is in, and the first one at which ranks differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use c10d_inspect::flight::{FlightRecording, FlightReport, compare_flights};
use c10d_inspect::http::{HttpError, HttpRequest, HttpResponse, fetch_all};
use clap::Args;
use elastic_agent::local_time_text;

use crate::failure::Failure;
use crate::output::{print, print_line};
use crate::printable::printable_json;
use crate::stacks::job::{Job, Reach};
use crate::stacks::nobody;
use crate::stacks::probe::{AT_ONCE, FLIGHT_PATHS, TIMEOUT, Worker, flight_of, flight_requests};
use crate::status::{StatusArgs, get};

pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    all ranks have answered, whether they differ or not
  1    some ranks have not answered
  2    invalid arguments
  3    no connection to the store
  4    cannot write to standard output
  141  the reader of standard output closed it, as `head` does; no message";

/// How many ranks are asked at a time: what they answer is kept only until it is parsed.
const BATCH: usize = 64;

/// The most bytes of a launcher's answer for one recorder.
const LAUNCHER_BYTES_MAX: usize = 4 << 20;

/// How many ranks are listed in the text.
const LISTED_MAX: usize = 64;

/// Compares the flight recorders of all ranks that run PyTorch's debug server (2.15 or later): with
/// `c10d run --debug-server`, or torch.distributed.debug.start_debug_server(). They record collectives also without
/// a GPU. Ranks of a job that runs differ by one or two: times tell a hang.
#[derive(Debug, Args)]
pub(crate) struct FlightArgs {
    #[command(flatten)]
    status: StatusArgs,

    /// Prints the comparison as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Prints the comparison.
pub(crate) fn run(args: &FlightArgs) -> Result<(), Failure> {
    let job = Job::load(&args.status)?;
    let ranks: BTreeSet<usize> = job.report.ranks.iter().map(|rank| rank.rank).collect();
    if ranks.is_empty() {
        return Err(Failure::No(nobody(&job)));
    }
    let report = compare_all(&job, &ranks);
    if args.json {
        let json = serde_json::to_string(&report).unwrap_or_default();
        print_line(printable_json(&json))?;
    } else {
        let now = unix_time();
        print(to_text(&report, &|unix_ns| time_and_age(unix_ns, now)).as_bytes())?;
    }
    if report.ranks.iter().all(|rank| rank.error.is_none()) {
        Ok(())
    } else {
        Err(Failure::No(String::new()))
    }
}

/// Asks these ranks and compares what they have recorded. Blocks for 2 s or more for each 64 ranks of which one does not
/// answer.
pub(crate) fn compare_all(job: &Job, ranks: &BTreeSet<usize>) -> FlightReport {
    let (recordings, silent) = ask_all(&job.reach(ranks));
    let now = unix_time();
    compare_flights(&recordings, &silent, &|unix_ns| time_and_age(unix_ns, now))
}

fn unix_time() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// What each rank has recorded, or why that is unknown.
fn ask_all(reach: &Reach) -> (BTreeMap<usize, FlightRecording>, BTreeMap<usize, String>) {
    let mut recordings = BTreeMap::new();
    let mut silent = BTreeMap::new();
    let mut add =
        |rank: usize, results: &[Result<HttpResponse, HttpError>]| match flight_of(results) {
            Ok(recording) => {
                silent.remove(&rank);
                recordings.insert(rank, recording);
                true
            }
            Err(error) => {
                silent.insert(rank, error);
                false
            }
        };
    for batch in reach.workers.chunks(BATCH) {
        let mut open: Vec<&Worker> = batch.iter().collect();
        for turn in 0.. {
            open.retain(|worker| turn == 0 || worker.targets.len() > turn);
            if open.is_empty() {
                break;
            }
            let requests: Vec<HttpRequest> = open
                .iter()
                .flat_map(|worker| {
                    worker
                        .targets
                        .get(turn)
                        .map(flight_requests)
                        .unwrap_or_default()
                })
                .collect();
            let mut results = fetch_all(&requests, TIMEOUT, AT_ONCE).into_iter();
            open.retain(|worker| {
                let asked = if worker.targets.len() > turn {
                    FLIGHT_PATHS.len()
                } else {
                    0
                };
                let results: Vec<_> = results.by_ref().take(asked).collect();
                !add(worker.rank, &results)
            });
        }
    }
    for batch in reach.by_launcher.chunks(BATCH) {
        let requests: Vec<HttpRequest> = batch
            .iter()
            .flat_map(|(rank, address)| launcher_requests(*rank, *address, reach.token.as_deref()))
            .collect();
        let results = fetch_all(&requests, TIMEOUT * 2, AT_ONCE);
        for ((rank, _), results) in batch.iter().zip(results.chunks(FLIGHT_PATHS.len())) {
            add(*rank, results);
        }
    }
    (recordings, silent)
}

fn launcher_requests(
    rank: usize,
    address: SocketAddr,
    token: Option<&str>,
) -> impl Iterator<Item = HttpRequest> {
    (0..FLIGHT_PATHS.len()).map(move |recorder| {
        let path = format!("/flight?rank={rank}&recorder={recorder}");
        get(address, &path, token).with_limit(LAUNCHER_BYTES_MAX)
    })
}

/// "18:04:11 (41 s ago)", with the date before it after a day. The clock of another host can be ahead of this one.
fn time_and_age(unix_ns: u64, now: Duration) -> String {
    let at = Duration::from_nanos(unix_ns);
    let local = local_time_text(i64::try_from(at.as_secs()).unwrap_or(i64::MAX));
    let age = now.saturating_sub(at).as_secs();
    let shown = match local.split_once('_') {
        Some((_, time)) if age < 12 * 3600 => time.to_owned(),
        _ => local.replace('_', " "),
    };
    format!("{shown} ({age} s ago)")
}

fn to_text(report: &FlightReport, clock: &dyn Fn(u64) -> String) -> String {
    let mut text = format!("{}\n", report.headline);
    for finding in &report.findings {
        if !report.headline.starts_with(&finding.text) {
            let note = if finding.is_consequence {
                " (a consequence)"
            } else {
                ""
            };
            _ = writeln!(text, "{}{note}", finding.text);
        }
    }
    text.push('\n');
    for rank in report.ranks.iter().take(LISTED_MAX) {
        _ = match (&rank.error, &rank.current) {
            (Some(error), _) => writeln!(text, "rank {}: {}", rank.rank, printable_error(error)),
            (None, Some(current)) => writeln!(
                text,
                "rank {}: in collective {} of group {} since {}: {current}",
                rank.rank,
                current.number,
                current.group,
                clock(current.entered_unix_ns),
            ),
            (None, None) => {
                let progress: Vec<String> = rank
                    .groups
                    .iter()
                    .map(|group| format!("{} of group {}", group.entered, group.group))
                    .collect();
                let entered = match progress.len() {
                    0 => "nothing recorded".to_owned(),
                    _ => format!("has entered {}", progress.join(", ")),
                };
                writeln!(text, "rank {}: in no collective; {entered}", rank.rank)
            }
        };
    }
    if report.ranks.len() > LISTED_MAX {
        let more = report.ranks.len() - LISTED_MAX;
        _ = writeln!(text, "and {more} more ranks: --json shows all");
    }
    text
}

fn printable_error(error: &str) -> String {
    crate::printable::printable(&error.chars().take(200).collect::<String>())
}
