//! The methods of `extensions.rs`, and of the files beside it, for a server without extensions. They do nothing.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use mio::Token;

use super::{EventLoop, Input};
use crate::message::CloseReason;
use crate::server::connection::Peer;
use crate::server::session_requests::Hello;

impl EventLoop {
    pub(super) const fn follow_journal(&mut self, _is_busy: bool) -> bool {
        true
    }

    pub(super) const fn have_extensions_work(&self) -> bool {
        false
    }

    pub(super) const fn next_of_extensions(&mut self) -> Option<Instant> {
        None
    }

    pub(super) const fn advance_extensions(&mut self, _now: Instant) {}

    pub(super) const fn finish_extensions(&mut self, _has_events: bool, _now: Instant) {}

    pub(super) const fn end_journal(&mut self) {}

    pub(super) const fn is_not_for_the_store(&mut self, _: Token, _first: u8, _: usize) -> bool {
        false
    }

    pub(super) const fn attach(&mut self, _: Token, hello: &Hello) {
        match *hello {}
    }

    pub(super) const fn continue_session(&mut self, _slot: usize) {}

    pub(super) const fn receive_link(&mut self, _link: Token, _slot: usize, _input: Input) {}

    pub(super) const fn on_link_closed(&mut self, _slot: usize, _link: Token) {}

    pub(super) const fn flush_link(&mut self, _link: Token) {}

    pub(super) const fn resume_client(&mut self, _client: Token) {}

    pub(super) const fn flush_client(&mut self, _client: Token) {}

    pub(super) const fn return_credit(&mut self, _client: Token) {}

    pub(super) const fn record_woken(&mut self) {}

    pub(super) const fn add_sessions(&self, _peers: &mut BTreeMap<Peer, usize>) {}

    pub(super) const fn session_peer(&mut self, _slot: usize) -> Option<IpAddr> {
        None
    }

    pub(super) const fn end_session(&mut self, _slot: usize, _reason: CloseReason) {}

    pub(super) const fn limit_gathered(&mut self) {}

    pub(super) const fn withhold(&mut self, _: Token) {}

    pub(super) const fn pause_if_full(&mut self, _: Token) -> bool {
        false
    }
}
