//! Waiting for a socket: data, the end, an error, signals, very long limits.

use std::io::{ErrorKind, Write};
use std::os::unix::thread::JoinHandleExt;
use std::thread;
use std::time::{Duration, Instant};

use c10d_socket::wait_for_input;

use crate::peers::{LONG, observed, pair, reset, within};

const SHORT: Duration = Duration::from_millis(50);

#[test]
fn waiting_sees_data_and_leaves_it_there() {
    let (near, mut far) = pair();
    assert!(!wait_for_input(&near, Some(Duration::ZERO)).unwrap());
    let started = Instant::now();
    assert!(!wait_for_input(&near, Some(SHORT)).unwrap());
    assert!(started.elapsed() >= SHORT);

    far.write_all(b"x").unwrap();
    for timeout in [Some(LONG), Some(Duration::ZERO), None] {
        assert!(wait_for_input(&near, timeout).unwrap());
    }
    let mut buf = [0; 2];
    assert_eq!(near.read_by(&mut buf, within(LONG)).unwrap(), 1);
    assert!(!wait_for_input(&near, Some(Duration::ZERO)).unwrap());
}

#[test]
fn the_end_and_an_error_count_as_input() {
    let (near, far) = pair();
    drop(far);
    assert!(wait_for_input(&near, Some(LONG)).unwrap());
    let (near, far) = pair();
    reset(far);
    assert!(wait_for_input(&near, Some(LONG)).unwrap());
    let error = near.read_by(&mut [0], within(LONG)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_very_long_wait_is_woken_by_data() {
    let longer_than_poll_takes = Duration::from_millis(i32::MAX as u64 + 1);
    for timeout in [Some(longer_than_poll_takes), Some(Duration::MAX), None] {
        let (near, mut far) = pair();
        let waiter = observed(move || wait_for_input(&near, timeout).unwrap());
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
            wait_for_input(&near, Some(limit)).unwrap(),
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
    // Signals come for as long as it waits: a wait they lengthen would never end.
    assert!(taken >= limit && taken < LONG, "{taken:?}");
}
