//! Turns of sessions with many clients. Each test has work for many turns, however fast the machine.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::SendBuf;
use mio::Token;

use super::EventLoop;
use crate::message::{Extension, Keys, Replies, Reply, Request};
use crate::server::ServerOptions;
use crate::server::connection::{RequestFlow, conn_id_of};
use crate::server::recover::ServedJournal;
use crate::server::sessions::{Attached, Candidate};
use crate::session::{Hello, ResentWait, SESSION_WINDOW_BYTES, SessionId, SessionStream, StoreId};

/// A session without a link, its clients numbered from 0.
struct Session {
    event_loop: EventLoop,
    slot: usize,
}

impl Session {
    fn with_clients(count: u32) -> Self {
        let (mut event_loop, _) = EventLoop::new(
            Vec::new(),
            ServerOptions::default(),
            None,
            Arc::default(),
            Arc::default(),
            ServedJournal::None,
        )
        .expect("a poller");
        let hello = Hello {
            session: SessionId::random(),
            store: StoreId::ANY,
            attempt: 1,
            received: 0,
            carries_over: false,
            takes_pieces: false,
            takes_positions: false,
            wants_heartbeats: false,
            knows_refusal: false,
            keep: Duration::MAX,
        };
        let candidate = Candidate {
            link: Token(0xffff_ffff),
            peer: IpAddr::from([127, 0, 0, 1]),
        };
        let attached = event_loop.extensions.sessions.attach(&hello, candidate);
        let Attached::Accepted { slot, .. } = attached else {
            panic!("{attached:?}");
        };
        for client in 0..count {
            let opened = event_loop.open_client(slot, client, 0);
            opened.expect("numbers ascend");
        }
        Self { event_loop, slot }
    }

    fn tokens(&mut self) -> Vec<Token> {
        let session = self.event_loop.extensions.sessions.get_mut(self.slot);
        session.expect("it has not ended").tokens().collect()
    }

    fn room(&mut self) -> usize {
        let session = self.event_loop.extensions.sessions.get_mut(self.slot);
        session.expect("it has not ended").stream.room()
    }

    /// Handles what the peer has sent, and returns the number of turns.
    fn receive(&mut self, mut peer: SessionStream) -> usize {
        let (mut link, mut bytes) = (SendBuf::new(), Vec::new());
        peer.fill(&mut link, usize::MAX);
        link.flush(&mut bytes).expect("memory takes everything");
        self.start_turn();
        let received = self.event_loop.on_link_bytes(self.slot, &bytes);
        received.expect("no violation");
        let mut turns = 1;
        while self.event_loop.extensions.sessions.has_backlog(self.slot) {
            self.event_loop.continue_session(self.slot);
            turns += 1;
        }
        turns
    }

    fn start_turn(&mut self) {
        self.event_loop.turn.start_iteration(Instant::now());
        self.event_loop.turn.start_turn();
    }
}

#[test]
fn replies_to_many_clients_take_several_turns() {
    const CLIENTS: u32 = 65_000;
    let mut session = Session::with_clients(CLIENTS);
    for token in session.tokens() {
        let connections = &mut session.event_loop.connections;
        connections.reply(conn_id_of(token), Reply::WaitCanceled);
    }
    let mut turns = 0;
    while session.event_loop.connections.has_touched_clients() {
        assert_eq!(
            session.event_loop.time_to_sleep(),
            Some(Duration::ZERO),
            "the rest is sent without an event"
        );
        session.start_turn();
        session.event_loop.flush_touched();
        turns += 1;
    }
    assert!(turns > 1, "all were flushed in one turn");
    // The head of a frame and the reply.
    assert_eq!(
        SESSION_WINDOW_BYTES - session.room(),
        10 * CLIENTS as usize,
        "each has its reply"
    );
}

/// Their requests wait, so that the turn is not used up by requests.
#[test]
fn groups_to_many_paused_clients_take_several_turns() {
    const CLIENTS: u32 = 1024;
    const GROUPS: usize = 32;
    const BYTES: usize = 2048;
    let mut session = Session::with_clients(CLIENTS);
    let tokens = session.tokens();
    for token in &tokens {
        let connection = session.event_loop.connections.get_mut(*token);
        connection.expect("it is open").flow = RequestFlow::Paused;
    }
    let mut peer = SessionStream::default();
    let clients: Vec<u32> = (0..CLIENTS).collect();
    for _ in 0..GROUPS {
        peer.push_group(&clients, &[0x0c; BYTES]);
    }
    assert!(session.receive(peer) > 1, "all was kept in one turn");
    for token in tokens {
        let connection = session.event_loop.connections.get_mut(token);
        let client = connection.and_then(|it| it.client());
        let kept_bytes = client.expect("it is open").kept_bytes;
        assert_eq!(kept_bytes as usize, GROUPS * BYTES);
    }
}

/// A frame of nine bytes has the server search each name of a wait among the END_WAITS that its session may have missed.
#[test]
fn waits_that_are_sent_again_take_several_turns() {
    const CLIENTS: u32 = 200;
    let mut session = Session::with_clients(CLIENTS);
    let tokens = session.tokens();
    let EventLoop {
        state, connections, ..
    } = &mut session.event_loop;
    state.remember_ends();
    let mut handle = |token, request: Request<'_>| {
        let handled = state.handle(conn_id_of(token), request, connections);
        handled.expect("a request");
    };
    for end in 0..1024 {
        let prefix = format!("ended {end:04}");
        let prefix = prefix.as_bytes();
        handle(
            tokens[0],
            Request::Extension(Extension::EndWaits { prefix }),
        );
    }
    let names: Vec<String> = (0..4096).map(|name| format!("missing {name}")).collect();
    let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    for token in tokens {
        let keys = Keys::from(&names[..]);
        handle(token, Request::Wait { keys });
    }
    let mut peer = SessionStream::default();
    let wait = ResentWait {
        age: Duration::from_secs(60),
        starts_ago: 0,
    };
    for client in 0..CLIENTS {
        peer.push_resent(client, wait);
    }
    assert!(session.receive(peer) > 1, "all was searched in one turn");
}

/// More replies than the session may keep unacknowledged.
#[test]
fn replies_that_wait_for_room_are_sent_as_room_is_made() {
    const CLIENTS: u32 = 100;
    const REPLY_BYTES: usize = 100_000;
    let mut session = Session::with_clients(CLIENTS);
    for token in session.tokens() {
        let connections = &mut session.event_loop.connections;
        connections.reply(conn_id_of(token), Reply::Bytes(&[7; REPLY_BYTES]));
    }
    let (mut peer, mut link) = (SessionStream::default(), SendBuf::new());
    let mut received = 0;
    loop {
        session.start_turn();
        while session.event_loop.connections.has_touched_clients() {
            session.start_turn();
            session.event_loop.flush_touched();
        }
        let ours = session.event_loop.extensions.sessions.get_mut(session.slot);
        let ours = &mut ours.expect("it has not ended").stream;
        if !ours.has_unsent() {
            break;
        }
        let mut bytes = Vec::new();
        ours.fill(&mut link, usize::MAX);
        link.flush(&mut bytes).expect("memory takes everything");
        let mut bytes = &bytes[..];
        while let Some(piece) = peer.next_bytes(&mut bytes).expect("no violation") {
            received += piece.len();
        }
        peer.report(&mut link);
        let mut report = Vec::new();
        link.flush(&mut report).expect("memory takes everything");
        let acknowledged = session.event_loop.on_link_bytes(session.slot, &report);
        session
            .event_loop
            .after_frames(session.slot, None, acknowledged);
    }
    assert!(received > CLIENTS as usize * REPLY_BYTES, "{received}");
}
