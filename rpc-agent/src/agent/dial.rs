//! Connections to peers are made here, on threads of their own: looking up a name, connecting and the
//! first exchange may each take a while.
//!
//! A few threads, started when they are needed, work through the peers that are due. What becomes of a
//! connection afterwards is [`super::link`]'s.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use c10d_socket::{
    Backoff, BackoffOptions, ConnectOptions, Deadline, connect, recv_into_spare, wait_for_input,
    wait_for_output,
};

use super::link::not_connected;
use super::peer::{Dial, Peer, PeerState};
use super::shared::Shared;
use crate::error::Outcome;
use crate::handshake::{AfterRefuse, AfterWelcome};
use crate::incoming::{Expects, Incoming, Message, Recipient};
use crate::wire::{Frame, Hello};
use crate::worker::Destination;

/// More dials at a time than this wait for each other.
const THREADS_MAX: usize = 8;

/// A thread that had nothing to do for this long ends.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// How long one attempt may take: to look up the address, to connect, to be welcomed.
const ATTEMPT_MAX: Duration = Duration::from_secs(2);

/// The pauses between attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The threads that dial, and which peers are due when.
#[derive(Debug, Default)]
pub(crate) struct Dialers {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    due: BTreeMap<(Instant, u64), Due>,
    queued: u64,
    threads: usize,
    idle: usize,
    stopping: bool,
    handles: Vec<JoinHandle<()>>,
    threads_begun: u64,
}

/// An attempt that is to be made.
#[derive(Debug)]
struct Due {
    peer: Arc<Peer>,
    /// The dial that it belongs to, which may be over by then. The next one has attempts of its own.
    dial: u64,
}

/// How an attempt ended.
enum Attempt {
    /// There is a connection, or nobody needs one any more.
    Over,
    /// To be tried again, for this reason.
    Again(Arc<str>),
    /// No use to try again.
    Hopeless {
        cause: Arc<str>,
        /// The process is gone.
        is_dead: bool,
    },
}

impl Shared {
    /// Has a connection made to a peer that has none.
    pub(crate) fn begin_dial(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        mut state: MutexGuard<'_, PeerState>,
    ) {
        let options = BackoffOptions::default()
            .with_first(FIRST_PAUSE)
            .with_max(LONGEST_PAUSE);
        // Two workers that dial each other do not do so in step for ever.
        let seed = self.incarnation ^ u64::from(peer.info.id.get());
        state.dials_begun += 1;
        let number = state.dials_begun;
        state.dial = Some(Dial {
            number,
            backoff: Backoff::new(options, seed),
            began: None,
        });
        drop(state);
        self.dial_at(peer, number, Instant::now());
    }

    fn dial_at(self: &Arc<Self>, peer: &Arc<Peer>, dial: u64, at: Instant) {
        let mut state = self.dialers.lock();
        if state.stopping {
            return;
        }
        state.queued += 1;
        let order = state.queued;
        let peer = Arc::clone(peer);
        state.due.insert((at, order), Due { peer, dial });
        self.call_dialer(state);
    }

    /// Sees to it that a thread comes for what is due next.
    fn call_dialer(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.idle > 0 || state.threads == THREADS_MAX {
            drop(state);
            self.dialers.changed.notify_one();
            return;
        }
        state.threads_begun += 1;
        let shared = Arc::clone(self);
        // Under the lock, so that who ends the dials finds every thread that lives.
        let spawned = thread::Builder::new()
            .name(format!("rpc-dial-{}", state.threads_begun))
            .spawn(move || shared.dial_loop());
        match spawned {
            Ok(handle) => {
                state.threads += 1;
                state.handles.retain(|handle| !handle.is_finished());
                state.handles.push(handle);
            }
            Err(error) => log::error!("{}: cannot start a thread that dials: {error}", self.me),
        }
    }

    fn dial_loop(self: &Arc<Self>) {
        let dialers = &self.dialers;
        let mut state = dialers.lock();
        loop {
            if state.stopping {
                break;
            }
            let now = Instant::now();
            let first = state.due.first_key_value().map(|((at, _), _)| *at);
            match first {
                Some(at) if at <= now => {
                    if let Some((_, Due { peer, dial })) = state.due.pop_first() {
                        // This thread may be away for seconds.
                        if state.due.is_empty() {
                            drop(state);
                        } else {
                            self.call_dialer(state);
                        }
                        self.dial(&peer, dial);
                        drop(peer);
                        state = dialers.lock();
                    }
                }
                _ => {
                    let pause = first.map_or(IDLE_MAX, |at| at - now);
                    state.idle += 1;
                    let (after, timeout) = dialers
                        .changed
                        .wait_timeout(state, pause)
                        .unwrap_or_else(PoisonError::into_inner);
                    state = after;
                    state.idle -= 1;
                    if timeout.timed_out() && state.due.is_empty() {
                        break;
                    }
                }
            }
        }
        state.threads -= 1;
    }

    /// One attempt, and what follows from it.
    fn dial(self: &Arc<Self>, peer: &Arc<Peer>, number: u64) {
        if !peer.lock().is_dialing(number) {
            return;
        }
        let attempt = self.attempt_dial(peer, number);
        let now = Instant::now();
        let mut state = peer.lock();
        if !state.is_dialing(number) {
            // There is a connection, this attempt's or one that the peer made; or there was one.
            return;
        }
        let (cause, is_dead) = match attempt {
            Attempt::Over => {
                if state.link.is_none() && state.in_flight.len() > 0 && self.is_running() {
                    // A call has come since, and has left it to this dial.
                    let Some(dial) = &mut state.dial else { return };
                    let pause = dial.backoff.next_delay();
                    drop(state);
                    self.dial_at(peer, number, now + pause);
                    return;
                }
                state.dial = None;
                return;
            }
            Attempt::Again(cause) => {
                let Some(dial) = &mut state.dial else { return };
                let limit = self.options.connect_timeout;
                let is_late = dial.began.is_some_and(|began| now - began >= limit);
                if !is_late && self.is_running() {
                    let pause = dial.backoff.next_delay();
                    state.last_failure = Some(cause);
                    drop(state);
                    self.dial_at(peer, number, now + pause);
                    return;
                }
                (cause, false)
            }
            Attempt::Hopeless { cause, is_dead } => (cause, is_dead),
        };
        state.dial = None;
        state.last_failure = Some(Arc::clone(&cause));
        state.is_dead = is_dead;
        let (_, calls) = state.cut();
        drop(state);
        log::warn!(
            "{}: cannot connect to {}: {cause}; {} calls fail",
            self.me,
            peer.info,
            calls.len()
        );
        for (call, _) in calls {
            let error = if self.is_running() {
                not_connected(peer, &call, &cause)
            } else {
                self.shut_down(peer, &call.function, Outcome::NotExecuted)
            };
            self.complete(peer, call, Err(error));
        }
    }

    fn attempt_dial(self: &Arc<Self>, peer: &Arc<Peer>, number: u64) -> Attempt {
        {
            let mut state = peer.lock();
            if state.link.is_some() || state.in_flight.len() == 0 && !state.is_lost {
                return Attempt::Over;
            }
            if let Some(dial) = &mut state.dial {
                dial.began.get_or_insert_with(Instant::now);
            }
        }
        let deadline = Deadline::after(Instant::now(), ATTEMPT_MAX);
        let address = match self.directory.address_of(&peer.info, deadline) {
            Ok(Some(address)) => address,
            Ok(None) if self.options.world_size.is_none() => {
                let left = self.no_such_worker(&Destination::Info(&peer.info));
                return Attempt::Hopeless {
                    cause: left.to_string().into(),
                    is_dead: false,
                };
            }
            Ok(None) => return Attempt::Again("the worker has not published its address".into()),
            Err(error) => return Attempt::Again(error.to_string().into()),
        };
        let options = ConnectOptions::default()
            .with_rounds_max(1)
            .with_socket_options(self.options.socket.clone());
        let socket = match connect(&address.host_port, &options, deadline) {
            Ok(socket) => socket,
            Err(error) => {
                let cause = error.to_string().into();
                return if error.is_refused() {
                    // It listens from before its address is known until it ends.
                    Attempt::Hopeless {
                        cause,
                        is_dead: true,
                    }
                } else {
                    Attempt::Again(cause)
                };
            }
        };
        match self.introduce(peer, number, socket, address.incarnation, deadline) {
            Ok(attempt) => attempt,
            Err(error) => {
                let mut state = peer.lock();
                if state.awaits_answer(number)
                    && let Some(pair) = &mut state.pair
                {
                    pair.on_dial_failed();
                }
                Attempt::Again(format!("{}: no welcome: {error}", address.host_port).into())
            }
        }
    }

    /// Says who dials, and hears whether that is welcome.
    fn introduce(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        number: u64,
        socket: TcpStream,
        incarnation: u64,
        deadline: Deadline,
    ) -> io::Result<Attempt> {
        let links = {
            let mut state = peer.lock();
            if !state.is_dialing(number) {
                return Ok(Attempt::Over);
            }
            match state.pair.as_mut().and_then(|pair| pair.dial(incarnation)) {
                Some(links) => links,
                None => return Ok(Attempt::Over),
            }
        };
        let mut hello = Vec::new();
        Frame::Hello(Hello {
            from: self.me.clone(),
            to: peer.info.id,
            incarnation: self.incarnation,
            incarnation_wanted: incarnation,
            links,
            message_bytes_max: self.options.message_bytes_max,
        })
        .encode(&mut hello);
        socket.set_nonblocking(true)?;
        write_all_by(&socket, &hello, deadline)?;
        let mut incoming = Incoming::new(Expects::WelcomeOrRefuse, self.limits);
        let mut inbox = Welcomes::default();
        while inbox.first.is_none() {
            if !wait_for_input(&socket, deadline.remaining(Instant::now()))? {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let (buffer, bytes_max) = incoming.spare();
            match recv_into_spare(&socket, buffer, bytes_max) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            }
            incoming
                .received(&mut inbox)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
        match inbox.first {
            Some(Message::Welcome(welcome)) => {
                let socket = mio::net::TcpStream::from_std(socket);
                let _ = socket2::SockRef::from(&socket)
                    .set_tcp_notsent_lowat(super::NOT_SENT_LOW_WATER);
                let link = self.sockets.adopt(socket, Some(peer))?;
                let mut state = peer.lock();
                if !state.awaits_answer(number) {
                    drop(state);
                    self.sockets.release(&link, None);
                    return Ok(Attempt::Over);
                }
                let after = state.pair.as_mut().map(|pair| pair.on_welcome(&welcome));
                if after != Some(AfterWelcome::Established) {
                    drop(state);
                    self.sockets.release(&link, None);
                    return Ok(Attempt::Again("another process answered".into()));
                }
                peer.takes_at_most(welcome.message_bytes_max);
                self.establish(peer, state, link, incoming, inbox.rest);
                Ok(Attempt::Over)
            }
            Some(Message::Refuse(refuse)) => {
                let mut state = peer.lock();
                if !state.awaits_answer(number) {
                    return Ok(Attempt::Over);
                }
                let after = state.pair.as_mut().map(|pair| pair.on_refuse(&refuse));
                let cause: Arc<str> = format!("refused: {}", refuse.text).into();
                Ok(match after {
                    Some(AfterRefuse::GiveUp) => Attempt::Hopeless {
                        cause,
                        is_dead: false,
                    },
                    _ => Attempt::Again(cause),
                })
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Ends the threads that dial, and joins them: within two attempts' time at most.
    pub(crate) fn stop_dialing(&self) {
        let mut state = self.dialers.lock();
        state.stopping = true;
        state.due.clear();
        let handles = std::mem::take(&mut state.handles);
        drop(state);
        self.dialers.changed.notify_all();
        for handle in handles {
            if handle.thread().id() != thread::current().id() && handle.join().is_err() {
                log::error!("{}: a thread that dials panicked", self.me);
            }
        }
    }
}

impl Dialers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first answer to a Hello, and what came right behind it.
#[derive(Default)]
struct Welcomes {
    first: Option<Message>,
    rest: Vec<Message>,
}

impl Recipient for Welcomes {
    fn wants_response(&mut self, _: u64) -> bool {
        // No call has been sent on this connection yet.
        false
    }

    fn take(&mut self, message: Message) {
        if self.first.is_none() {
            self.first = Some(message);
        } else {
            self.rest.push(message);
        }
    }
}

fn write_all_by(mut socket: &TcpStream, mut bytes: &[u8], deadline: Deadline) -> io::Result<()> {
    use std::io::Write;
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !wait_for_output(socket, deadline.remaining(Instant::now()))? {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
