//! One connection's TLS: bytes of the wire in, bytes of the protocol out, and the other way round.

use std::fmt;
use std::io::{self, BufRead, IoSlice, Write};

use rustls::{
    AlertDescription, CertificateError, Connection, Error, IoState, PeerIncompatible,
    PeerMisbehaved,
};

use super::error::TlsError;

/// The most bytes that are sealed and not sent.
const UNSENT_BYTES_MAX: usize = 64 << 10;

/// The TLS of one connection. It does no I/O and has no clock: bytes from the peer go into
/// [`receive`](Self::receive), and [`send`](Self::send) writes the bytes for the peer.
pub struct TlsLayer {
    connection: Box<Connection>,
    /// Public-key operations were made for the peer.
    has_computed: bool,
    /// The peer must offer the protocol.
    needs_protocol: bool,
}

impl fmt::Debug for TlsLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsLayer")
            .field("is_handshaking", &self.is_handshaking())
            .finish_non_exhaustive()
    }
}

impl TlsLayer {
    pub(super) fn new(mut connection: Connection, needs_protocol: bool) -> Self {
        connection.set_buffer_limit(Some(UNSENT_BYTES_MAX));
        Self {
            connection: Box::new(connection),
            has_computed: false,
            needs_protocol,
        }
    }

    /// Returns whether the handshake is in progress: the peer has not proved itself yet.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Returns whether public-key operations were made for the peer, even if [`receive`](Self::receive) then failed.
    #[must_use]
    pub const fn has_computed(&self) -> bool {
        self.has_computed
    }

    /// Takes received bytes, and appends the bytes of the protocol that they contain to `opened`. Until the peer has
    /// proved itself, `opened` does not grow. Any split of the bytes gives the same result. Afterwards there may be
    /// something to [`send`](Self::send), even after an error: it reports the reason to the peer.
    ///
    /// # Errors
    /// [`TlsError`] if the peer does not have the secret, or bytes were changed. The connection cannot be used
    /// afterwards.
    pub fn receive(&mut self, mut wire: &[u8], opened: &mut Vec<u8>) -> Result<(), TlsError> {
        while !wire.is_empty() {
            match self.connection.read_tls(&mut wire) {
                // The peer has announced that this was its last byte.
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => return Err(failed(error.to_string())),
            }
            let was_handshaking = self.is_handshaking();
            let result = self.connection.process_new_packets();
            self.has_computed |= has_computed(&self.connection, &result);
            let mut left = match result {
                Ok(state) => state.plaintext_bytes_to_read(),
                Err(error) => return Err(failed(explain(&error))),
            };
            if was_handshaking
                && !self.is_handshaking()
                && self.needs_protocol
                && self.connection.alpn_protocol().is_none()
            {
                return Err(failed("the peer did not name its protocol".to_owned()));
            }
            let mut reader = self.connection.reader();
            while left > 0 {
                let count = match reader.fill_buf() {
                    Ok(bytes) => {
                        opened.extend_from_slice(bytes);
                        bytes.len()
                    }
                    Err(_) => break,
                };
                if count == 0 {
                    break;
                }
                reader.consume(count);
                left = left.saturating_sub(count);
            }
        }
        Ok(())
    }

    /// Returns whether there are unsent bytes, for [`send`](Self::send).
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.connection.wants_write()
    }

    /// Writes until everything is sent or the writer would block. Returns whether everything is sent.
    ///
    /// # Errors
    /// Errors of the writer, except `WouldBlock` and `Interrupted`; [`io::ErrorKind::WriteZero`] when a write accepts
    /// no bytes.
    pub fn send(&mut self, writer: &mut impl Write) -> io::Result<bool> {
        while self.connection.wants_write() {
            match self.connection.write_tls(writer) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Seals bytes to be sent, and returns their number. It is less than the length of `pieces` if 64 KiB are already
    /// unsent.
    pub fn seal(&mut self, pieces: &[IoSlice<'_>]) -> usize {
        let sealed = self.connection.writer().write_vectored(pieces);
        // rustls does no I/O here.
        sealed.unwrap_or(0)
    }

    /// Returns a writer that seals its input and sends it to `writer`. It would block as soon as sealed bytes are
    /// unsent; after a successful last write, some may still be unsent.
    pub fn sealing<'l, W: Write>(&'l mut self, writer: &'l mut W) -> impl Write + 'l {
        Sealing {
            layer: self,
            writer,
        }
    }
}

struct Sealing<'l, W> {
    layer: &'l mut TlsLayer,
    writer: &'l mut W,
}

impl<W: Write> Write for Sealing<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.layer.send(self.writer)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = self.layer.seal(pieces);
        self.layer.send(self.writer)?;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether the key exchange was computed. A share that is no point of the curve is found out by computing with it.
fn has_computed(connection: &Connection, result: &Result<IoState, Error>) -> bool {
    connection.negotiated_key_exchange_group().is_some()
        || matches!(
            result,
            Err(Error::PeerMisbehaved(PeerMisbehaved::InvalidKeyShare))
        )
}

const fn failed(detail: String) -> TlsError {
    TlsError { detail }
}

fn explain(error: &Error) -> String {
    match error {
        Error::General(text) if text.contains("no server certificate chain resolved") => {
            "the peer has a different secret".to_owned()
        }
        Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure) => {
            "the peer has the key of a different secret".to_owned()
        }
        Error::InvalidCertificate(CertificateError::BadSignature) => {
            "the peer showed a key that it does not have".to_owned()
        }
        Error::PeerIncompatible(PeerIncompatible::SupportedVersionsExtensionRequired) => {
            "the peer does not speak TLS 1.3".to_owned()
        }
        Error::PeerIncompatible(PeerIncompatible::IncorrectCertificateTypeExtension) => {
            "the peer has no key of a secret".to_owned()
        }
        Error::NoCertificatesPresented => "the peer showed no key".to_owned(),
        Error::AlertReceived(AlertDescription::AccessDenied) => {
            "the peer rejected the secret: it has a different secret".to_owned()
        }
        Error::AlertReceived(alert) => format!("the peer rejected the connection: {alert:?}"),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{Credentials, Protocol, Secret};

    fn pair() -> (TlsLayer, TlsLayer) {
        let credentials = Credentials::from(Secret::random().expect("random numbers"));
        let client = credentials.client(Protocol::Rpc, "localhost");
        let server = credentials.server(Protocol::Rpc);
        let mut client = client.and_then(|it| it.start()).expect("a client");
        let mut server = server.and_then(|it| it.start()).expect("a server");
        while client.has_unsent() || server.has_unsent() {
            pass(&mut client, &mut server).expect("the same secret");
            pass(&mut server, &mut client).expect("the same secret");
        }
        (client, server)
    }

    /// Passes on the bytes of one side. Returns the bytes that the other side opens.
    fn pass(from: &mut TlsLayer, to: &mut TlsLayer) -> Result<Vec<u8>, TlsError> {
        let (mut wire, mut opened) = (Vec::new(), Vec::new());
        from.send(&mut wire).expect("memory");
        to.receive(&wire, &mut opened).map(|()| opened)
    }

    fn update_keys(layer: &mut TlsLayer) {
        layer.connection.refresh_traffic_keys().expect("TLS 1.3");
    }

    #[test]
    fn a_flood_of_key_updates_ends_the_connection_and_queues_nothing() {
        let (mut client, mut server) = pair();
        let mut taken = 0;
        loop {
            update_keys(&mut client);
            if pass(&mut client, &mut server).is_err() {
                break;
            }
            assert!(!server.has_unsent(), "an answer without data");
            taken += 1;
            assert!(taken < 100, "it has no end");
        }
    }

    /// One answer is due however many updates arrive, and it is sent with the next data.
    #[test]
    fn key_updates_between_data_are_answered_once() {
        let (mut client, mut server) = pair();
        for _ in 0..1000 {
            update_keys(&mut client);
            client.seal(&[IoSlice::new(b"c")]);
            let opened = pass(&mut client, &mut server).expect("data goes on");
            assert_eq!(opened, b"c");
            assert!(!server.has_unsent());
        }
        server.seal(&[IoSlice::new(b"s")]);
        let mut wire = Vec::new();
        server.send(&mut wire).expect("memory");
        assert!(wire.len() < 100, "{} bytes", wire.len());
        let mut opened = Vec::new();
        client.receive(&wire, &mut opened).expect("data goes on");
        assert_eq!(opened, b"s");
    }
}
