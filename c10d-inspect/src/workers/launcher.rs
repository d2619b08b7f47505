//! The requests to a launcher, which answers for its workers so that ranks on other hosts can be reached, and its
//! answers.

use std::net::SocketAddr;
use std::time::Duration;

use super::probe;
use super::reach::{AT_ONCE, TIMEOUT, Worker};
use super::recording::{self, RECORDERS, RecordingError};
use crate::flight::FlightRecording;
use crate::http::{HttpError, HttpRequest, HttpResponse, Target, fetch, fetch_all};
use crate::stacks::RankAnswer;

/// How long a launcher has to answer for one of its workers: it may itself wait for the worker and its debug server, and
/// answers eight requests at a time.
const STACKS_TIMEOUT: Duration = Duration::from_secs(11);

/// How long a launcher may take to answer about a flight recorder.
const RECORDING_TIMEOUT: Duration = Duration::from_secs(4);

/// The most bytes of a launcher's answer about stacks.
const STACKS_BYTES_MAX: usize = 8 << 20;

/// The most bytes of a launcher's answer for one recorder.
const RECORDING_BYTES_MAX: usize = 4 << 20;

/// The answers of launchers for these ranks.
pub(super) fn ask_for_stacks(
    ranks: &[(usize, SocketAddr)],
    token: Option<&str>,
) -> Vec<RankAnswer> {
    let requests: Vec<HttpRequest> = ranks
        .iter()
        .map(|(rank, address)| {
            HttpRequest::get(Target::Tcp(*address), format!("/stacks?rank={rank}"))
                .with_token(token)
                .with_limit(STACKS_BYTES_MAX)
        })
        .collect();
    let results = fetch_all(&requests, STACKS_TIMEOUT, AT_ONCE);
    let pairs = ranks.iter().zip(results);
    pairs
        .map(|((rank, address), result)| {
            read_answer(*rank, result).unwrap_or_else(|reason| {
                let error = format!("its launcher at {address} does not say: {reason}");
                RankAnswer::failed(*rank, error)
            })
        })
        .collect()
}

fn read_answer(rank: usize, result: Result<HttpResponse, HttpError>) -> Result<RankAnswer, String> {
    let answer = result.map_err(|error| error.to_string())?;
    if !answer.is_success() {
        return Err(String::from_utf8_lossy(&answer.body).trim().to_owned());
    }
    let answer: RankAnswer =
        serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
    // An answer of another rank: its launcher has restarted its workers in the meantime.
    if answer.rank == rank {
        Ok(answer)
    } else {
        Err(format!("it answers for rank {}", answer.rank))
    }
}

/// Requests the recordings of these ranks from their launchers.
pub(super) fn ask_for_recordings(
    ranks: &[(usize, SocketAddr)],
    token: Option<&str>,
) -> Vec<(usize, Result<FlightRecording, RecordingError>)> {
    let requests: Vec<HttpRequest> = ranks
        .iter()
        .flat_map(|(rank, address)| (0..RECORDERS).map(move |recorder| (rank, address, recorder)))
        .map(|(rank, address, recorder)| {
            let path = format!("/flight?rank={rank}&recorder={recorder}");
            HttpRequest::get(Target::Tcp(*address), path)
                .with_token(token)
                .with_limit(RECORDING_BYTES_MAX)
        })
        .collect();
    let mut results = fetch_all(&requests, RECORDING_TIMEOUT, AT_ONCE).into_iter();
    ranks
        .iter()
        .map(|(rank, _)| (*rank, recording::merged(results.by_ref().take(RECORDERS))))
        .collect()
}

/// A launcher's answer to a GET of `path` about one of its workers, as a handler of a
/// [`RequestServer`](crate::http::RequestServer). `worker` finds the worker of the question, and for
/// [`Stacks`](Question::Stacks) [reads its stacks](Worker::with_stacks).
///
/// Blocks for as long as `worker`, and for up to 4 s if the worker has a debug server that is asked and does not answer.
#[must_use]
pub fn answer(path: &str, worker: impl FnOnce(Question) -> Option<Worker>) -> HttpResponse {
    let Some(question) = Question::parse(path) else {
        return HttpResponse::new(404, "the paths are /stacks?rank=R and /flight?rank=R\n");
    };
    let rank = question.rank();
    let Some(worker) = worker(question) else {
        return HttpResponse::new(
            404,
            format!("rank {rank} is not a worker of this launcher\n"),
        );
    };
    match question {
        Question::Stacks { .. } => {
            let answer = probe::ask(&[worker]).pop().unwrap_or_default();
            match serde_json::to_vec(&answer) {
                Ok(json) => HttpResponse::new(200, json),
                Err(error) => HttpResponse::new(500, format!("{error}\n")),
            }
        }
        Question::Flight { recorder, .. } => {
            let Some(target) = worker.targets.first() else {
                return HttpResponse::new(404, format!("{}\n", RecordingError::NoServer));
            };
            match fetch(&recording::requests(target)[recorder], TIMEOUT) {
                Ok(answer) => answer,
                Err(error) => HttpResponse::new(504, format!("{error}\n")),
            }
        }
    }
}

/// A question to a launcher about one of its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Question {
    /// `/stacks?rank=R`: its Python stacks.
    Stacks {
        /// The global rank of the worker.
        rank: usize,
    },
    /// `/flight?rank=R`: its flight recorder.
    Flight {
        /// The global rank of the worker.
        rank: usize,
        /// The recorder: 0 for PyTorch's, and 1 (`&recorder=1`) for NCCL's.
        recorder: usize,
    },
}

impl Question {
    fn parse(path: &str) -> Option<Self> {
        let (path, query) = path.split_once('?')?;
        let mut rank = None;
        let mut recorder = 0;
        for parameter in query.split('&') {
            match parameter.split_once('=')? {
                ("rank", value) => rank = Some(value.parse().ok()?),
                ("recorder", value) => recorder = value.parse().ok()?,
                _ => return None,
            }
        }
        let rank = rank?;
        match path {
            "/stacks" => Some(Self::Stacks { rank }),
            "/flight" if recorder < RECORDERS => Some(Self::Flight { rank, recorder }),
            _ => None,
        }
    }

    /// The global rank of the worker.
    #[must_use]
    pub const fn rank(self) -> usize {
        match self {
            Self::Stacks { rank } | Self::Flight { rank, .. } => rank,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_two_questions_are_understood() {
        assert_eq!(
            Question::parse("/stacks?rank=2"),
            Some(Question::Stacks { rank: 2 })
        );
        let flight = Question::Flight {
            rank: 2,
            recorder: 1,
        };
        assert_eq!(Question::parse("/flight?rank=2&recorder=1"), Some(flight));
        for path in [
            "/",
            "/stacks",
            "/stacks?rank=",
            "/stacks?rank=-1",
            "/stacks?rank=1&path=/etc",
            "/flight?rank=1&recorder=2",
            "/flight?recorder=0",
            "/handler/dump_traceback?rank=1",
            "//evil/stacks?rank=1",
        ] {
            assert_eq!(Question::parse(path), None, "{path}");
        }
    }
}
