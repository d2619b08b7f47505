//! A socket under the poller, with or without TLS.

use std::io::{self, Write};
use std::net::SocketAddr;

use c10d_socket::recv_into_spare;
use mio::net::TcpStream;

use super::tls::{Received, invalid, received};
use super::tls::{SealedReads, Tls};
use crate::peer::{Batch, Incoming, Recipient, WriteProgress};

/// A connected socket, and the token of its events.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) token: usize,
    pub(crate) stream: TcpStream,
    pub(crate) address: SocketAddr,
    pub(super) tls: Option<Tls>,
}

impl Socket {
    /// The TLS layer between the socket and the frames; always `None` without the feature `tls`, so that the compiler
    /// removes the branch.
    pub(super) fn tls(&self) -> Option<&Tls> {
        if cfg!(feature = "tls") {
            self.tls.as_ref()
        } else {
            None
        }
    }

    /// Receives once; `recipient` gets the messages that this completes. Only for the thread that has the decoder.
    pub(super) fn receive(
        &self,
        decoder: &mut Incoming,
        reads: &mut SealedReads,
        recipient: &mut impl Recipient,
    ) -> Received {
        if let Some(tls) = self.tls() {
            return tls.receive(&self.stream, decoder, reads, recipient);
        }
        let (buffer, bytes_max) = decoder.spare();
        let (count, failure) = received(recv_into_spare(&self.stream, buffer, bytes_max));
        let failure = match failure {
            None if count > 0 => decoder.received(recipient).err().map(invalid),
            failure => failure,
        };
        Received {
            count,
            bytes_max,
            plain_bytes: count,
            failure,
        }
    }

    /// Writes some of the first bytes of a connection, after what TLS has to send.
    pub(super) fn write_bytes(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.tls() {
            None => (&self.stream).write(bytes),
            Some(tls) => tls.writer(&self.stream).write(bytes),
        }
    }

    /// Writes until the batch is written or the socket takes no more bytes. Only for the thread that has the batch.
    pub(super) fn write(&self, batch: &mut Batch) -> io::Result<WriteProgress> {
        let Some(tls) = self.tls() else {
            return batch.write_to(&mut &self.stream);
        };
        let mut writer = tls.writer(&self.stream);
        let result = batch.write_to(&mut writer);
        batch.keep(writer.kept_bytes());
        result
    }
}
