//! Reading and writing over loopback, with peers that stall, trickle and close.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::peers::{LONG, observed, pair, trickle, within};
use c10d_socket::{DeadlineStream, recv_into_spare, wait_for_input, wait_for_output};

const SHORT: Duration = Duration::from_millis(50);

#[test]
fn output_is_awaited_when_the_peer_reads_again() {
    let (near, mut far) = pair();
    assert!(wait_for_output(&near, Some(Duration::ZERO)).unwrap());
    let chunk = vec![7; 1 << 20];
    let written = stuff(&near, &chunk);
    assert!(!wait_for_output(&near, Some(Duration::ZERO)).unwrap());
    let reader = thread::spawn(move || {
        let mut sink = vec![0; written];
        far.read_exact(&mut sink).unwrap();
        far
    });
    assert!(wait_for_output(&near, Some(LONG)).unwrap());
    reader.join().unwrap();
}

/// Writes until nothing more goes in; returns how much did.
fn stuff(near: &DeadlineStream, chunk: &[u8]) -> usize {
    let mut total = 0;
    loop {
        match near.write_all_by(chunk, within(SHORT)) {
            Ok(()) => total += chunk.len(),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::TimedOut);
                return total + error.written();
            }
        }
    }
}

#[test]
fn a_failed_write_tells_what_the_peer_can_have_got() {
    let (near, mut far) = pair();
    let written = stuff(&near, &vec![7; 1 << 20]);
    near.shutdown().unwrap();
    let mut got = Vec::new();
    far.read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), written);

    let error = near.write_all_by(b"late", within(LONG)).unwrap_err();
    assert_eq!((error.written(), error.kind()), (0, ErrorKind::BrokenPipe));
}

#[test]
fn pieces_arrive_in_order_however_many() {
    let (near, mut far) = pair();
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        far.read_to_end(&mut got).unwrap();
        got
    });
    // More pieces than one call takes, empty ones among them, and more bytes than a socket holds.
    let parts: Vec<Vec<u8>> = (0..5_000_usize)
        .map(|at| vec![at as u8; at % 3_000])
        .collect();
    let mut pieces: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
    near.write_vectored_all_by(&mut pieces, within(LONG))
        .unwrap();
    near.write_vectored_all_by(&mut [], within(LONG)).unwrap();
    near.write_all_by(b"", within(LONG)).unwrap();
    near.shutdown().unwrap();
    assert!(reader.join().unwrap() == parts.concat());
}

#[test]
fn a_read_is_exact_however_the_bytes_come() {
    let (near, far) = pair();
    let trickling = trickle(far);
    let mut buf = [0; 10];
    near.read_exact_by(&mut buf, within(LONG)).unwrap();
    assert_eq!(buf, [b'.'; 10]);
    let mut buf = b"kept".to_vec();
    near.read_exact_into_vec_by(&mut buf, 10, within(LONG))
        .unwrap();
    assert_eq!(buf, b"kept..........");
    near.read_exact_by(&mut [], within(Duration::ZERO)).unwrap();
    near.read_exact_into_vec_by(&mut buf, 0, within(Duration::ZERO))
        .unwrap();
    near.shutdown().unwrap();
    trickling.join().unwrap();
}

#[test]
fn a_trickle_does_not_hold_a_read_beyond_its_deadline() {
    let (near, far) = pair();
    let trickling = trickle(far);
    let limit = Duration::from_millis(100);
    let error = near
        .read_exact_by(&mut [0; 1 << 20], within(limit))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("of 1048576 bytes"), "{error}");

    let mut buf = Vec::new();
    let error = near
        .read_exact_into_vec_by(&mut buf, 1 << 40, within(limit))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(
        error
            .to_string()
            .contains(&format!("after {} of ", buf.len())),
        "{error}"
    );
    assert!(
        buf.capacity() <= (64 << 10) + 9 * buf.len(),
        "{}",
        buf.capacity()
    );
    near.shutdown().unwrap();
    trickling.join().unwrap();
}

#[test]
fn a_passed_deadline_takes_what_is_there() {
    let (near, mut far) = pair();
    let error = near.read_by(&mut [0], within(Duration::ZERO)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    far.write_all(b"ab").unwrap();
    assert!(wait_for_input(&near, Some(LONG)).unwrap());
    let mut buf = [0; 2];
    near.read_exact_by(&mut buf, within(Duration::ZERO))
        .unwrap();
    assert_eq!(&buf, b"ab");
    near.write_all_by(b"c", within(Duration::ZERO)).unwrap();
}

#[test]
fn an_early_end_says_how_far_it_came() {
    let (near, mut far) = pair();
    far.write_all(b"abc").unwrap();
    drop(far);
    let mut buf = Vec::new();
    let error = near
        .read_exact_into_vec_by(&mut buf, 8, within(LONG))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert_eq!(
        error.to_string(),
        "the connection was closed after 3 of 8 bytes"
    );
    assert_eq!(buf, b"abc");
    assert_eq!(near.read_by(&mut [0], within(LONG)).unwrap(), 0);
}

#[test]
fn a_large_value_arrives_whole_and_the_next_message_stays() {
    let (near, mut far) = pair();
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
    let mut next = [0; 4];
    near.read_exact_by(&mut next, within(LONG)).unwrap();
    assert_eq!(&next, b"next");
    writer.join().unwrap();
}

#[test]
fn shutdown_wakes_a_reader_and_a_writer() {
    let (near, _far) = pair();
    let near = Arc::new(near);
    let reader = observed({
        let near = Arc::clone(&near);
        move || near.read_exact_by(&mut [0], c10d_socket::Deadline::NEVER)
    });
    stuff(&near, &vec![7; 1 << 20]);
    let writer = observed({
        let near = Arc::clone(&near);
        move || near.write_all_by(&vec![7; 1 << 20], c10d_socket::Deadline::NEVER)
    });
    reader.wait_until_blocked();
    writer.wait_until_blocked();
    near.shutdown().unwrap();
    let read = reader.join().unwrap_err();
    let written = writer.join().unwrap_err();
    assert_eq!(read.kind(), ErrorKind::UnexpectedEof);
    assert_eq!(written.kind(), ErrorKind::BrokenPipe);
}

#[test]
fn a_receive_stays_within_the_spare_capacity() -> io::Result<()> {
    let (near, mut far) = pair();
    far.write_all(b"abcdef")?;
    assert!(wait_for_input(&near, Some(LONG))?);
    let mut buf = Vec::with_capacity(8);
    buf.extend_from_slice(b"1234");
    let room = buf.capacity() - buf.len();
    assert_eq!(recv_into_spare(&near, &mut buf, 1)?, 1);
    assert_eq!(recv_into_spare(&near, &mut buf, 100)?, (room - 1).min(5));
    assert!(buf.starts_with(b"1234abcd"));

    let full = recv_into_spare(&near, &mut Vec::new(), 1).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::InvalidInput);
    let mut rest = Vec::with_capacity(8);
    recv_into_spare(&near, &mut rest, 8)?;
    let nothing = recv_into_spare(&near, &mut rest, 1).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
    far.shutdown(Shutdown::Write)?;
    assert!(wait_for_input(&near, Some(LONG))?);
    assert_eq!(recv_into_spare(&near, &mut rest, 1)?, 0);
    Ok(())
}

#[test]
fn a_stream_knows_its_ends() {
    let (near, far): (DeadlineStream, TcpStream) = pair();
    assert_eq!(near.peer_addr().unwrap(), far.local_addr().unwrap());
    assert_eq!(near.local_addr().unwrap(), far.peer_addr().unwrap());
}
