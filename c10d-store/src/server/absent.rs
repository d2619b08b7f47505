//! Stand-ins for the types of extensions, in a server without them. Types that only extensions create have no values.

use std::io;
use std::sync::Arc;

use c10d_socket::{Moment, SendBuf};
use mio::{Token, Waker};

use super::budget::SessionMemory;
use super::connection::{Connections, conn_id_of};
use super::counts::Counts;
use super::options::ServerOptions;
use crate::error::StoreError;
use crate::message::Request;
use crate::state::{Refusal, StoreState};

#[derive(Debug)]
pub(super) enum ServedJournal {
    None,
}

impl ServedJournal {
    pub(super) const fn open(_: &ServerOptions) -> Result<Self, StoreError> {
        Ok(Self::None)
    }
}

/// The fields of the event loop that only extensions use: none.
pub(super) struct Extensions;

impl Extensions {
    pub(super) fn new(
        journal: ServedJournal,
        _: &ServerOptions,
        _: &Counts,
        _: &Arc<Waker>,
    ) -> io::Result<(Self, StoreState)> {
        let ServedJournal::None = journal;
        Ok((Self, StoreState::default()))
    }

    #[inline]
    pub(super) const fn parts<'p>(
        &'p mut self,
        state: &'p mut StoreState,
        connections: &'p mut Connections,
    ) -> Parts<'p> {
        Parts { state, connections }
    }

    pub(super) const fn has_backlog(&self, _slot: usize) -> bool {
        false
    }

    pub(super) const fn authority(&self) -> Option<&Authority> {
        None
    }
}

/// The right to answer, of a server with a journal.
#[derive(Debug)]
pub(super) enum Authority {}

impl Authority {
    pub(super) const fn is_valid(&self, _now: Moment) -> bool {
        match *self {}
    }
}

/// A client of a session.
#[derive(Debug)]
pub(super) enum Client {}

impl Client {
    pub(super) const fn slot(&self) -> usize {
        match *self {}
    }

    pub(super) const fn out(&self) -> Option<&SendBuf> {
        match *self {}
    }

    pub(super) const fn out_mut(&mut self) -> &mut SendBuf {
        match *self {}
    }

    pub(super) const fn drop_replies(&mut self) {}

    pub(super) const fn drop_requests(&mut self) {}

    pub(super) const fn knows_refusal(&self) -> bool {
        match *self {}
    }

    pub(super) const fn is_carried(&self) -> bool {
        match *self {}
    }

    pub(super) const fn recount(&mut self, _held_bytes: usize) -> (SessionMemory, SessionMemory) {
        match *self {}
    }
}

/// The argument of SESSION.
#[derive(Debug)]
pub(super) enum Hello {}

/// A client whose session a journal keeps.
#[derive(Debug, Clone, Copy)]
pub(super) enum CarriedClient {}

#[derive(Debug, Default)]
pub(super) struct Checked {
    pub(super) done: Option<Result<(), Refusal>>,
    pub(super) begun: Option<CarriedClient>,
    pub(super) hello: Option<Hello>,
    pub(super) may_sweep: bool,
}

/// The parts that a request changes.
pub(super) struct Parts<'a> {
    pub(super) state: &'a mut StoreState,
    pub(super) connections: &'a mut Connections,
}

impl Parts<'_> {
    pub(super) const fn carried(&mut self, _: Token) -> Option<CarriedClient> {
        None
    }

    #[inline]
    pub(super) fn must_check(&self, _: Option<CarriedClient>, request: &Request<'_>) -> bool {
        self.state.must_check(request)
    }

    pub(super) fn check(
        &mut self,
        token: Token,
        _: Option<CarriedClient>,
        request: &Request<'_>,
    ) -> Result<Checked, Refusal> {
        let conn = conn_id_of(token);
        self.state.note_request(conn, request);
        let checked = self.state.check_request(conn, request, self.connections);
        Ok(Checked {
            done: checked.map(|is_done| is_done.then_some(())).transpose(),
            ..Checked::default()
        })
    }

    pub(super) const fn finish(&mut self, begun: CarriedClient) {
        match begun {}
    }

    pub(super) const fn record_woken(&mut self) {}
}
