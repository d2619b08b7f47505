//! Tests of reads and writes over loopback, with peers that stall, send single bytes and close.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use c10d_socket::{Cancel, wait_for_input};

use super::*;

/// A timeout that only a hang reaches, even on a loaded machine.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

fn within(time: Duration) -> Deadline {
    Deadline::after(Instant::now(), time)
}

/// The stream under test and the peer's end of its connection.
fn pair() -> (Stream, std::net::TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    (Stream::new(near, None).unwrap(), far)
}

fn write(near: &mut Stream, bytes: &[u8], deadline: Deadline) -> io::Result<()> {
    near.write_all_by(&mut [IoSlice::new(bytes)], deadline)
}

/// Writes until the socket buffers are full.
fn fill(near: &mut Stream) {
    let chunk = vec![7; 1 << 20];
    while write(near, &chunk, within(SHORT)).is_ok() {}
}

/// Sends a byte every few milliseconds until the other end has closed.
fn trickle(mut peer: std::net::TcpStream) -> JoinHandle<()> {
    thread::spawn(move || {
        while peer.write_all(b".").is_ok() {
            thread::sleep(Duration::from_millis(5));
        }
    })
}

/// Starts a thread and returns once it is blocked, on systems with /proc.
fn blocked<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let (sender, receiver) = mpsc::channel::<PathBuf>();
    let thread = thread::spawn(move || {
        let task = fs::read_link("/proc/thread-self").unwrap_or_default();
        sender.send(task).unwrap();
        work()
    });
    let task = receiver.recv_timeout(LONG).expect("the thread starts");
    let stat = Path::new("/proc").join(&task).join("stat");
    let deadline = within(LONG);
    while !task.as_os_str().is_empty() {
        let stat = fs::read_to_string(&stat).expect("the thread has not ended");
        if stat.rsplit(") ").next().unwrap().starts_with('S') {
            break;
        }
        assert!(
            !deadline.has_passed(Instant::now()),
            "the thread does not block: {stat}"
        );
        thread::yield_now();
    }
    thread
}

#[test]
fn many_pieces_arrive_in_order() {
    let (mut near, mut far) = pair();
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        far.read_to_end(&mut got).unwrap();
        got
    });
    // More pieces than one system call takes, some of them empty, and more bytes than the socket
    // buffers hold.
    let parts: Vec<Vec<u8>> = (0..5_000_usize)
        .map(|at| vec![at as u8; at % 3_000])
        .collect();
    let mut pieces: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
    near.write_all_by(&mut pieces, within(LONG)).unwrap();
    near.write_all_by(&mut [], within(LONG)).unwrap();
    write(&mut near, b"", within(LONG)).unwrap();
    near.socket.shutdown(Shutdown::Both).unwrap();
    assert!(reader.join().unwrap() == parts.concat());
}

#[test]
fn a_read_collects_bytes_that_arrive_one_by_one() {
    let (mut near, far) = pair();
    let trickling = trickle(far);
    let mut buf = b"kept".to_vec();
    near.read_exact_into_vec_by(&mut buf, 10, within(LONG))
        .unwrap();
    assert_eq!(buf, b"kept..........");
    near.read_exact_into_vec_by(&mut buf, 0, within(Duration::ZERO))
        .unwrap();
    drop(near);
    trickling.join().unwrap();
}

#[test]
fn single_bytes_do_not_extend_the_deadline_of_a_read() {
    let (mut near, far) = pair();
    let trickling = trickle(far);
    let mut buf = Vec::new();
    let limit = within(Duration::from_millis(100));
    let error = near
        .read_exact_into_vec_by(&mut buf, 1 << 40, limit)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(
        buf.capacity() <= (64 << 10) + 9 * buf.len(),
        "{}",
        buf.capacity()
    );
    drop(near);
    trickling.join().unwrap();
}

#[test]
fn after_the_deadline_bytes_that_have_arrived_are_read() {
    let (mut near, mut far) = pair();
    let mut buf = [0; 4];
    let error = near.read_by(&mut buf, within(Duration::ZERO)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    far.write_all(b"ab").unwrap();
    assert!(wait_for_input(&*near.socket, LONG, &Cancel::NEVER).unwrap());
    assert_eq!(near.read_by(&mut buf, within(Duration::ZERO)).unwrap(), 2);
    write(&mut near, b"c", within(Duration::ZERO)).unwrap();
}

#[test]
fn unread_input_stays_readable() {
    let (mut near, mut far) = pair();
    far.write_all(b"abc").unwrap();
    for letter in [b"a", b"b", b"c"] {
        let mut buf = [0];
        assert_eq!(near.read_by(&mut buf, within(LONG)).unwrap(), 1);
        assert_eq!(&buf, letter);
    }
    let error = near.read_by(&mut [0], within(Duration::ZERO)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

#[test]
fn input_that_arrives_during_a_write_is_readable_afterwards() {
    let (mut near, mut far) = pair();
    fill(&mut near);
    let chunk = vec![7; 1 << 20];
    let writer = blocked(move || {
        write(&mut near, &chunk, within(LONG)).unwrap();
        near
    });
    far.write_all(b"x").unwrap();
    let reader = thread::spawn(move || {
        let mut far = far;
        io::copy(&mut far, &mut io::sink()).unwrap()
    });
    let mut near = writer.join().unwrap();
    let mut buf = [0; 4];
    assert_eq!(near.read_by(&mut buf, within(LONG)).unwrap(), 1);
    drop(near);
    reader.join().unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn an_end_of_stream_that_arrives_with_the_last_bytes_is_read() {
    let (mut near, mut far) = pair();
    far.write_all(b"ab").unwrap();
    far.shutdown(Shutdown::Write).unwrap();
    // One event reports both.
    wait_for_fin(&near);
    let mut buf = [0; 16];
    assert_eq!(near.read_by(&mut buf, within(LONG)).unwrap(), 2);
    for _ in 0..2 {
        assert_eq!(near.read_by(&mut buf, within(LONG)).unwrap(), 0);
    }
    // The other direction is still open.
    write(&mut near, b"x", within(LONG)).unwrap();
    far.read_exact(&mut buf[..1]).unwrap();
}

/// Returns once the peer's FIN has arrived, without consuming an event or a byte.
#[cfg(target_os = "linux")]
fn wait_for_fin(near: &Stream) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let limit = Timespec {
        tv_sec: 60,
        tv_nsec: 0,
    };
    let mut entries = [PollFd::new(&*near.socket, PollFlags::RDHUP)];
    assert_eq!(poll(&mut entries, Some(&limit)).unwrap(), 1, "no FIN");
}

#[test]
fn an_early_end_of_stream_is_an_error_and_keeps_the_bytes() {
    let (mut near, mut far) = pair();
    far.write_all(b"abc").unwrap();
    drop(far);
    let mut buf = Vec::new();
    let error = near
        .read_exact_into_vec_by(&mut buf, 8, within(LONG))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert_eq!(buf, b"abc");
    assert_eq!(near.read_by(&mut [0], within(LONG)).unwrap(), 0);
}

#[test]
fn a_large_read_leaves_the_next_message() {
    let (mut near, mut far) = pair();
    let value: Vec<u8> = (0..8 << 20).map(|at: u32| (at % 251) as u8).collect();
    let sent = value.clone();
    let writer = thread::spawn(move || {
        far.write_all(&sent).unwrap();
        far.write_all(b"next").unwrap();
        far
    });
    let mut buf = Vec::new();
    near.read_exact_into_vec_by(&mut buf, value.len(), within(LONG))
        .unwrap();
    assert!(buf == value);
    let mut next = Vec::new();
    near.read_exact_into_vec_by(&mut next, 4, within(LONG))
        .unwrap();
    assert_eq!(&next, b"next");
    writer.join().unwrap();
}

#[test]
fn shutdown_wakes_a_reader() {
    let (mut near, _far) = pair();
    let socket = Arc::clone(&near.socket);
    let reader = blocked(move || near.read_by(&mut [0], within(LONG)));
    socket.shutdown(Shutdown::Both).unwrap();
    assert_eq!(reader.join().unwrap().unwrap(), 0);
}

#[test]
fn shutdown_wakes_a_writer() {
    let (mut near, _far) = pair();
    fill(&mut near);
    let socket = Arc::clone(&near.socket);
    let writer = blocked(move || write(&mut near, &[7; 1 << 20], within(LONG)));
    socket.shutdown(Shutdown::Both).unwrap();
    let error = writer.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

#[test]
fn a_reset_wakes_a_reader() {
    let (mut near, far) = pair();
    let reader = blocked(move || near.read_by(&mut [0], within(LONG)));
    socket2::SockRef::from(&far)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(far);
    let error = reader.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}
