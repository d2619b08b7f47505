//! Pseudo-terminals.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Both ends of a new terminal: the drawing end, and the end for its programs.
pub(crate) fn terminal(columns: usize, rows: usize) -> (OwnedFd, File) {
    let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&near).unwrap();
    unlockpt(&near).unwrap();
    let name = ptsname(&near, Vec::new()).unwrap();
    let path = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
    let far = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    tcsetwinsize(&near, size_of(columns, rows)).unwrap();
    (near, far)
}

fn size_of(columns: usize, rows: usize) -> Winsize {
    Winsize {
        ws_row: rows.try_into().unwrap(),
        ws_col: columns.try_into().unwrap(),
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}
