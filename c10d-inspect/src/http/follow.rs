//! The pages that answer for a job, whichever of its two stores is asked: nodes meet at one, their workers use another.

use c10d_socket::HostPort;

use super::status_error::StatusError;
use super::status_pages::StatusPages;
use crate::{Report, WorkersStore};

/// How many stores are tried. The stores of finished runs no longer exist.
const STORES_TRIED_MAX: usize = 3;

/// The answer of a workers' store.
#[derive(Debug)]
#[non_exhaustive]
pub struct Followed<T> {
    /// The rendezvous' description of the store.
    pub store: WorkersStore,
    /// The client of the store's pages.
    pub pages: StatusPages,
    /// The answer of the store.
    pub answer: T,
}

impl StatusPages {
    /// Asks the workers' stores that this server of a rendezvous names ([`Report::workers_stores`]), the first three, until
    /// one answers: those of runs that have ended no longer exist. `None` if there is no other store than this server's
    /// own, or if its address is looked up: workers use a store that moves too, and the addresses that it names are those of
    /// servers that have led earlier. The stores that a workers' store names are ignored, so that no answer sends anybody in
    /// circles.
    ///
    /// Blocks as long as `ask`, and for as long as the timeout to look up a name, for each store. With a
    /// [deadline](Self::with_deadline), each remaining store has an equal part of the time.
    ///
    /// # Errors
    /// [`StatusError::WorkersStore`], with the reason of the first store, if none answers.
    pub fn follow<T>(
        &self,
        stores: &[WorkersStore],
        ask: impl Fn(&Self) -> Result<T, StatusError>,
    ) -> Result<Option<Followed<T>>, StatusError> {
        if self.is_following() {
            return Ok(None);
        }
        let mut first_error = None;
        let tried = &stores[..stores.len().min(STORES_TRIED_MAX)];
        for (store, share) in tried.iter().zip((1..=tried.len() as u32).rev()) {
            let Ok(target) = store.address.parse::<HostPort>() else {
                continue;
            };
            let answer = self.open_other(target, share).and_then(|pages| {
                if pages.is_of_same_server(self) {
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
                        rendezvous: self.server(),
                        source: Box::new(source),
                    });
                }
            }
        }
        first_error.map_or(Ok(None), Err)
    }

    /// The pages of the store that the workers use: of this server, or of the workers' store that this rendezvous names.
    /// Those of this server too if it does not answer: the next call says why.
    ///
    /// Blocks for up to the timeout, and twice more for each of up to three stores.
    ///
    /// # Errors
    /// [`StatusError::WorkersStore`] if none of the stores answers.
    pub fn into_workers(self) -> Result<Self, StatusError> {
        let Ok(report) = self.get::<Report>("/why.json") else {
            return Ok(self);
        };
        let ask = |pages: &Self| pages.get::<Report>("/why.json");
        let followed = self.follow(report.stores_elsewhere(), ask)?;
        Ok(followed.map_or(self, |followed| followed.pages))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    use c10d_socket::Deadline;

    use super::*;

    #[test]
    fn stores_that_do_not_answer_share_one_deadline() {
        // The system accepts connections for it.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap().to_string();
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let rendezvous = HostPort::new("127.0.0.1", other.local_addr().unwrap().port());
        let timeout = Duration::from_secs(60);
        let pages = StatusPages::open(rendezvous, None, timeout).unwrap();
        let began = Instant::now();
        let pages = pages.with_deadline(Deadline::after(began, Duration::from_secs(1)));
        let store = WorkersStore {
            address,
            ..WorkersStore::default()
        };
        let stores = vec![store; STORES_TRIED_MAX];
        let asked = pages.follow(&stores, |pages| pages.get::<Report>("/why.json"));
        assert!(
            matches!(asked, Err(StatusError::WorkersStore { .. })),
            "{asked:?}"
        );
        let took = began.elapsed();
        assert!(took < timeout / 2, "{took:?}");
    }
}
