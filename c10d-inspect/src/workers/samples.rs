//! Asks launchers to observe their workers now, so that the next report includes the current activity of the workers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use c10d_socket::Cancel;

use super::route::Here;
use crate::http::{HttpRequest, Target, fetch_all};
use crate::report::NodeReport;

/// The path of the request at a launcher's port for questions.
pub const SAMPLE_PATH: &str = "/sample";

/// How many launchers are asked at a time. A launcher answers when it has read the stacks of its workers, which takes
/// some milliseconds for each worker.
const AT_ONCE: usize = 256;

/// How long all launchers may take together, so that `c10d why` can answer within 2 s.
const TIMEOUT: Duration = Duration::from_millis(1500);

/// The most bytes of an answer.
const ANSWER_BYTES_MAX: usize = 1 << 10;

/// Asks the launchers of these nodes. Returns how many have announced samples. Blocks for at most 1.5 s, or until `cancel`
/// ends it.
pub(super) fn ask<'n>(
    nodes: impl Iterator<Item = &'n NodeReport>,
    here: &Here<'_>,
    token: Option<&str>,
    cancel: &Cancel,
) -> usize {
    let end = Instant::now() + TIMEOUT;
    let addresses: BTreeSet<SocketAddr> = nodes
        .filter(|node| node.is_connected)
        .filter_map(|node| here.launcher(node))
        .collect();
    let requests: Vec<HttpRequest> = addresses
        .into_iter()
        .map(|address| {
            HttpRequest::get(Target::Tcp(address), SAMPLE_PATH)
                .with_token(token)
                .with_limit(ANSWER_BYTES_MAX)
                .with_cancel(cancel.clone())
        })
        .collect();
    let mut answered = 0;
    for requests in requests.chunks(AT_ONCE) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let answers = fetch_all(requests, left, AT_ONCE);
        answered += answers
            .iter()
            .filter(|answer| answer.as_ref().is_ok_and(|it| it.is_success()))
            .count();
    }
    answered
}
