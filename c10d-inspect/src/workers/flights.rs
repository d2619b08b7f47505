//! Reads the flight recorders of many ranks.

use std::collections::BTreeMap;

use super::launcher;
use super::reach::Reach;
use super::reach::{AT_ONCE, TIMEOUT, Worker};
use super::recording::{self, RECORDERS, RecordingError};
use crate::flight::{FlightRecording, FlightReport, compare_flights};
use crate::http::{HttpRequest, fetch_all};
use crate::report::Report;

/// How many ranks are asked at a time. Their answers are kept only until they are parsed.
const BATCH: usize = 64;

/// Asks ranks and compares what they have recorded.
pub(super) fn compare(
    reach: &Reach,
    job: &Report,
    token: Option<&str>,
    clock: &dyn Fn(u64) -> String,
) -> FlightReport {
    let mut known = Known::default();
    for batch in reach.workers.chunks(BATCH) {
        ask_workers(batch, &mut known);
    }
    for batch in reach.by_launcher.chunks(BATCH) {
        for (rank, recording) in launcher::ask_for_recordings(batch, token) {
            known.add(rank, recording);
        }
    }
    compare_flights(&known.recordings, &known.silent, job, clock)
}

/// The recording of each rank, or why it is unknown.
#[derive(Debug, Default)]
struct Known {
    recordings: BTreeMap<usize, FlightRecording>,
    silent: BTreeMap<usize, String>,
}

impl Known {
    fn add(&mut self, rank: usize, recording: Result<FlightRecording, RecordingError>) {
        match recording {
            Ok(recording) => {
                self.silent.remove(&rank);
                self.recordings.insert(rank, recording);
            }
            Err(error) => {
                self.silent.insert(rank, error.to_string());
            }
        }
    }
}

/// Asks each rank's debug servers in turn until one has a recording.
fn ask_workers(workers: &[Worker], known: &mut Known) {
    for worker in workers {
        known.add(worker.rank, Err(RecordingError::NoServer));
    }
    for turn in 0.. {
        let silent = workers
            .iter()
            .filter(|worker| known.silent.contains_key(&worker.rank));
        let asked: Vec<_> = silent
            .filter_map(|worker| Some((worker.rank, worker.targets.get(turn)?)))
            .collect();
        if asked.is_empty() {
            break;
        }
        let requests: Vec<HttpRequest> = asked
            .iter()
            .flat_map(|(_, target)| recording::requests(target))
            .collect();
        let mut results = fetch_all(&requests, TIMEOUT, AT_ONCE).into_iter();
        for (rank, _) in asked {
            known.add(rank, recording::merged(results.by_ref().take(RECORDERS)));
        }
    }
}
