//! Authenticated and encrypted connections, as a layer of bytes that does no I/O.
//!
//! Both sides prove that they hold the same [`Secret`], or a key with a certificate of the same authority
//! ([`Credentials`]). The connection is TLS 1.3 with forward secrecy; docs/spec/handshake.md has the scheme. Without
//! the feature `tls` the types exist but have no values, so a program that could use them needs no second version of
//! its code, and the compiler removes the parts that use them.

#[cfg(feature = "tls")]
mod credentials;
mod error;
#[cfg(feature = "tls")]
mod layer;
#[cfg(not(feature = "tls"))]
mod placeholders;
#[cfg(feature = "tls")]
mod raw_key;
#[cfg(feature = "tls")]
mod secret;
#[cfg(feature = "tls")]
mod secret_file;
#[cfg(feature = "tls")]
mod server_names;
#[cfg(all(test, feature = "tls"))]
mod tests;

#[cfg(feature = "tls")]
pub use credentials::{CertificateFiles, Credentials, TlsClient, TlsServer};
pub use error::{CredentialsError, TlsError};
#[cfg(feature = "tls")]
pub use layer::TlsLayer;
#[cfg(not(feature = "tls"))]
pub use placeholders::{Credentials, TlsClient, TlsLayer, TlsServer};
#[cfg(feature = "tls")]
pub use secret::Secret;

/// The protocol of a connection. A key of one protocol cannot be used for another protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// The TCPStore protocol.
    Store,
    /// The calls of `rpc-agent`.
    Rpc,
    /// HTTP/1.1 with a server of another project. Only with certificates.
    Http,
}

impl Protocol {
    /// The name of the protocol in keys and in the TLS handshake.
    #[cfg(feature = "tls")]
    const fn name(self) -> &'static str {
        match self {
            Self::Store => "c10d-store/1",
            Self::Rpc => "c10d-rpc/1",
            Self::Http => "http/1.1",
        }
    }
}

/// Returns whether a connection with this first byte uses TLS: it begins with a handshake record (RFC 8446, section
/// 5.1).
#[must_use]
pub const fn is_tls(first: u8) -> bool {
    first == 0x16
}
