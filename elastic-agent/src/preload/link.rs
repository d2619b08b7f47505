//! Packets with descriptors over pairs of sockets that have no name.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, sendmsg, socketpair,
};

/// How many descriptors a packet carries at most.
const DESCRIPTORS_MAX: usize = 5;

/// Two connected sockets that keep packets apart. Programs that are executed inherit neither.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

/// Sends a packet. Returns false if there is no room. Does not block.
///
/// # Errors
/// The peer has ended.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    packet: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<bool> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match sendmsg(socket, &[IoSlice::new(packet)], &mut control, flags) {
            Ok(_) => return Ok(true),
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends a packet to a socket that has room for it.
///
/// # Errors
/// The peer has ended, or there is no room, as in a template that does not read.
pub(super) fn send_at_once(
    socket: BorrowedFd<'_>,
    packet: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    match send(socket, packet, descriptors)? {
        true => Ok(()),
        false => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// What a socket has.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received<'b> {
    Packet(&'b [u8]),
    Nothing,
    /// The peer has closed its end.
    End,
}

/// Receives a packet if there is one. One that is longer than the buffer is cut.
pub(super) fn receive<'b>(socket: BorrowedFd<'_>, buffer: &'b mut [u8]) -> Received<'b> {
    loop {
        match recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Received::End,
            Ok((length, _)) => return Received::Packet(&buffer[..length]),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Received::Nothing,
            Err(_) => return Received::End,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, recvmsg};

    use super::*;

    #[test]
    fn packets_arrive_one_by_one_with_their_descriptors() {
        let (near, far) = pair().unwrap();
        let mut buffer = [0; 16];
        assert_eq!(receive(near.as_fd(), &mut buffer), Received::Nothing);
        let (reader, writer) = io::pipe().unwrap();
        send(far.as_fd(), b"one", &[]).unwrap();
        send(far.as_fd(), b"two", &[reader.as_fd(), reader.as_fd()]).unwrap();
        assert_eq!(receive(near.as_fd(), &mut buffer), Received::Packet(b"one"));
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [io::IoSliceMut::new(&mut buffer)];
        recvmsg(&near, &mut slices, &mut control, RecvFlags::empty()).unwrap();
        let mut received = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                received.extend(descriptors);
            }
        }
        assert_eq!(received.len(), 2);
        drop(writer);
        let mut text = String::new();
        let read = File::from(received.remove(0)).read_to_string(&mut text);
        assert_eq!(read.unwrap(), 0);
        drop(far);
        assert_eq!(receive(near.as_fd(), &mut buffer), Received::End);
        assert!(send(near.as_fd(), b"three", &[]).is_err());
    }
}
