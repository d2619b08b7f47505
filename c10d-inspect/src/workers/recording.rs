//! Reads the flight recorders of one rank.

use crate::flight::{FlightError, FlightRecording};
use crate::http::{HttpError, HttpRequest, HttpResponse, Target, fetch_all};

use super::reach::{AT_ONCE, TIMEOUT};

/// The most bytes of a flight recorder: four times a full one.
const BYTES_MAX: usize = 4 << 20;

/// The paths of a rank's flight recorders: the default path is Gloo's, and the other path is NCCL's.
const PATHS: [&str; 2] = [
    "/handler/fr_trace_json",
    "/handler/fr_trace_json?backend=nccl",
];

/// The number of a rank's flight recorders.
pub(super) const RECORDERS: usize = PATHS.len();

/// The reason why the flight recorders of a rank cannot be read, in a clause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The rank has no debug server.
    #[error("it has no debug server")]
    NoServer,

    /// The debug server does not answer.
    #[error("{}", no_answer(.0))]
    Http(#[from] HttpError),

    /// The debug server has no flight recorder, as before PyTorch 2.15.
    #[error(
        "its debug server has no flight recorder (HTTP status {status}): PyTorch 2.15 or later is needed"
    )]
    NoRecorder {
        /// The HTTP status of the answer.
        status: u16,
    },

    /// The answer is not a recording.
    #[error(transparent)]
    Format(#[from] FlightError),
}

fn no_answer(error: &HttpError) -> String {
    match error {
        HttpError::NoAnswer { timeout, .. } => {
            format!("its debug server does not answer within {timeout:?}")
        }
        error => error.to_string(),
    }
}

/// Returns the recordings of Gloo and NCCL, merged, of the rank with this debug server. Blocks for up
/// to 2 s.
///
/// # Errors
/// [`RecordingError`] if none of the recorders can be read, with the reason for the first recorder.
pub fn fetch_recording(target: &Target) -> Result<FlightRecording, RecordingError> {
    merged(fetch_all(&requests(target), TIMEOUT, AT_ONCE))
}

/// A request for each recorder of a rank.
pub(super) fn requests(target: &Target) -> [HttpRequest; RECORDERS] {
    PATHS.map(|path| HttpRequest::post(target.clone(), path).with_limit(BYTES_MAX))
}

/// A rank's recorders together. One of them is enough.
pub(super) fn merged(
    results: impl IntoIterator<Item = Result<HttpResponse, HttpError>>,
) -> Result<FlightRecording, RecordingError> {
    let mut merged: Option<FlightRecording> = None;
    let mut first_error = None;
    for result in results {
        match (parse(result), &mut merged) {
            (Ok(recording), Some(merged)) => merged.merge(recording),
            (Ok(recording), None) => merged = Some(recording),
            (Err(error), _) => _ = first_error.get_or_insert(error),
        }
    }
    merged.ok_or_else(|| first_error.unwrap_or(RecordingError::NoServer))
}

fn parse(result: Result<HttpResponse, HttpError>) -> Result<FlightRecording, RecordingError> {
    let answer = result?;
    if !answer.is_success() {
        let status = answer.status;
        return Err(RecordingError::NoRecorder { status });
    }
    Ok(FlightRecording::parse(&answer.body)?)
}
