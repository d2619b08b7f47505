//! The lower bound: blocking sockets, length-prefixed payloads, one thread on each side.
//!
//! Without call tables, dispatch and thread wake-ups, only the cost of the sockets remains. With many calls in flight,
//! each side reads all arrived frames at once and answers them in one write, so the figure is the throughput of the
//! socket, not the cost of calls.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use byteorder::{ByteOrder, LittleEndian};
use bytes::Bytes;

use super::contract::{Announce, Client, MESSAGE_BYTES_MAX, SILENCE_MAX, Throughput, check_length};
use crate::error::CompareError;
use crate::rival::Rival;

/// The length of a payload, little-endian.
const HEADER_BYTES: usize = 4;

/// The initial size of the receive buffer. It grows for longer frames.
const BUFFER_BYTES: usize = 256 << 10;

/// The amount that the socket buffers certainly hold. Up to it, one thread can write all requests before it reads.
const IN_FLIGHT_BYTES_MAX: usize = 128 << 10;

pub(super) fn serve(announce: Announce<'_>) -> Result<(), CompareError> {
    listen(announce).map_err(CompareError::setup(Rival::Bare, "cannot serve"))
}

/// Serves one connection at a time; the only client has one connection.
fn listen(announce: Announce<'_>) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    announce(listener.local_addr()?)?;
    loop {
        let (stream, _) = listener.accept()?;
        answer(stream)?;
    }
}

/// Echoes each complete frame until the client closes the connection.
fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut frames = Frames::new();
    while frames.receive(&mut stream)? > 0 {
        let whole = frames.whole()?;
        stream.write_all(&frames.bytes()[..whole.bytes])?;
        frames.consume(whole.bytes);
    }
    Ok(())
}

/// Received bytes that are not yet processed.
#[derive(Debug)]
struct Frames {
    buffer: Vec<u8>,
    filled: usize,
}

/// The complete frames at the beginning of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Whole {
    frames: usize,
    bytes: usize,
}

impl Frames {
    fn new() -> Self {
        Self {
            buffer: vec![0; BUFFER_BYTES],
            filled: 0,
        }
    }

    /// Reads once; 0 at the end of the stream.
    fn receive(&mut self, stream: &mut impl Read) -> io::Result<usize> {
        let count = stream.read(&mut self.buffer[self.filled..])?;
        self.filled += count;
        Ok(count)
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }

    /// Counts the complete frames; grows the buffer if a frame does not fit.
    fn whole(&mut self) -> io::Result<Whole> {
        let mut whole = Whole {
            frames: 0,
            bytes: 0,
        };
        while let Some(header) = self.bytes()[whole.bytes..].first_chunk::<HEADER_BYTES>() {
            let length = usize::try_from(LittleEndian::read_u32(header)).unwrap_or(usize::MAX);
            if length > MESSAGE_BYTES_MAX {
                return Err(io::Error::other(format!(
                    "a frame of {length} bytes, the limit is {MESSAGE_BYTES_MAX}"
                )));
            }
            let frame_bytes = HEADER_BYTES + length;
            if self.filled - whole.bytes < frame_bytes {
                if self.buffer.len() < 2 * frame_bytes {
                    self.buffer.resize(2 * frame_bytes, 0);
                }
                break;
            }
            whole.frames += 1;
            whole.bytes += frame_bytes;
        }
        Ok(whole)
    }

    fn consume(&mut self, bytes: usize) {
        self.buffer.copy_within(bytes..self.filled, 0);
        self.filled -= bytes;
    }
}

/// The client's side.
#[derive(Debug)]
pub(super) struct Echo {
    stream: TcpStream,
    frames: Frames,
}

impl Echo {
    pub(super) fn connect(address: SocketAddr) -> Result<Self, CompareError> {
        let connect = || {
            let stream = TcpStream::connect_timeout(&address, SILENCE_MAX)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(SILENCE_MAX))?;
            stream.set_write_timeout(Some(SILENCE_MAX))?;
            Ok::<_, io::Error>(stream)
        };
        let stream = connect().map_err(CompareError::setup(Rival::Bare, "cannot connect"))?;
        Ok(Self {
            stream,
            frames: Frames::new(),
        })
    }

    /// Reads until at least one frame is complete.
    fn receive(&mut self) -> io::Result<Whole> {
        loop {
            if self.frames.receive(&mut self.stream)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let whole = self.frames.whole()?;
            if whole.frames > 0 {
                return Ok(whole);
            }
        }
    }

    /// Sends a request frame and receives its answer, which stays in the buffer.
    fn exchange(&mut self, request: &[u8]) -> io::Result<Whole> {
        self.stream.write_all(request)?;
        self.receive()
    }

    /// Writes and reads on one thread.
    fn window_of_small(&mut self, requests: &Requests, end: Instant) -> io::Result<u64> {
        self.stream.write_all(requests.first(requests.count))?;
        let mut waiting = requests.count;
        let mut calls = 0;
        while waiting > 0 {
            let whole = self.receive()?;
            requests.check(whole)?;
            self.frames.consume(whole.bytes);
            waiting = waiting.saturating_sub(whole.frames);
            calls += whole.frames as u64;
            if Instant::now() < end {
                self.stream.write_all(requests.first(whole.frames))?;
                waiting += whole.frames;
            }
        }
        Ok(calls)
    }

    /// Writes on a second thread. With one thread, both sides could block in a write.
    fn window_of_large(&mut self, requests: &Requests, end: Instant) -> io::Result<u64> {
        let mut writing = self.stream.try_clone()?;
        let (permits, permitted) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let writer = thread::Builder::new()
                .name("bare-writer".to_owned())
                .spawn_scoped(scope, move || {
                    while permitted.recv().is_ok() {
                        if let Err(error) = writing.write_all(requests.first(1)) {
                            // Ends the read of the other thread.
                            let _ = writing.shutdown(Shutdown::Both);
                            return Err(error);
                        }
                    }
                    Ok(())
                })?;
            let read = self.read_large(requests, end, permits);
            match writer.join() {
                Ok(written) => written.and(read),
                Err(_) => Err(io::Error::other("the writing thread panicked")),
            }
        })
    }

    fn read_large(
        &mut self,
        requests: &Requests,
        end: Instant,
        permits: mpsc::Sender<()>,
    ) -> io::Result<u64> {
        let mut waiting = 0;
        let mut calls = 0;
        let mut wanted = requests.count;
        loop {
            for _ in 0..wanted {
                // Fails if the writer has failed. It has shut down the socket, so the next read fails.
                let _ = permits.send(());
            }
            waiting += wanted;
            if waiting == 0 {
                return Ok(calls);
            }
            let whole = self.receive()?;
            requests.check(whole)?;
            self.frames.consume(whole.bytes);
            waiting = waiting.saturating_sub(whole.frames);
            calls += whole.frames as u64;
            wanted = if Instant::now() < end {
                whole.frames
            } else {
                0
            };
        }
    }
}

/// Identical consecutive frames, ready to be written.
#[derive(Debug)]
struct Requests {
    frames: Vec<u8>,
    frame_bytes: usize,
    count: usize,
}

impl Requests {
    fn new(payload: &[u8], count: usize) -> Self {
        let frame = frame(payload);
        Self {
            // Large frames are written one by one.
            frames: if frame.len() * count <= IN_FLIGHT_BYTES_MAX {
                frame.repeat(count)
            } else {
                frame.clone()
            },
            frame_bytes: frame.len(),
            count,
        }
    }

    fn first(&self, count: usize) -> &[u8] {
        &self.frames[..(count * self.frame_bytes).min(self.frames.len())]
    }

    fn check(&self, answers: Whole) -> io::Result<()> {
        if answers.bytes == answers.frames * self.frame_bytes {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "{answers:?} for requests of {} bytes",
            self.frame_bytes
        )))
    }
}

fn frame(payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADER_BYTES];
    // All payloads are far below 4 GiB; a server rejects longer ones.
    LittleEndian::write_u32(&mut frame, u32::try_from(payload.len()).unwrap_or(u32::MAX));
    frame.extend_from_slice(payload);
    frame
}

impl Client for Echo {
    fn echo(&mut self, payload: &Bytes) -> Result<Bytes, CompareError> {
        let whole = self
            .exchange(&frame(payload))
            .map_err(CompareError::call(Rival::Bare))?;
        let answer = Bytes::copy_from_slice(&self.frames.bytes()[HEADER_BYTES..whole.bytes]);
        self.frames.consume(whole.bytes);
        Ok(answer)
    }

    fn one_in_flight(
        &mut self,
        payload: &Bytes,
        time: Duration,
    ) -> Result<Vec<Duration>, CompareError> {
        let request = frame(payload);
        let mut latencies = Vec::new();
        let mut sent = Instant::now();
        let end = sent + time;
        while latencies.is_empty() || sent < end {
            let whole = self
                .exchange(&request)
                .map_err(CompareError::call(Rival::Bare))?;
            let answered = Instant::now();
            check_length(
                Rival::Bare,
                payload,
                &self.frames.bytes()[HEADER_BYTES..whole.bytes],
            )?;
            self.frames.consume(whole.bytes);
            latencies.push(answered - sent);
            sent = answered;
        }
        Ok(latencies)
    }

    fn window(
        &mut self,
        payload: &Bytes,
        in_flight: usize,
        time: Duration,
    ) -> Result<Throughput, CompareError> {
        let requests = Requests::new(payload, in_flight);
        let began = Instant::now();
        let end = began + time;
        let calls = if requests.frame_bytes * in_flight <= IN_FLIGHT_BYTES_MAX {
            self.window_of_small(&requests, end)
        } else {
            self.window_of_large(&requests, end)
        };
        Ok(Throughput {
            calls: calls.map_err(CompareError::call(Rival::Bare))?,
            elapsed: began.elapsed(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_split_of_the_bytes_gives_the_same_frames() {
        let payloads = [&b"one"[..], b"", b"three"];
        let bytes: Vec<u8> = payloads.iter().flat_map(|payload| frame(payload)).collect();
        for split in 0..=bytes.len() {
            let mut frames = Frames::new();
            let mut seen = 0;
            for mut part in [&bytes[..split], &bytes[split..]] {
                frames.receive(&mut part).unwrap();
                let whole = frames.whole().unwrap();
                seen += whole.frames;
                frames.consume(whole.bytes);
            }
            assert_eq!((seen, frames.filled), (3, 0), "split at {split}");
        }
    }

    #[test]
    fn a_frame_beyond_the_limit_is_an_error_and_allocates_nothing() {
        let mut frames = Frames::new();
        frames.receive(&mut &[0xff_u8; HEADER_BYTES][..]).unwrap();
        let said = frames.whole().unwrap_err().to_string();
        assert_eq!(said, "a frame of 4294967295 bytes, the limit is 16777216");
        assert_eq!(frames.buffer.len(), BUFFER_BYTES);
    }
}
