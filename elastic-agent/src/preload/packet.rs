//! The packets between a launcher, its template and the workers, with descriptors, over pairs of sockets without a name.
//!
//! The fields of a packet are separated by NUL.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use c10d_socket::printable;
use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, sendmsg, socketpair,
};

use super::options::TemplatePlan;

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
/// The peer has ended, or there is no room, for example because a template does not read.
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

/// The content of a socket.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received<'b> {
    Packet(&'b [u8]),
    Nothing,
    /// The peer has closed its end.
    End,
}

/// Receives a packet if there is one. A packet that is longer than the buffer is cut.
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

/// The longest packet that a template or a worker sends.
pub(super) const REPLY_BYTES_MAX: usize = 64 * 1024;

/// The longest text of a template that is kept, in characters.
const TEXT_CHARS_MAX: usize = 1000;

/// The reply of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    /// All modules are imported: their names and seconds, for example `torch=2.310`.
    Ready(Vec<String>),
    /// Workers cannot be forked from this template, now or later.
    Refused(String),
    /// The workers of this fork, which this process does not supervise yet.
    Forked(Vec<i32>),
    /// The process between the template and these workers has ended, so this process is their parent.
    Adopted,
    /// The fork failed; some workers may exist.
    ForkFailed,
    /// All source files are unchanged since their import.
    Fresh,
    /// This source file has changed since its import; nothing was forked.
    Changed(String),
}

impl Reply {
    /// `None` for bytes that no template sends.
    pub(super) fn parse(packet: &[u8]) -> Option<Self> {
        let mut fields = packet.split(|&byte| byte == 0);
        let kind = fields.next()?;
        Some(match kind {
            b"ready" => Self::Ready(fields.map(text).collect()),
            b"refused" => Self::Refused(text(fields.next()?)),
            b"forked" => Self::Forked(fields.map(pid).collect::<Option<_>>()?),
            b"adopted" => Self::Adopted,
            b"failed" => Self::ForkFailed,
            b"fresh" => Self::Fresh,
            b"changed" => Self::Changed(text(fields.next()?)),
            _ => return None,
        })
    }
}

/// The number of a start and the worker that has taken it, from the packet that the worker sends at its gate.
pub(super) fn parse_started(packet: &[u8]) -> Option<(usize, i32)> {
    let mut fields = packet.split(|&byte| byte == 0);
    if fields.next()? != b"started" {
        return None;
    }
    let index = str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    Some((index, pid(fields.next()?)?))
}

/// Returns the packet that configures a template, including the modules to import.
pub(super) fn config(plan: &TemplatePlan, launcher: i32) -> Vec<u8> {
    let mut fields = vec![
        launcher.to_string().into_bytes(),
        plan.script.as_bytes().to_vec(),
    ];
    let preload = &plan.preload;
    for list in [&preload.modules, &plan.worker_variables, &preload.hooks] {
        fields.push(list.len().to_string().into_bytes());
        fields.extend(list.iter().map(|item| item.clone().into_bytes()));
    }
    fields.join(&0)
}

/// Asks for workers; the packet carries the end of the gate at which they wait.
pub(super) fn fork(workers: usize) -> Vec<u8> {
    format!("fork\0{workers}").into_bytes()
}

/// Asks whether sources have changed.
pub(super) const CHECK: &[u8] = b"check";

fn pid(field: &[u8]) -> Option<i32> {
    let pid = str::from_utf8(field).ok()?.parse().ok()?;
    (pid > 1).then_some(pid)
}

/// Returns a printable line of limited length.
fn text(field: &[u8]) -> String {
    let words = field.split(u8::is_ascii_whitespace);
    let words: Vec<&[u8]> = words.filter(|word| !word.is_empty()).collect();
    printable(&words.join(&b' '), TEXT_CHARS_MAX).to_string()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, recvmsg};

    use crate::command_line::CommandLine;
    use crate::preload::PreloadOptions;
    use crate::preload::packet::*;

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

    #[test]
    fn replies_are_parsed() {
        let table: [(&[u8], Option<Reply>); 13] = [
            (
                b"ready\0torch=2.310\0numpy=0.100",
                Some(Reply::Ready(vec![
                    "torch=2.310".to_owned(),
                    "numpy=0.100".to_owned(),
                ])),
            ),
            (
                b"refused\0a\x1b[1m b\n\n  c\xff",
                Some(Reply::Refused("a\\u{1b}[1m b c\\xff".to_owned())),
            ),
            (b"refused", None),
            (b"forked\x0017\x0018", Some(Reply::Forked(vec![17, 18]))),
            (b"forked\x0017\0", None),
            (b"forked\x001", None),
            (b"forked\0-5", None),
            (b"adopted", Some(Reply::Adopted)),
            (b"failed", Some(Reply::ForkFailed)),
            (b"fresh", Some(Reply::Fresh)),
            (b"changed\0/a.py", Some(Reply::Changed("/a.py".to_owned()))),
            (b"", None),
            (b"Ready", None),
        ];
        for (packet, reply) in table {
            assert_eq!(Reply::parse(packet), reply, "{}", packet.escape_ascii());
        }
        let long = [b"refused\0".to_vec(), vec![b'x'; 5000]].concat();
        let Some(Reply::Refused(text)) = Reply::parse(&long) else {
            panic!("not parsed")
        };
        assert_eq!(text.chars().count(), TEXT_CHARS_MAX);
    }

    #[test]
    fn a_worker_names_its_start_and_itself() {
        assert_eq!(parse_started(b"started\x003\x0042"), Some((3, 42)));
        for packet in [
            &b"started\x003"[..],
            b"started\0x\x0042",
            b"start\x003\x0042",
            b"",
        ] {
            assert_eq!(parse_started(packet), None);
        }
    }

    #[test]
    fn the_configuration_has_lists_with_their_lengths() {
        let command = CommandLine::new("python3", ["-u", "train.py"]);
        let mut options = PreloadOptions::new(["torch", "numpy"]);
        options.hooks.push("a:b".to_owned());
        let plan = options
            .plan(&command, 1, Vec::new(), vec!["RANK".to_owned()])
            .unwrap();
        assert_eq!(
            config(&plan, 7),
            b"7\0train.py\x002\0torch\0numpy\x001\0RANK\x001\0a:b"
        );
        assert_eq!(fork(4), b"fork\x004");
    }
}
