//! The event loop's fields for our extensions. `absent.rs` has an empty type for a server without them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use mio::Waker;

use super::connection::Connections;
use super::counts::Counts;
use super::journal_queue::JournalQueue;
use super::observer::Observed;
use super::options::ServerOptions;
use super::recover::{ServedJournal, Standby};
use super::session_requests::Parts;
use super::sessions::Sessions;
pub(super) use crate::journal::Authority;
use crate::session::{StoreId, random_seed};
use crate::state::StoreState;

/// The fields of the event loop that only extensions use.
pub(super) struct Extensions {
    pub(super) sessions: Sessions,
    pub(super) observed: Observed,
    /// The journal of the store, if it has one.
    pub(super) journal: Option<JournalQueue>,
    /// Set until this process leads: until then, nothing is served.
    pub(super) standby: Option<Standby>,
    /// The time when the next heartbeats are due, if a session wants them.
    pub(super) beat_at: Option<Instant>,
    /// Whether the log reports that announcements are ignored.
    pub(super) announcements_warned: bool,
    pub(super) waker: Arc<Waker>,
}

/// The kept state and sessions, and the open journal, or the standby that waits for it.
type Opened = (StoreState, Sessions, Option<JournalQueue>, Option<Standby>);

impl Extensions {
    /// Returns the fields of a server with this journal, and the state that the journal has kept. The state is empty without a
    /// journal, and until a standby server leads.
    pub(super) fn new(
        journal: ServedJournal,
        options: &ServerOptions,
        counts: &Counts,
        waker: &Arc<Waker>,
    ) -> io::Result<(Self, StoreState)> {
        let (state, sessions, journal, standby) = open_journal(journal, options, counts, waker)?;
        let extensions = Self {
            sessions,
            observed: Observed::new(Arc::clone(waker)),
            journal,
            standby,
            beat_at: None,
            announcements_warned: false,
            waker: Arc::clone(waker),
        };
        Ok((extensions, state))
    }

    /// Returns the parts that a request changes.
    #[inline]
    pub(super) const fn parts<'p>(
        &'p mut self,
        state: &'p mut StoreState,
        connections: &'p mut Connections,
    ) -> Parts<'p> {
        Parts {
            state,
            connections,
            sessions: &mut self.sessions,
        }
    }

    /// Whether the session in this slot has received frames that it has not carried out.
    pub(super) fn has_backlog(&self, slot: usize) -> bool {
        self.sessions.has_backlog(slot)
    }

    /// The right to answer, if the journal can lose it.
    pub(super) fn authority(&self) -> Option<&Authority> {
        self.journal.as_ref()?.authority.as_ref()
    }
}

/// Opens what a server with this journal begins with. Without a journal, the store is empty.
fn open_journal(
    journal: ServedJournal,
    options: &ServerOptions,
    counts: &Counts,
    waker: &Arc<Waker>,
) -> io::Result<Opened> {
    let sessions = new_sessions(options);
    let empty = || StoreState::new(options.groups.map(|groups| groups(random_seed())));
    let is_standby = matches!(journal, ServedJournal::StandBy(_));
    counts.is_standby.store(is_standby, Ordering::Release);
    match journal {
        ServedJournal::None => Ok((empty(), sessions, None, None)),
        ServedJournal::Open(journal) => {
            let (state, sessions, journal) =
                JournalQueue::start(*journal, sessions, Arc::clone(waker))?;
            Ok((state, sessions, journal, None))
        }
        ServedJournal::StandBy(source) => {
            let standby = Standby::start(source, options.groups, Arc::clone(waker))?;
            Ok((empty(), sessions, None, Some(standby)))
        }
    }
}

pub(super) fn new_sessions(options: &ServerOptions) -> Sessions {
    Sessions::new(StoreId::random(), options.session_timeout())
}
