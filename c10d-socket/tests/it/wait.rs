//! Waiting for input and output, with signals and very long timeouts; one receive and one send.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::unix::thread::JoinHandleExt;
use std::thread;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, recv_into_spare, send_vectored, wait_for_input, wait_for_output};

use crate::peers::{LONG, observed, pair, reset};

const SHORT: Duration = Duration::from_millis(50);

#[test]
fn waiting_does_not_consume_data() {
    let (mut near, mut far) = pair();
    assert!(!wait_for_input(&near, Some(Duration::ZERO), &Cancel::NEVER).unwrap());
    for limit in [SHORT, Duration::from_micros(1_500), Duration::from_nanos(1)] {
        let started = Instant::now();
        assert!(!wait_for_input(&near, Some(limit), &Cancel::NEVER).unwrap());
        assert!(started.elapsed() >= limit, "{limit:?}: early");
    }

    far.write_all(b"x").unwrap();
    for timeout in [Some(LONG), Some(Duration::ZERO), None] {
        assert!(wait_for_input(&near, timeout, &Cancel::NEVER).unwrap());
    }
    let mut buf = [0; 2];
    assert_eq!(near.read(&mut buf).unwrap(), 1);
    assert!(!wait_for_input(&near, Some(Duration::ZERO), &Cancel::NEVER).unwrap());
}

#[test]
fn end_of_stream_and_errors_count_as_input() {
    let (near, far) = pair();
    drop(far);
    assert!(wait_for_input(&near, Some(LONG), &Cancel::NEVER).unwrap());
    let (mut near, far) = pair();
    reset(far);
    assert!(wait_for_input(&near, Some(LONG), &Cancel::NEVER).unwrap());
    let error = near.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_very_long_wait_is_woken_by_data() {
    let longer_than_poll_takes = Duration::from_millis(i32::MAX as u64 + 1);
    for timeout in [Some(longer_than_poll_takes), Some(Duration::MAX), None] {
        let (near, mut far) = pair();
        let waiter = observed(move || wait_for_input(&near, timeout, &Cancel::NEVER).unwrap());
        waiter.wait_until_blocked();
        far.write_all(b"x").unwrap();
        assert!(waiter.join());
    }
}

#[test]
fn signals_neither_end_nor_lengthen_a_wait() {
    extern "C" fn ignore(_signal: libc::c_int) {}
    // SAFETY: the action is zeroed, which is valid for this plain struct, and then filled in; the
    // handler does nothing, so it is safe in any state of the program. Without SA_RESTART.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as *const () as libc::sighandler_t;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()),
            0
        );
    }
    let (near, _far) = pair();
    let limit = Duration::from_millis(300);
    let waiter = thread::spawn(move || {
        let started = Instant::now();
        (
            wait_for_input(&near, Some(limit), &Cancel::NEVER).unwrap(),
            started.elapsed(),
        )
    });
    while !waiter.is_finished() {
        // SAFETY: the thread has not been joined, so its id is valid, even if it has ended by now.
        unsafe { libc::pthread_kill(waiter.as_pthread_t(), libc::SIGUSR1) };
        thread::sleep(Duration::from_millis(10));
    }
    let (ready, taken) = waiter.join().unwrap();
    assert!(!ready);
    // Signals arrive for as long as it waits: a wait that they lengthen would not end.
    assert!(taken >= limit && taken < LONG, "{taken:?}");
}

#[test]
fn a_wait_for_output_ends_when_the_peer_reads() {
    let (mut near, mut far) = pair();
    near.set_nonblocking(true).unwrap();
    assert!(wait_for_output(&near, Some(Duration::ZERO), &Cancel::NEVER).unwrap());
    // The system may accept more bytes shortly after it has refused some.
    let mut written = 0;
    while wait_for_output(&near, Some(SHORT), &Cancel::NEVER).unwrap() {
        written += near.write(&[7; 1 << 16]).unwrap_or(0);
    }
    let reader = thread::spawn(move || {
        let mut sink = vec![0; written];
        far.read_exact(&mut sink).unwrap();
        far
    });
    assert!(wait_for_output(&near, Some(LONG), &Cancel::NEVER).unwrap());
    reader.join().unwrap();
}

#[test]
fn a_send_keeps_the_order_and_the_limit_on_pieces() {
    let (near, mut far) = pair();
    let letters: Vec<u8> = (0..3_000_u32).map(|at| (at % 251) as u8).collect();
    let pieces: Vec<_> = letters.chunks(1).map(IoSlice::new).collect();
    let sent = send_vectored(&near, &pieces).unwrap();
    assert_eq!(sent, 1024);
    let mut received = vec![0; sent];
    far.read_exact(&mut received).unwrap();
    assert_eq!(received, letters[..sent]);

    near.shutdown(Shutdown::Both).unwrap();
    let error = send_vectored(&near, &[IoSlice::new(b"late")]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

#[test]
fn a_receive_stays_within_the_spare_capacity() -> io::Result<()> {
    let (near, mut far) = pair();
    near.set_nonblocking(true)?;
    far.write_all(b"abcdef")?;
    assert!(wait_for_input(&near, Some(LONG), &Cancel::NEVER)?);
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
    assert!(wait_for_input(&near, Some(LONG), &Cancel::NEVER)?);
    assert_eq!(recv_into_spare(&near, &mut rest, 1)?, 0);
    Ok(())
}
