//! Asks the server for what `c10d top` shows.

use c10d_inspect::http::{JobPages, StatusError};

use super::model::{Answer, CHUNK, Overview, Request};

/// Executes a request.
pub(super) fn answer(pages: &mut JobPages, request: Request) -> Answer {
    let answer = match request {
        Request::Overview => overview(pages).map(Answer::Overview),
        Request::Rows { chunk } => {
            let from = chunk.saturating_mul(CHUNK);
            let rows = pages.ranks(from..from.saturating_add(CHUNK));
            rows.map(|rows| Answer::Rows { chunk, rows })
        }
    };
    answer.unwrap_or_else(|error| Answer::Failed(error.to_string()))
}

pub(super) fn overview(pages: &mut JobPages) -> Result<Overview, StatusError> {
    let status = pages.overview()?;
    let target = pages.current().server().to_string();
    Ok(Overview { target, status })
}
