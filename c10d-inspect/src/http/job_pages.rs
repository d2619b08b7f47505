//! The pages about a job over all of its rounds.

use std::ops::Range;

use super::overview::StatusOverview;
use super::status_error::StatusError;
use super::status_pages::StatusPages;
use crate::RankReport;

/// The pages that answer for a job, whichever of its two stores is named: nodes meet at one, and each round of their workers
/// may use another. For programs that show a job for as long as it runs.
#[derive(Debug)]
pub struct JobPages {
    named: StatusPages,
    workers: Option<StatusPages>,
}

impl JobPages {
    /// The job whose nodes or workers use the server of these pages.
    #[must_use]
    pub const fn new(named: StatusPages) -> Self {
        Self {
            named,
            workers: None,
        }
    }

    /// The pages of the store whose workers the last [`overview`](Self::overview) is about.
    #[must_use]
    pub fn current(&self) -> &StatusPages {
        self.workers.as_ref().unwrap_or(&self.named)
    }

    /// What the workers do at present. Looks for their store again when it does not answer: the next round may have
    /// another one.
    ///
    /// Blocks for up to the timeout of the pages for each of two servers, and twice more for each of up to three stores.
    ///
    /// # Errors
    /// See [`StatusError`]; a later call may succeed.
    pub fn overview(&mut self) -> Result<StatusOverview, StatusError> {
        if let Some(pages) = self.workers.take()
            && let Ok(overview) = overview_of(&pages)
        {
            self.workers = Some(pages);
            return Ok(overview);
        }
        let first = overview_of(&self.named)?;
        match self.named.follow(first.stores_elsewhere(), overview_of)? {
            None => Ok(first),
            Some(followed) => {
                self.workers = Some(followed.pages);
                Ok(followed.answer)
            }
        }
    }

    /// The ranks at these places of the list of all ranks. Blocks for up to the timeout of the pages.
    ///
    /// # Errors
    /// See [`StatusError`].
    pub fn ranks(&self, places: Range<usize>) -> Result<Vec<RankReport>, StatusError> {
        let (from, count) = (places.start, places.len());
        let path = format!("/ranks.json?from={from}&count={count}");
        self.current().get(&path)
    }
}

fn overview_of(pages: &StatusPages) -> Result<StatusOverview, StatusError> {
    pages.get("/status.json")
}
