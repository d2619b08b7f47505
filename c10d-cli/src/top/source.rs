//! Asks the server for what `c10d top` shows.

use c10d_inspect::RankReport;
use c10d_inspect::http::{StatusError, StatusOverview, StatusPages};

use super::model::{Answer, CHUNK, Overview, Request};

/// The pages that the user named, and those of the workers' store if it is another one.
#[derive(Debug)]
pub(super) struct Source {
    asked: StatusPages,
    workers: Option<StatusPages>,
}

impl Source {
    pub(super) const fn new(asked: StatusPages) -> Self {
        Self {
            asked,
            workers: None,
        }
    }

    /// Executes a request.
    pub(super) fn answer(&mut self, request: Request) -> Answer {
        let answer = match request {
            Request::Overview => self.overview().map(Answer::Overview),
            Request::Rows { chunk } => {
                let pages = self.workers.as_ref().unwrap_or(&self.asked);
                rows(pages, chunk).map(|rows| Answer::Rows { chunk, rows })
            }
        };
        answer.unwrap_or_else(|error| Answer::Failed(error.to_string()))
    }

    /// The ranks of the workers' store, which is asked for again when it does not answer: the next round may have
    /// another one.
    pub(super) fn overview(&mut self) -> Result<Overview, StatusError> {
        if let Some(pages) = self.workers.take()
            && let Ok(status) = status(&pages)
        {
            let target = pages.server().to_string();
            self.workers = Some(pages);
            return Ok(Overview { target, status });
        }
        let first = status(&self.asked)?;
        let stores = match first.is_stuck {
            true => &[],
            false => &first.workers_stores[..],
        };
        let (pages, status) = match self.asked.follow(stores, status)? {
            None => (&self.asked, first),
            Some(followed) => (&*self.workers.insert(followed.pages), followed.answer),
        };
        let target = pages.server().to_string();
        Ok(Overview { target, status })
    }
}

fn status(pages: &StatusPages) -> Result<StatusOverview, StatusError> {
    pages.get("/status.json")
}

fn rows(pages: &StatusPages, chunk: usize) -> Result<Vec<RankReport>, StatusError> {
    let from = chunk.saturating_mul(CHUNK);
    pages.get(&format!("/ranks.json?from={from}&count={CHUNK}"))
}
