//! The floor of RPC benchmarks: a bare TCP echo, with blocking sockets and one thread on each side.
//!
//! Each payload has a length before it and is sent back when it is complete, as a function runs only with
//! complete arguments. There is no table of calls, no dispatch and no wake-up of another thread: only the
//! cost of the sockets remains. With many payloads in flight each side reads and writes all available ones
//! at once, so that figure is the limit of the connection, not of calls.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use byteorder::{ByteOrder, LittleEndian};
use bytes::Bytes;

use super::echo_client::{EchoClient, PAYLOAD_BYTES_MAX, check_length};
use super::peer::PeerKind;
use crate::affinity::{Cores, on_server_core};
use crate::child::{ServerChild, announce, end_with_measurement};
use crate::failure::{Context as _, Failure};
use crate::latency::repeat;
use crate::pair::PATIENCE;

/// The length before each payload.
const HEADER_BYTES: usize = 4;

/// The size of a read, except for the rest of a longer frame.
const BUFFER_BYTES: usize = 256 << 10;

/// What the socket buffers of both directions certainly hold: with less in flight, a thread can write all of
/// it before it reads.
const UNREAD_BYTES_MAX: usize = 128 << 10;

/// The client of an echo, and its server.
#[derive(Debug)]
pub(super) struct EchoPair {
    stream: TcpStream,
    frames: Frames,
    /// Dropped after the stream, whose end ends the server.
    _host: Host,
}

#[derive(Debug)]
#[expect(dead_code, reason = "dropping it ends the server")]
enum Host {
    Thread(ServerThread),
    Process(ServerChild),
}

/// Joined on drop. Ends when the client closes its stream.
#[derive(Debug)]
struct ServerThread(Option<JoinHandle<io::Result<()>>>);

impl Drop for ServerThread {
    fn drop(&mut self) {
        let ended = self.0.take().map(JoinHandle::join);
        if let Some(Ok(Err(error))) = ended {
            log::debug!("the echo ended: {error}");
        }
    }
}

impl EchoPair {
    /// The server on a thread of this process.
    pub(super) fn in_process(cores: Option<Cores>) -> Result<Self, Failure> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let stream = connect(listener.local_addr()?)?;
        let (other_end, _) = listener.accept()?;
        let thread = on_server_core(cores, || {
            thread::Builder::new()
                .name("bench-echo".to_owned())
                .spawn(move || answer(other_end))
                .context("cannot start a thread")
        })?;
        Ok(Self::new(stream, Host::Thread(ServerThread(Some(thread)))))
    }

    /// The server in a process of its own.
    pub(super) fn two_processes(cores: Option<Cores>) -> Result<Self, Failure> {
        let child = ServerChild::start(&PeerKind::Echo.command_line(), cores)?;
        let stream = connect(child.address())?;
        Ok(Self::new(stream, Host::Process(child)))
    }

    fn new(stream: TcpStream, host: Host) -> Self {
        Self {
            stream,
            frames: Frames::default(),
            _host: host,
        }
    }

    /// Waits for a complete frame, consumes all complete ones, and returns their number.
    fn receive(&mut self, payload: &Bytes) -> Result<usize, Failure> {
        loop {
            let whole = self.frames.receive(&mut self.stream)?;
            if whole.frames == 0 {
                continue;
            }
            check_length(payload, whole.bytes / whole.frames - HEADER_BYTES)?;
            self.frames.consume(whole);
            return Ok(whole.frames);
        }
    }

    /// Writes from the thread that reads.
    fn window_of_small(
        &mut self,
        payload: &Bytes,
        in_flight: usize,
        end: Instant,
    ) -> Result<u64, Failure> {
        let batch = frame(payload)?.repeat(in_flight);
        let frame_bytes = HEADER_BYTES + payload.len();
        self.stream.write_all(&batch)?;
        let mut waiting = in_flight;
        let mut answered = 0;
        while waiting > 0 {
            let frames = self.receive(payload)?;
            waiting = waiting.saturating_sub(frames);
            answered += frames as u64;
            if Instant::now() < end {
                self.stream.write_all(&batch[..frames * frame_bytes])?;
                waiting += frames;
            }
        }
        Ok(answered)
    }

    /// Writes from a second thread, as otherwise both sides could block in writes.
    fn window_of_large(
        &mut self,
        payload: &Bytes,
        in_flight: usize,
        end: Instant,
    ) -> Result<u64, Failure> {
        let frame = frame(payload)?;
        let mut writing = self.stream.try_clone()?;
        let (permits, permitted) = mpsc::channel();
        thread::scope(|scope| {
            let writer = thread::Builder::new()
                .name("bench-echo-writer".to_owned())
                .spawn_scoped(scope, move || {
                    while permitted.recv().is_ok() {
                        if let Err(error) = writing.write_all(&frame) {
                            // Wakes the reader.
                            let _ = writing.shutdown(Shutdown::Both);
                            return Err(error);
                        }
                    }
                    Ok(())
                })?;
            let read = self.read_window(payload, in_flight, end, permits);
            if read.is_err() {
                // Wakes the writer.
                let _ = self.stream.shutdown(Shutdown::Both);
            }
            match writer.join() {
                Ok(written) => written.context("the bare echo").and(read),
                Err(_) => Err(Failure::new("the writing thread panicked")),
            }
        })
    }

    fn read_window(
        &mut self,
        payload: &Bytes,
        in_flight: usize,
        end: Instant,
        permits: mpsc::Sender<()>,
    ) -> Result<u64, Failure> {
        let mut waiting = 0;
        let mut answered = 0;
        let mut wanted = in_flight;
        loop {
            for _ in 0..wanted {
                // Fails if the writer failed; it shut the stream down, so reading fails as well.
                let _ = permits.send(());
            }
            waiting += wanted;
            if waiting == 0 {
                return Ok(answered);
            }
            let frames = self.receive(payload)?;
            waiting = waiting.saturating_sub(frames);
            answered += frames as u64;
            wanted = if Instant::now() < end { frames } else { 0 };
        }
    }
}

impl EchoClient for EchoPair {
    fn echo(&mut self, payload: &Bytes) -> Result<Bytes, Failure> {
        self.stream.write_all(&frame(payload)?)?;
        loop {
            let whole = self.frames.receive(&mut self.stream)?;
            if whole.frames > 0 {
                let answer = Bytes::copy_from_slice(&self.frames.of(whole)[HEADER_BYTES..]);
                self.frames.consume(whole);
                return Ok(answer);
            }
        }
    }

    fn one_at_a_time(&mut self, payload: &Bytes, time: Duration) -> Result<Vec<Duration>, Failure> {
        let frame = frame(payload)?;
        repeat(time, || {
            self.stream.write_all(&frame)?;
            self.receive(payload).map(drop)
        })
    }

    fn many_at_a_time(
        &mut self,
        payload: &Bytes,
        in_flight: usize,
        time: Duration,
    ) -> Result<u64, Failure> {
        let end = Instant::now() + time;
        if in_flight * (HEADER_BYTES + payload.len()) <= UNREAD_BYTES_MAX {
            self.window_of_small(payload, in_flight, end)
        } else {
            self.window_of_large(payload, in_flight, end)
        }
    }
}

/// The server process: serves one connection until it ends.
pub(super) fn serve() -> Result<(), Failure> {
    end_with_measurement();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    announce(listener.local_addr()?)?;
    let (stream, _) = listener.accept()?;
    answer(stream).context("the bare echo")
}

/// Sends back each complete frame until the client disconnects.
fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut frames = Frames::default();
    loop {
        match frames.receive(&mut stream) {
            Ok(whole) => {
                stream.write_all(frames.of(whole))?;
                frames.consume(whole);
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn frame(payload: &Bytes) -> io::Result<Vec<u8>> {
    let bytes = u32::try_from(payload.len()).map_err(io::Error::other)?;
    let mut frame = vec![0; HEADER_BYTES];
    LittleEndian::write_u32(&mut frame, bytes);
    frame.extend_from_slice(payload);
    Ok(frame)
}

/// Received bytes that are not consumed.
#[derive(Debug, Default)]
struct Frames {
    buffer: Vec<u8>,
    filled: usize,
    /// The length of the first frame, if it is known and the frame incomplete.
    wanted: usize,
}

/// The complete frames at the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Whole {
    frames: usize,
    bytes: usize,
}

impl Frames {
    /// Reads once, and not beyond the end of a long frame, so that no bytes need to be moved.
    fn receive(&mut self, stream: &mut impl Read) -> io::Result<Whole> {
        let end = self.wanted.max(BUFFER_BYTES);
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        }
        let count = stream.read(&mut self.buffer[self.filled..end])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.filled += count;
        self.whole()
    }

    fn whole(&mut self) -> io::Result<Whole> {
        let mut whole = Whole {
            frames: 0,
            bytes: 0,
        };
        self.wanted = 0;
        let received = &self.buffer[..self.filled];
        while let Some(header) = received[whole.bytes..].first_chunk::<HEADER_BYTES>() {
            let payload_bytes =
                usize::try_from(LittleEndian::read_u32(header)).unwrap_or(usize::MAX);
            if payload_bytes > PAYLOAD_BYTES_MAX {
                return Err(io::Error::other(format!(
                    "a payload of {payload_bytes} bytes exceeds the limit of {PAYLOAD_BYTES_MAX}"
                )));
            }
            let frame_bytes = HEADER_BYTES + payload_bytes;
            if received.len() - whole.bytes < frame_bytes {
                self.wanted = frame_bytes;
                break;
            }
            whole.frames += 1;
            whole.bytes += frame_bytes;
        }
        Ok(whole)
    }

    fn of(&self, whole: Whole) -> &[u8] {
        &self.buffer[..whole.bytes]
    }

    fn consume(&mut self, whole: Whole) {
        self.buffer.copy_within(whole.bytes..self.filled, 0);
        self.filled -= whole.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_split_gives_the_same_frames() {
        let payloads = [
            Bytes::new(),
            Bytes::from_static(b"abc"),
            vec![7; 300].into(),
        ];
        let sent: Vec<u8> = payloads
            .iter()
            .flat_map(|one| frame(one).unwrap())
            .collect();
        for split in 1..sent.len() {
            let mut frames = Frames::default();
            let mut came = Vec::new();
            let mut count = 0;
            for mut piece in [&sent[..split], &sent[split..]] {
                while !piece.is_empty() {
                    let whole = frames.receive(&mut piece).unwrap();
                    came.extend_from_slice(frames.of(whole));
                    count += whole.frames;
                    frames.consume(whole);
                }
            }
            assert_eq!((came.as_slice(), count), (&sent[..], 3), "split at {split}");
            assert_eq!(frames.filled, 0);
        }
    }

    #[test]
    fn a_read_does_not_go_beyond_a_long_frame() {
        let long = frame(&vec![1; 3 * BUFFER_BYTES].into()).unwrap();
        let twice = long.repeat(2);
        let mut stream = &twice[..];
        let mut frames = Frames::default();
        while frames.receive(&mut stream).unwrap().frames == 0 {}
        assert_eq!((frames.filled, stream.len()), (long.len(), long.len()));
    }

    #[test]
    fn a_payload_beyond_the_limit_is_an_error_and_allocates_nothing() {
        let mut frames = Frames::default();
        let said = frames.receive(&mut &[0xff; HEADER_BYTES][..]).unwrap_err();
        assert_eq!(
            said.to_string(),
            "a payload of 4294967295 bytes exceeds the limit of 67108864"
        );
        assert_eq!(frames.buffer.len(), BUFFER_BYTES);
    }

    #[test]
    fn the_end_of_the_stream_is_an_error_even_between_frames() {
        let ended = Frames::default().receive(&mut &[][..]).unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
    }
}
