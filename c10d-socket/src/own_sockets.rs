//! The TCP connections of this process that other libraries have made. They can wake a library that blocks in a
//! receive without a way to end it, such as gloo.
//!
//! Sockets are identified by their inodes. A descriptor's number is used again as soon as it is closed, an inode is
//! not: a set that was made for some connections never matches later connections. Only on Linux, which lists them in
//! `/proc`.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use socket2::SockRef;

use crate::sys;

/// A set of TCP connections of this process.
///
/// ```no_run
/// use c10d_socket::OwnConnections;
///
/// let before = OwnConnections::now()?;
/// // ... a library connects to its peers, and blocks in another thread ...
/// let connections = OwnConnections::now()?.since(&before);
/// connections.end_receiving()?; // the library reads the end of its streams
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnConnections {
    inodes: BTreeSet<u64>,
}

impl OwnConnections {
    /// Returns all TCP connections that this process has now. Does not block.
    ///
    /// # Errors
    /// The system's error if `/proc/self/fd` cannot be read.
    pub fn now() -> io::Result<Self> {
        let mut inodes = BTreeSet::new();
        for (fd, inode) in sockets()? {
            if let Some(socket) = duplicate(fd, inode) {
                let peer = SockRef::from(&socket).peer_addr();
                if peer.is_ok_and(|peer| peer.as_socket().is_some()) {
                    inodes.insert(inode);
                }
            }
        }
        Ok(Self { inodes })
    }

    /// Returns the connections that are not in `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let inodes = self.inodes.difference(&earlier.inodes).copied().collect();
        Self { inodes }
    }

    /// Adds the connections of another set.
    pub fn add(&mut self, others: Self) {
        self.inodes.extend(others.inodes);
    }

    /// Returns the number of connections in the set.
    pub fn count(&self) -> usize {
        self.inodes.len()
    }

    /// Shuts down the receiving side of the connections that are still open, so that reads return the end of the
    /// stream. Returns the number of these connections. Does not block.
    ///
    /// The sending side stays open: a library that notices a failed write instead of the end may lose the operation.
    ///
    /// # Errors
    /// The system's error if `/proc/self/fd` cannot be read.
    pub fn end_receiving(&self) -> io::Result<usize> {
        let mut open = 0;
        if self.inodes.is_empty() {
            return Ok(open);
        }
        for (fd, inode) in sockets()? {
            if self.inodes.contains(&inode)
                && let Some(socket) = duplicate(fd, inode)
            {
                open += 1;
                // An error means that the connection is lost, which wakes its readers as well.
                let _ = SockRef::from(&socket).shutdown(Shutdown::Read);
            }
        }
        Ok(open)
    }
}

/// The descriptors of sockets, with their inodes. In the meantime, other threads may close and open some.
fn sockets() -> io::Result<Vec<(RawFd, u64)>> {
    let mut sockets = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let Some(fd) = entry?.file_name().to_str().and_then(|fd| fd.parse().ok()) else {
            continue;
        };
        if let Some(inode) = inode(fd) {
            sockets.push((fd, inode));
        }
    }
    Ok(sockets)
}

fn inode(fd: RawFd) -> Option<u64> {
    let link = fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
    let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
    inode.parse().ok()
}

/// A descriptor of the socket with this inode that only the caller closes.
fn duplicate(fd: RawFd, expected: u64) -> Option<OwnedFd> {
    let copy = sys::duplicate(fd).ok()?;
    (inode(copy.as_raw_fd()) == Some(expected)).then_some(copy)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
        let (far, _) = listener.accept().expect("accepts");
        (near, far)
    }

    /// Other tests of this process open connections as well: this set is one thread's.
    fn only(streams: [&TcpStream; 2]) -> OwnConnections {
        let inodes = streams.map(|stream| inode(stream.as_raw_fd()).expect("a socket"));
        OwnConnections {
            inodes: inodes.into(),
        }
    }

    #[test]
    fn a_blocked_receive_ends_and_other_connections_stay() {
        let (kept, mut kept_far) = pair();
        let before = OwnConnections::now().expect("/proc");
        let (mut near, mut far) = pair();
        let now = OwnConnections::now().expect("/proc");
        let mesh = only([&near, &far]);
        assert_eq!(mesh.since(&now).count(), 0);
        assert_eq!(mesh.since(&before), mesh);
        assert_eq!(only([&kept, &kept_far]).since(&before).count(), 0);

        let reader = thread::spawn(move || near.read(&mut [0; 8]).map(|count| (count, near)));
        assert_eq!(mesh.end_receiving().expect("/proc"), 2);
        let (count, mut near) = reader.join().expect("no panic").expect("no error");
        assert_eq!(count, 0);
        assert_eq!(far.read(&mut [0; 8]).expect("no error"), 0);
        // Both still send.
        near.write_all(b"x").expect("sends");
        kept_far.write_all(b"y").expect("sends");
        let mut byte = [0];
        (&kept).read_exact(&mut byte).expect("is whole");
        assert_eq!(&byte, b"y");
        drop((near, far));
        assert_eq!(mesh.end_receiving().expect("/proc"), 0);
    }

    #[test]
    fn listeners_and_files_are_no_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let inode = inode(listener.as_raw_fd()).expect("a socket");
        let now = OwnConnections::now().expect("/proc");
        assert!(!now.inodes.contains(&inode));
    }
}
