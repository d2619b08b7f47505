//! The pages that answer for a job, whichever of its two stores is asked: nodes meet at one, their workers use another.

use c10d_inspect::{Report, WorkersStore};
use c10d_socket::HostPort;

use crate::failure::Failure;
use crate::status::{StatusArgs, StatusPages};
use crate::status_error::StatusError;

/// How many stores are tried: those of runs that have ended are gone.
const STORES_TRIED_MAX: usize = 3;

/// A workers' store that has answered.
#[derive(Debug)]
pub(crate) struct Followed<T> {
    pub(crate) store: WorkersStore,
    pub(crate) pages: StatusPages,
    pub(crate) answer: T,
}

/// Where the workers are of whom `report` says nothing, because their nodes only meet at its store.
pub(crate) fn elsewhere(report: &Report) -> &[WorkersStore] {
    // Nodes that wait for others have no workers at present.
    if report.is_stuck {
        return &[];
    }
    &report.workers_stores
}

/// Asks the workers' stores that a rendezvous names, the latest first, until one answers. `None` if there is no other
/// store than `asked`. What they name themselves is ignored, so that no answer sends anybody in circles.
pub(crate) fn follow<T>(
    asked: &StatusPages,
    stores: &[WorkersStore],
    ask: impl Fn(&StatusPages) -> Result<T, StatusError>,
) -> Result<Option<Followed<T>>, StatusError> {
    let mut first_error = None;
    for store in stores.iter().take(STORES_TRIED_MAX) {
        let Ok(target) = store.address.parse::<HostPort>() else {
            continue;
        };
        let answer = asked.of(target).and_then(|pages| {
            if pages.is_of_same_server(asked) {
                return Ok(None);
            }
            ask(&pages).map(|answer| Some((pages, answer)))
        });
        match answer {
            Ok(None) => {}
            Ok(Some((pages, answer))) => {
                let store = store.clone();
                return Ok(Some(Followed {
                    store,
                    pages,
                    answer,
                }));
            }
            Err(source) => {
                first_error.get_or_insert_with(|| StatusError::WorkersStore {
                    store: store.address.clone(),
                    run_id: store.run_id.clone(),
                    rendezvous: asked.server().clone(),
                    source: Box::new(source),
                });
            }
        }
    }
    first_error.map_or(Ok(None), Err)
}

impl StatusArgs {
    /// The pages of the store that the workers use. They are those of the named server too if that does not answer: the
    /// caller finds out why.
    pub(crate) fn open_job(&self) -> Result<StatusPages, Failure> {
        let asked = self.open()?;
        let Ok(report) = asked.get::<Report>("/why.json") else {
            return Ok(asked);
        };
        let ask = |pages: &StatusPages| pages.get::<Report>("/why.json");
        let followed = follow(&asked, elsewhere(&report), ask)?;
        Ok(followed.map_or(asked, |followed| followed.pages))
    }
}
