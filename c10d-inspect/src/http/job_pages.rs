//! The pages about a job over all of its rounds.

use super::status_error::StatusError;
use super::status_pages::StatusPages;
use crate::Report;

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

    /// The pages of the store whose workers the last [`report`](Self::report) is about.
    #[must_use]
    pub fn current(&self) -> &StatusPages {
        self.workers.as_ref().unwrap_or(&self.named)
    }

    /// The report on the workers at present, with all ranks. Looks for their store again when it does not answer: the next
    /// round may have another one.
    ///
    /// Blocks for up to the timeout of the pages for each of two servers, and twice more for each of up to three stores.
    ///
    /// # Errors
    /// See [`StatusError`]; a later call may succeed.
    pub fn report(&mut self) -> Result<Report, StatusError> {
        if let Some(pages) = self.workers.take()
            && let Ok(report) = report_of(&pages)
        {
            self.workers = Some(pages);
            return Ok(report);
        }
        let first = report_of(&self.named)?;
        match self.named.follow(first.stores_elsewhere(), report_of)? {
            None => Ok(first),
            Some(followed) => {
                self.workers = Some(followed.pages);
                Ok(followed.answer)
            }
        }
    }
}

fn report_of(pages: &StatusPages) -> Result<Report, StatusError> {
    pages.get("/why.json?ranks=all")
}
