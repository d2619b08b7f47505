//! The types of this module without the feature `tls`: they have no values.

use std::convert::Infallible;
use std::io::{self, IoSlice, Write};

use super::Protocol;
use super::error::{CredentialsError, TlsError};

/// The credentials that prove the identity of a process. Needs the feature `tls`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials(Infallible);

/// The configuration of the server's side of connections. Needs the feature `tls`.
#[derive(Debug, Clone)]
pub struct TlsServer(Infallible);

/// The configuration of the client's side of connections. Needs the feature `tls`.
#[derive(Debug, Clone)]
pub struct TlsClient(Infallible);

/// The TLS of one connection. Needs the feature `tls`.
#[derive(Debug)]
pub struct TlsLayer(Infallible);

#[expect(
    missing_docs,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    reason = "the type with the feature documents them"
)]
impl Credentials {
    pub fn server(&self, _: Protocol) -> Result<TlsServer, CredentialsError> {
        match self.0 {}
    }

    pub fn client(&self, _: Protocol, _: &str) -> Result<TlsClient, CredentialsError> {
        match self.0 {}
    }

    pub const fn has_certificates(&self) -> bool {
        match self.0 {}
    }

    pub fn with_server_name(self, _: &str) -> Self {
        match self.0 {}
    }

    pub fn http_token(&self) -> Option<String> {
        match self.0 {}
    }
}

#[expect(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "the type with the feature documents them"
)]
impl TlsServer {
    pub fn start(&self) -> Result<TlsLayer, CredentialsError> {
        match self.0 {}
    }
}

#[expect(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "the type with the feature documents them"
)]
impl TlsClient {
    pub fn start(&self) -> Result<TlsLayer, CredentialsError> {
        match self.0 {}
    }
}

#[expect(
    missing_docs,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    reason = "the type with the feature documents them"
)]
impl TlsLayer {
    pub fn is_handshaking(&self) -> bool {
        match self.0 {}
    }

    pub fn has_computed(&self) -> bool {
        match self.0 {}
    }

    pub fn receive(&mut self, _: &[u8], _: &mut Vec<u8>) -> Result<(), TlsError> {
        match self.0 {}
    }

    pub fn has_unsent(&self) -> bool {
        match self.0 {}
    }

    pub fn send(&mut self, _: &mut impl Write) -> io::Result<bool> {
        match self.0 {}
    }

    pub fn seal(&mut self, _: &[IoSlice<'_>]) -> usize {
        match self.0 {}
    }

    pub fn sealing<'l, W: Write>(&'l mut self, writer: &'l mut W) -> impl Write + 'l {
        let _ = &writer;
        match self.0 {}
        #[expect(unreachable_code, reason = "it gives the type")]
        writer
    }
}
