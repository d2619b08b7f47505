//! The event loop's part for sessions: their links, and their clients, which are connections without a socket.

use std::fmt;
use std::net::SocketAddr;
use std::time::Instant;

use c10d_socket::SendBuf;
use mio::Token;

use super::{EventLoop, Input, Ready};
use crate::message::CloseReason;
use crate::request_parser::{ParseError, RequestParser};
use crate::server::connection::{Carrier, Connection, Phase, RequestFlow, conn_id_of};
use crate::server::session_client::Client;
use crate::server::sessions::{Attached, Candidate};
use crate::session::{
    Frame, Group, Hello, Piece, ResentWait, SESSION_WINDOW_BYTES, SessionStream, Violation, Welcome,
};
use crate::state::{KeptClient, Recorder};

#[cfg(test)]
mod tests;

/// The most bytes of one client in a frame, so that the replies of several take turns.
const CLIENT_FRAME_BYTES_MAX: usize = 64 << 10;

/// About what a name costs that a client waits for.
const WAIT_BYTES: usize = 128;

/// Bytes handed to a link before it is written.
const LINK_UNSENT_BYTES: usize = 256 << 10;

/// The work of a frame besides the work of the requests in it, see [`StoreState::work`].
///
/// [`StoreState::work`]: crate::state::StoreState::work
const WORK_OF_FRAME: u64 = 2;

/// The window of a session while memory is scarce: the peer acknowledges shorter parts, and long replies continue.
const SCARCE_WINDOW_BYTES: usize = 256 << 10;

impl EventLoop {
    /// A connection asks to be the link of a session.
    pub(super) fn attach(&mut self, token: Token, hello: &Hello) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        connection.set_flow(RequestFlow::Reading);
        let is_alone = connection.parser.is_between_requests();
        let Some(peer) = connection.accepted().map(|accepted| accepted.peer) else {
            return;
        };
        if !is_alone {
            self.log_refusal(peer, &"it does not wait for the answer to SESSION");
            return self.close_quietly(token, CloseReason::Refused);
        }
        let is_later = self.extensions.sessions.is_deposed_by(hello);
        if is_later
            && let Some(journal) = &self.extensions.journal
            && let Some(authority) = &journal.authority
        {
            // docs/spec/wire-extensions.md, SESSION 17.
            authority.withdraw();
        }
        let candidate = Candidate {
            link: token,
            peer: peer.ip(),
        };
        let Some((welcome, link)) = self.find_session(hello, candidate, peer) else {
            log::debug!("{peer}: a newer attempt has taken over its session");
            return self.close_quietly(token, CloseReason::Peer);
        };
        self.connections
            .budget
            .count(&mut self.extensions.sessions.forgotten_bytes, 0);
        if let Some(slot) = link {
            if let Some(session) = self.extensions.sessions.get_mut(slot) {
                session.accepted = self.state.now();
            }
            self.state.remember_ends();
            self.begin_carrying(slot, hello);
            if hello.wants_heartbeats {
                self.start_beating();
            }
        }
        self.end_carried_sessions();
        let connection = self.connections.get_mut(token);
        if let Some(accepted) = connection.and_then(Connection::accepted_mut)
            && let Some(slot) = link
        {
            accepted.become_link(slot);
        }
        // A session that a crash would take back has not begun.
        let position = self.newest_undurable();
        let position = if link.is_some_and(|slot| self.extensions.sessions.is_carried(slot)) {
            position
        } else {
            0
        };
        self.connections
            .send_after(token, position, &welcome.encode());
        if let Some(slot) = link {
            self.set_away(slot, false);
            self.use_room(slot);
        }
    }

    /// Returns the answer to a hello, and the slot of its session, whose earlier link is closed; `None` if a later attempt has
    /// the session.
    fn find_session(
        &mut self,
        hello: &Hello,
        candidate: Candidate,
        peer: SocketAddr,
    ) -> Option<(Welcome, Option<usize>)> {
        match self.extensions.sessions.attach(hello, candidate) {
            Attached::Accepted {
                slot,
                replaced,
                welcome,
            } => {
                if let Some(replaced) = replaced {
                    self.close_quietly(replaced, CloseReason::Peer);
                }
                log::debug!(
                    "{peer} is the link of session {slot}, attempt {}",
                    hello.attempt
                );
                Some((welcome, Some(slot)))
            }
            Attached::Refused(welcome) => {
                let text = format_args!("{peer} asks for a session that is not here: {welcome:?}");
                self.log_about(peer.ip(), &text);
                Some((welcome, None))
            }
            Attached::Late => None,
        }
    }

    /// A session has lost its link, or has one: its clients are away, or back. This flushes no connection.
    pub(super) fn set_away(&mut self, slot: usize, is_away: bool) {
        if let Some(session) = self.extensions.sessions.get_mut(slot) {
            for token in session.tokens() {
                let conn = conn_id_of(token);
                self.state.set_away(conn, is_away, &mut self.connections);
            }
        }
        self.parts().record_woken();
    }

    /// Handles bytes that the link of a session has received.
    pub(super) fn receive_link(&mut self, link: Token, slot: usize, input: Input) {
        let result = self.with_input(input, |this, bytes| {
            this.on_link_bytes(slot, bytes.unwrap_or_default())
        });
        self.after_frames(slot, Some(link), result);
    }

    /// Carries out what a session received after its last turn was over.
    pub(super) fn continue_session(&mut self, slot: usize) {
        self.turn.start_turn();
        let Some(session) = self.extensions.sessions.get_mut(slot) else {
            return;
        };
        let link = session.link;
        let (group, bytes) = session.backlog.take();
        let result = match group {
            Some((group, next)) => self.on_group(slot, group, next),
            None => Ok(()),
        };
        let result = result.and_then(|()| self.on_stream_bytes(slot, &bytes));
        if let Some(link) = link
            && !self.extensions.sessions.has_backlog(slot)
        {
            self.serve_later(link);
        }
        self.after_frames(slot, link, result);
    }

    fn after_frames(&mut self, slot: usize, link: Option<Token>, result: Result<(), Violation>) {
        if let Err(violation) = result {
            if let Some(link) = link {
                self.log_refusal_of(link, &violation);
            }
            self.end_session(slot, CloseReason::Refused);
        }
        self.use_room(slot);
        self.flush_touched();
    }

    /// Ends the sessions whose time without a link has passed.
    pub(super) fn expire_sessions(&mut self, now: Instant) {
        while let Some(slot) = self.extensions.sessions.next_expired(now) {
            if let Some(peer) = self
                .extensions
                .sessions
                .get_mut(slot)
                .map(|session| session.peer)
            {
                let text = format_args!(
                    "closed the session of {peer} and its clients: it has had no connection for too long"
                );
                self.log_about(peer, &text);
            }
            self.end_session(slot, CloseReason::Failed);
        }
    }

    fn on_link_bytes(&mut self, slot: usize, mut bytes: &[u8]) -> Result<(), Violation> {
        while let Some(session) = self.extensions.sessions.get_mut(slot) {
            let Some(piece) = session.stream.next_bytes(&mut bytes)? else {
                break;
            };
            self.on_stream_bytes(slot, piece)?;
        }
        Ok(())
    }

    /// Carries out the frames in these bytes until the session's turn is over, and keeps the remaining frames.
    fn on_stream_bytes(&mut self, slot: usize, mut bytes: &[u8]) -> Result<(), Violation> {
        while !bytes.is_empty()
            && let Some(session) = self.extensions.sessions.get_mut(slot)
        {
            if self.turn.is_turn_over() || !session.backlog.is_empty() {
                if session.backlog.is_empty() {
                    self.ready.push_back(Ready::Session(slot));
                }
                session.backlog.keep_bytes(bytes);
                break;
            }
            if let Some(frame) = session.reader.next(&mut bytes)? {
                self.turn.spend(WORK_OF_FRAME, Instant::now);
                self.on_frame(slot, frame)?;
            }
        }
        Ok(())
    }

    /// Gives the clients of a group its bytes, from this one on, until the session's turn is over.
    fn on_group(&mut self, slot: usize, group: Group, mut next: usize) -> Result<(), Violation> {
        let (first, mut is_over) = (next, false);
        for client in group.clients().skip(next) {
            let is_exceeded = next > first && self.connections.budget.must_look();
            is_over = is_exceeded || self.turn.is_turn_over();
            if is_over {
                break;
            }
            self.on_client_bytes(slot, client, group.bytes(), Sent::InGroup)?;
            next += 1;
        }
        if is_over && let Some(session) = self.extensions.sessions.get_mut(slot) {
            session.backlog.keep_group(group, next);
            self.ready.push_back(Ready::Session(slot));
        }
        Ok(())
    }

    fn on_frame(&mut self, slot: usize, frame: Frame<'_>) -> Result<(), Violation> {
        match frame {
            Frame::Open { client, port } => self.open_client(slot, client, port)?,
            Frame::Data { client, bytes } => {
                self.on_client_bytes(slot, client, bytes, Sent::Once)?;
            }
            Frame::Group(group) => self.on_group(slot, group, 0)?,
            Frame::Close { client } => {
                if let Some(token) = self.token_of_client(slot, client)? {
                    self.remove_client(token, CloseReason::Peer);
                }
            }
            Frame::Credit { client, bytes } => {
                if let Some(token) = self.token_of_client(slot, client)? {
                    let connection = self.connections.get_mut(token);
                    if let Some(client) = connection.and_then(|it| it.client()) {
                        client.credit.returned(bytes)?;
                    }
                    self.connections.touch(token);
                }
            }
            Frame::End => self.say_end(slot),
            Frame::Resume { client, request } => {
                if let Some(token) = self.token_of_client(slot, client)? {
                    self.resume_numbers(token, request)?;
                }
            }
            Frame::Done { client, request } => {
                if let Some(token) = self.token_of_client(slot, client)? {
                    self.note_resent(slot, token, ResentWait::decode(request));
                }
            }
            // Not to the server.
            Frame::Shared { .. } => {}
        }
        Ok(())
    }

    fn token_of_client(&mut self, slot: usize, client: u32) -> Result<Option<Token>, Violation> {
        let session = self.extensions.sessions.get_mut(slot);
        session.map_or(Ok(None), |session| session.client(client))
    }

    fn open_client(&mut self, slot: usize, number: u32, port: u16) -> Result<(), Violation> {
        let Some(session) = self.extensions.sessions.get_mut(slot) else {
            return Ok(());
        };
        session.check_new(number)?;
        if session.is_carried {
            self.forget_unopened(slot, number);
        }
        let Some(session) = self.extensions.sessions.get_mut(slot) else {
            return Ok(());
        };
        let peer = SocketAddr::new(session.peer, port);
        let connections_max = self.options.connections_max();
        let reason: &dyn fmt::Display = if !session.has_room_for_client() {
            &"the limit of clients of a session is reached"
        } else if self.connections.len() >= connections_max {
            &format_args!("the limit of {connections_max} connections is reached")
        } else {
            let mut client = Client::new(slot, number);
            client.numbers = session.is_carried.then(Box::default);
            client.knows_refusal = session.knows_refusal;
            let token = self.connections.insert_client(client);
            session.open(number, token);
            let (session, conn) = (session.id(), conn_id_of(token));
            self.state.connect(conn, peer);
            self.state.adopt(conn, KeptClient { session, number });
            self.publish_count();
            return Ok(());
        };
        session.refuse(number);
        self.count_refusal(peer, reason);
        self.touch_link(slot);
        Ok(())
    }

    fn on_client_bytes(
        &mut self,
        slot: usize,
        number: u32,
        bytes: &[u8],
        sent: Sent,
    ) -> Result<(), Violation> {
        let Some(token) = self.token_of_client(slot, number)? else {
            return Ok(());
        };
        let Some(connection) = self.connections.get_mut(token) else {
            return Ok(());
        };
        let is_open = connection.phase == Phase::Open;
        let must_wait = connection.flow.has_waiting();
        let Some(client) = connection.client() else {
            return Ok(());
        };
        client.credit.received(bytes.len())?;
        self.turn.moved(bytes.len(), Instant::now);
        if !is_open {
            return Ok(());
        }
        // Its credit fits into a `u32`.
        client.kept_bytes += bytes.len() as u32;
        if matches!(sent, Sent::InGroup) {
            client.grouped_bytes += bytes.len() as u32;
        }
        if must_wait {
            connection.parser.keep(bytes);
            self.count_client(token);
        } else if self.connections.may_continue(token) {
            self.feed_client(token, Some(bytes));
        } else if let Some(connection) = self.connections.get_mut(token) {
            connection.parser.keep(bytes);
            connection.set_flow(RequestFlow::Paused);
            self.count_client(token);
            self.connections.touch(token);
        }
        Ok(())
    }

    /// Continues with the requests of a client that has read its replies, if the replies of its session leave room
    /// for more.
    pub(super) fn resume_client(&mut self, token: Token) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        let Some(client) = connection.client() else {
            return;
        };
        let slot = client.slot();
        if !connection.take_resumed() {
            return;
        }
        if self.connections.may_continue(token) {
            self.feed_client(token, None);
        } else if let Some(connection) = self.connections.get_mut(token) {
            connection.set_flow(RequestFlow::Paused);
            self.connections.touch(token);
        }
        self.flush_touched();
        self.use_budget(slot);
    }

    /// Handles a client's requests, and returns credit for their bytes unless it pauses.
    fn feed_client(&mut self, token: Token, bytes: Option<&[u8]>) {
        match self.feed(token, bytes) {
            Ok(None) => {}
            Ok(Some(_)) => {
                self.log_refusal_of(token, &"it requested a session within a session");
                return self.refuse_client(token);
            }
            Err(error) => {
                match &error {
                    ParseError::Wire(error) => self.log_refusal_of(token, error),
                    ParseError::Refused(error) => {
                        self.log_refusal_of(token, error);
                        let position = self.state.recorder().map_or(0, Recorder::dependency);
                        self.connections.hold_end(token, position);
                    }
                }
                return self.refuse_client(token);
            }
        }
        self.count_client(token);
        self.end_resent(token);
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        if connection.flow.is_paused() {
            // Perhaps without a reply, which would have it flushed.
            return self.connections.touch(token);
        }
        if connection.flow != RequestFlow::Resumed && !self.must_pause_input(token) {
            self.return_credit(token);
        }
    }

    /// Returns credit for the received bytes of a client.
    pub(super) fn return_credit(&mut self, token: Token) {
        let connection = self.connections.get_mut(token);
        if let Some(client) = connection.and_then(Connection::client) {
            let used = std::mem::take(&mut client.kept_bytes);
            let (slot, number) = (client.slot(), client.number);
            let is_carried = client.numbers.is_some();
            if let Some(returned) = client.credit.used(used as usize)
                && let Some(session) = self.extensions.sessions.get_mut(slot)
            {
                session.stream.push_credit(number, returned);
                self.touch_link(slot);
            }
            if is_carried {
                self.tell_done(token, used as usize);
            }
        }
    }

    /// Counts what the client holds after a change. It is refused soon if that is too much.
    fn count_client(&mut self, token: Token) {
        let waiting_bytes = self.state.missing_names(conn_id_of(token)) * WAIT_BYTES;
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        let is_done = !connection.flow.is_paused() && connection.parser.is_between_requests();
        if let Some(client) = connection.client() {
            client.waiting_bytes = u32::try_from(waiting_bytes).unwrap_or(u32::MAX);
            if is_done {
                client.grouped_bytes = 0;
            }
            self.connections.recount(token);
        }
        let connection = self.connections.get(token);
        if connection.is_some_and(Connection::has_overflowed) {
            self.connections.touch(token);
        }
    }

    fn log_refusal_of(&mut self, token: Token, error: &dyn fmt::Display) {
        if let Some(peer) = self.state.peer(conn_id_of(token)) {
            self.log_refusal(peer, error);
        }
    }

    /// Earlier replies are sent; then the client is closed.
    fn refuse_client(&mut self, token: Token) {
        if let Some(connection) = self.connections.get_mut(token) {
            connection.phase = Phase::Refusing;
            connection.set_flow(RequestFlow::Reading);
            connection.parser = RequestParser::default();
            self.forget(token, CloseReason::Refused);
            self.connections.touch(token);
        }
    }

    /// Hands a client's replies to its session, as far as there is credit and room.
    pub(super) fn flush_client(&mut self, token: Token) {
        let window_bytes = self.session_window_bytes();
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        self.turn.moved(connection.unsent_bytes(), Instant::now);
        if connection.has_overflowed() {
            self.log_refusal_of(token, &"the unread replies of its session exceed the limit");
            self.say_closed(token);
            return self.remove_client(token, CloseReason::Refused);
        }
        let Carrier::Session(client) = &mut connection.carrier else {
            return;
        };
        let (slot, number) = (client.slot(), client.number);
        let Some(session) = self.extensions.sessions.get_mut(slot) else {
            return;
        };
        let room = |stream: &SessionStream| stream.room_in(window_bytes);
        if let Some(journal) = &self.extensions.journal
            && client.replies().is_some_and(|(out, _)| !out.is_empty())
        {
            session.tell_position(journal.durable);
        }
        let (stream, pieces) = (&mut session.stream, &mut session.pieces);
        let mut lacks_room = false;
        let has_replies = client.replies().is_some();
        if let Some((out, credit)) = client.replies() {
            while !out.is_empty() {
                let piece = pieces.as_mut().and_then(|it| Some((it, Piece::of(out)?)));
                let mut before_piece = out.unsent_bytes();
                if let Some((pieces, (before, piece))) = piece {
                    if before == 0 && piece.len() > credit.to_send() {
                        // It gets credit for all of it soon, because it has much to read.
                        break;
                    }
                    if before == 0 && piece.len() <= room(stream) {
                        pieces.push(number, &piece, stream);
                        out.skip(piece.len());
                        credit.sent(piece.len());
                        continue;
                    }
                    // Less than a piece, so that the next one begins where it does for others.
                    before_piece = if before == 0 { piece.len() } else { before };
                }
                let count = [
                    before_piece,
                    credit.to_send(),
                    room(stream),
                    CLIENT_FRAME_BYTES_MAX,
                ];
                let count = count.into_iter().min().unwrap_or(0);
                if count == 0 {
                    break;
                }
                stream.push_data_from(number, out, count);
                credit.sent(count);
            }
            lacks_room = !out.is_empty() && credit.to_send() > 0 && room(stream) == 0;
        }
        if lacks_room && !client.waits_for_room {
            client.waits_for_room = true;
            session.waiting().for_room.push_back(token);
        }
        let is_done = connection.phase == Phase::Refusing && !connection.has_unsent();
        self.connections.recount(token);
        if has_replies {
            self.note_handed(token);
        }
        if is_done {
            self.say_closed(token);
            self.remove_client(token, CloseReason::Refused);
        } else {
            self.resume_or_wait(token, slot);
        }
        self.use_budget(slot);
        self.use_room(slot);
    }

    /// Lets a paused client continue if it can. If it has nothing to send itself, it waits for the budget of its
    /// session.
    fn resume_or_wait(&mut self, token: Token, slot: usize) {
        let is_full = self.connections.is_full();
        let may_continue = self.connections.may_continue(token);
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        if connection.flow != RequestFlow::Paused {
            return;
        }
        if is_full {
            self.pause_if_full(token);
        } else if may_continue {
            self.resume(token);
        } else if connection.unsent_bytes() == 0
            && let Some(client) = connection.client()
            && !client.waits_for_budget
            && let Some(session) = self.extensions.sessions.get_mut(slot)
        {
            client.waits_for_budget = true;
            session.waiting().for_budget.push_back(token);
            self.extensions.sessions.short_of_budget.insert(slot);
        }
    }

    /// The clients continue that wait for the budgets of their sessions, if those have grown. Few sessions have less than they take:
    /// a budget is a quarter of the memory, or long.
    pub(super) fn use_budgets(&mut self) {
        let mut short = std::mem::take(&mut self.extensions.sessions.short_of_budget);
        short.retain(|slot| {
            self.use_budget(*slot);
            self.extensions.sessions.waits_for_budget(*slot)
        });
        self.extensions.sessions.short_of_budget.append(&mut short);
    }

    /// The next client that waits for the budget of its session continues, if there is some. It calls this again.
    fn use_budget(&mut self, slot: usize) {
        if !self.connections.has_budget(slot) {
            return;
        }
        while let Some(session) = self.extensions.sessions.get_mut(slot)
            && let Some(token) = session.next_for_budget()
        {
            let Some(connection) = self.connections.get_mut(token) else {
                continue;
            };
            if let Some(client) = connection.client() {
                client.waits_for_budget = false;
            }
            if connection.flow == RequestFlow::Paused {
                return self.resume(token);
            }
        }
    }

    /// Sends the unsent bytes of a session over its link.
    pub(super) fn flush_link(&mut self, token: Token) {
        while let Some(connection) = self.connections.get_mut(token) {
            if connection.is_held() {
                // The answer to SESSION must be sent first.
                return;
            }
            let Some(accepted) = connection.accepted_mut() else {
                return;
            };
            let session = accepted
                .link()
                .and_then(|slot| self.extensions.sessions.get_mut(slot));
            let Some(session) = session.filter(|session| session.link == Some(token)) else {
                return;
            };
            session.stream.fill(&mut accepted.out, LINK_UNSENT_BYTES);
            let has_more = session.stream.has_unsent();
            self.flush_socket(token);
            let Some(connection) = self.connections.get_mut(token) else {
                return;
            };
            let is_drained = !connection.has_unsent();
            if !has_more || !is_drained {
                if is_drained {
                    // An idle link keeps no memory besides the session's.
                    *connection.out_mut() = SendBuf::new();
                }
                return;
            }
        }
    }

    /// The unacknowledged bytes of a session beyond which its clients' replies wait.
    const fn session_window_bytes(&self) -> usize {
        match self.connections.budget.is_scarce() {
            true => SCARCE_WINDOW_BYTES,
            false => SESSION_WINDOW_BYTES,
        }
    }

    /// The next client whose replies have waited for room continues, if there is room, and the link is flushed soon. The
    /// client calls this again.
    fn use_room(&mut self, slot: usize) {
        let window_bytes = self.session_window_bytes();
        while let Some(session) = self.extensions.sessions.get_mut(slot)
            && session.stream.room_in(window_bytes) > 0
            && let Some(token) = session.next_for_room()
        {
            let connection = self.connections.get_mut(token);
            if let Some(client) = connection.and_then(|it| it.client()) {
                client.waits_for_room = false;
                self.connections.touch(token);
                break;
            }
        }
        self.touch_link(slot);
    }

    /// Counts what a session keeps, after each change of that, and flushes its link soon if there is something to send.
    pub(super) fn touch_link(&mut self, slot: usize) {
        let session = self.extensions.sessions.get_mut(slot);
        if let Some(session) = session {
            let kept = session.memory_bytes();
            self.connections
                .budget
                .count(&mut session.counted_bytes, kept);
        }
        if let Some(session) = self.extensions.sessions.get_mut(slot)
            && let Some(link) = session.link
            && session.stream.has_unsent()
        {
            self.connections.touch(link);
        }
    }

    /// Informs the peer that a client is closed.
    fn say_closed(&mut self, token: Token) {
        let connection = self.connections.get_mut(token);
        if let Some(client) = connection.and_then(|it| it.client()) {
            let (slot, number) = (client.slot(), client.number);
            if let Some(session) = self.extensions.sessions.get_mut(slot) {
                session.stream.push_close(number);
            }
            self.touch_link(slot);
        }
    }

    /// Removes a client, from its session as well.
    fn remove_client(&mut self, token: Token, reason: CloseReason) {
        let connection = self.connections.get_mut(token);
        let client = connection.and_then(|it| it.client());
        let Some((slot, number)) = client.map(|client| (client.slot(), client.number)) else {
            return;
        };
        if let Some(session) = self.extensions.sessions.get_mut(slot) {
            session.close(number);
        }
        self.end_carried_client(slot, number);
        self.close_quietly(token, reason);
        self.use_budget(slot);
        self.use_room(slot);
    }

    /// The peer has ended the session, and is informed that everything before that was carried out.
    fn say_end(&mut self, slot: usize) {
        if let Some(session) = self.extensions.sessions.get_mut(slot)
            && let Some(link) = session.link
        {
            session.stream.push_end();
            self.flush_link(link);
        }
        self.end_session(slot, CloseReason::Peer);
    }

    /// Ends a session with its clients and its link.
    pub(super) fn end_session(&mut self, slot: usize, reason: CloseReason) {
        let Some(mut session) = self.extensions.sessions.remove(slot) else {
            return;
        };
        self.connections.budget.count(&mut session.counted_bytes, 0);
        self.end_carried_sessions();
        if let Some(link) = session.link {
            self.close_quietly(link, reason);
        }
        for token in session.into_clients() {
            self.close_quietly(token, reason);
        }
    }
}

/// How the bytes of a client arrived.
#[derive(Debug, Clone, Copy)]
enum Sent {
    Once,
    /// The bytes arrived once for all clients of a group.
    InGroup,
}
