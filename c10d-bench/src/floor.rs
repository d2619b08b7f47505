//! The floor of store benchmarks: the event loop of a store server, without a store.
//!
//! Each event costs one table lookup, one read and one write: no server with one read and one write per
//! request can be faster.

use std::io::{self, Read, Write};

use c10d_socket::{ListenOptions, listen};
use clap::{Args, ValueEnum};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use slab::Slab;

use crate::child::{announce, end_with_measurement};
use crate::failure::{Context as _, Failure};
use crate::numbers::at_least_one;
use crate::open_files;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum FloorMode {
    /// Answers each `request_bytes` with `reply_bytes`.
    Fixed,
    /// Sends back what it reads.
    Echo,
    /// Answers the first request of each connection as `fixed` does, and any later one with one byte to
    /// every connection.
    WakeAll,
}

#[derive(Debug, Args)]
pub(crate) struct FloorArgs {
    /// The port on 127.0.0.1; 0 lets the system choose.
    #[arg(long, default_value_t = 0)]
    port: u16,

    #[arg(long, value_enum, default_value = "fixed")]
    mode: FloorMode,

    /// The length of a request, in `fixed` mode.
    #[arg(long, default_value_t = 1, value_parser = at_least_one)]
    request_bytes: usize,

    /// The length of the reply, in `fixed` mode.
    #[arg(long, default_value_t = 8)]
    reply_bytes: usize,
}

impl FloorArgs {
    /// The arguments with which [`ServerChild`](super::child::ServerChild) starts it.
    pub(super) fn command_line(
        mode: FloorMode,
        request_bytes: usize,
        reply_bytes: usize,
    ) -> Vec<String> {
        let mode = match mode {
            FloorMode::Fixed => "fixed",
            FloorMode::Echo => "echo",
            FloorMode::WakeAll => "wake-all",
        };
        let words = [
            "floor",
            "--mode",
            mode,
            "--request-bytes",
            &request_bytes.to_string(),
            "--reply-bytes",
            &reply_bytes.to_string(),
        ];
        words.map(str::to_owned).to_vec()
    }
}

/// Serves until it is killed.
pub(super) fn run(args: &FloorArgs) -> Result<(), Failure> {
    end_with_measurement();
    open_files::raise_limit();
    let options = ListenOptions::default()
        .with_host("127.0.0.1")
        .with_port(args.port);
    // A literal address has one listener.
    let listener = listen(&options).context("cannot listen")?.remove(0);
    announce(listener.local_addr()?)?;
    serve(TcpListener::from_std(listener), args).context("cannot poll")
}

const LISTENER: Token = Token(usize::MAX);
const EVENTS_PER_POLL: usize = 1024;
const READ_BYTES: usize = 64 << 10;

#[derive(Debug)]
struct Peer {
    stream: TcpStream,
    /// Received bytes of an incomplete request.
    remainder: usize,
    /// Whether it got its first answer, in `wake-all` mode.
    greeted: bool,
}

fn serve(mut listener: TcpListener, args: &FloorArgs) -> io::Result<()> {
    let mut poll = Poll::new()?;
    poll.registry()
        .register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut events = Events::with_capacity(EVENTS_PER_POLL);
    let mut peers: Slab<Peer> = Slab::new();
    let mut buffer = vec![0; READ_BYTES];
    let replies = vec![0; READ_BYTES / args.request_bytes * args.reply_bytes + args.reply_bytes];
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        for event in &events {
            let token = event.token();
            if token == LISTENER {
                accept(&listener, &poll, &mut peers)?;
            } else if let Some(peer) = peers.get_mut(token.0) {
                let served = match args.mode {
                    FloorMode::WakeAll if peer.greeted => wake_all(&mut peers, token, &mut buffer),
                    FloorMode::Fixed | FloorMode::WakeAll => {
                        let served = answer(peer, &mut buffer, &replies, args);
                        peer.greeted = peer.remainder == 0;
                        served
                    }
                    FloorMode::Echo => echo(peer, &mut buffer),
                };
                if !served {
                    peers.remove(token.0);
                }
            }
        }
    }
}

fn accept(listener: &TcpListener, poll: &Poll, peers: &mut Slab<Peer>) -> io::Result<()> {
    loop {
        let mut stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        let slot = peers.vacant_entry();
        poll.registry()
            .register(&mut stream, Token(slot.key()), Interest::READABLE)?;
        slot.insert(Peer {
            stream,
            remainder: 0,
            greeted: false,
        });
    }
}

/// Returns whether the peer is still connected. A peer that does not read is disconnected, as it is not what
/// is measured.
fn answer(peer: &mut Peer, buffer: &mut [u8], replies: &[u8], args: &FloorArgs) -> bool {
    loop {
        let count = match peer.stream.read(buffer) {
            Ok(0) => return false,
            Ok(count) => count,
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        };
        let received = peer.remainder + count;
        peer.remainder = received % args.request_bytes;
        let reply = &replies[..received / args.request_bytes * args.reply_bytes];
        if !reply.is_empty() && !matches!(peer.stream.write(reply), Ok(sent) if sent == reply.len())
        {
            return false;
        }
        if count < buffer.len() {
            return true;
        }
    }
}

/// Returns whether the peer that sent the request is still connected.
fn wake_all(peers: &mut Slab<Peer>, token: Token, buffer: &mut [u8]) -> bool {
    let count = match peers[token.0].stream.read(buffer) {
        Ok(count) => count,
        Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
    };
    if count > 0 {
        for (_, peer) in peers.iter_mut() {
            // A disconnected peer is noticed by its own event.
            let _ = peer.stream.write(&[0]);
        }
    }
    count > 0
}

fn echo(peer: &mut Peer, buffer: &mut [u8]) -> bool {
    loop {
        let count = match peer.stream.read(buffer) {
            Ok(0) => return false,
            Ok(count) => count,
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        };
        if !matches!(peer.stream.write(&buffer[..count]), Ok(sent) if sent == count) {
            return false;
        }
        if count < buffer.len() {
            return true;
        }
    }
}
