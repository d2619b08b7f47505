//! The credentials of a process, and the TLS configurations made from them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

use super::Protocol;
use super::error::CredentialsError;
use super::layer::TlsLayer;
use super::raw_key::{Expected, Role, derive, id_of, key_of};
use super::secret::{SECRETS_MAX, Secret};
use super::server_names::Named;

/// The credentials that prove the identity of a process: a shared secret, or a key with a certificate.
///
/// ```
/// use c10d_socket::{Credentials, Secret};
///
/// // All processes of a job read the same secret, usually from a file.
/// let credentials = Credentials::from_secrets(vec![Secret::random()?])?;
/// assert!(!credentials.has_certificates());
/// # Ok::<(), c10d_socket::CredentialsError>(())
/// ```
#[derive(Clone)]
pub struct Credentials(Kind);

#[derive(Clone)]
enum Kind {
    /// One or more secrets. The first secret is used to connect.
    Secrets(Vec<Secret>),
    Certificates {
        files: Arc<Certificates>,
        /// Further names that the certificate of a server may have.
        names: Arc<[ServerName<'static>]>,
    },
}

struct Certificates {
    /// `None` for a client that shows none.
    own: Option<Own>,
    roots: Arc<RootCertStore>,
}

struct Own {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

/// The PEM files of a process that belongs to an existing PKI.
#[derive(Debug, Clone)]
pub struct CertificateFiles {
    /// The certificate of this process, and the certificates between it and the authority.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The authorities that must have signed the peers' certificates.
    pub authorities: PathBuf,
}

impl PartialEq for Credentials {
    /// Whether both are the same secrets, or were read from files at once.
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Kind::Secrets(one), Kind::Secrets(other)) => one == other,
            (Kind::Certificates { files: one, .. }, Kind::Certificates { files: other, .. }) => {
                Arc::ptr_eq(one, other)
            }
            _ => false,
        }
    }
}

impl Eq for Credentials {}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Secrets(secrets) => write!(f, "Credentials({} secrets)", secrets.len()),
            Kind::Certificates { .. } => f.write_str("Credentials(certificate)"),
        }
    }
}

impl From<Secret> for Credentials {
    fn from(secret: Secret) -> Self {
        Self(Kind::Secrets(vec![secret]))
    }
}

impl Credentials {
    /// Connects with the first secret, and accepts peers that have any of them: so a new secret can be introduced
    /// while the old secret is still in use.
    ///
    /// # Errors
    /// [`CredentialsError::Invalid`] for no secret, or more than eight.
    pub fn from_secrets(secrets: Vec<Secret>) -> Result<Self, CredentialsError> {
        if secrets.is_empty() || secrets.len() > SECRETS_MAX {
            let detail = format!("{} secrets, not 1 to {SECRETS_MAX}", secrets.len());
            return Err(invalid("the secrets", detail));
        }
        Ok(Self(Kind::Secrets(secrets)))
    }

    /// Reads the files of a PKI. Clients check that the server's certificate has the name that they connect to;
    /// servers accept every certificate of the authorities.
    ///
    /// # Errors
    /// [`CredentialsError::Invalid`] if a file cannot be read, or its content is not valid.
    pub fn from_files(files: &CertificateFiles) -> Result<Self, CredentialsError> {
        let key = PrivateKeyDer::from_pem_file(&files.key)
            .map_err(|error| invalid(files.key.display(), format!("{error}")))?;
        let own = Own {
            chain: certificates_of(&files.certificate)?,
            key,
        };
        let credentials = Self::with_roots(Some(own), &files.authorities)?;
        // Whether key and certificate fit.
        credentials.server(Protocol::Store)?;
        Ok(credentials)
    }

    /// Reads credentials for clients of other projects' servers that require no certificate ([`Protocol::Http`]):
    /// clients only check that the server's certificate is of these authorities, a PEM file, and has the name that
    /// they connect to.
    ///
    /// # Errors
    /// [`CredentialsError::Invalid`] if the file cannot be read, or its content is not valid.
    pub fn from_authorities(authorities: &Path) -> Result<Self, CredentialsError> {
        Self::with_roots(None, authorities)
    }

    fn with_roots(own: Option<Own>, authorities: &Path) -> Result<Self, CredentialsError> {
        let mut roots = RootCertStore::empty();
        for root in certificates_of(authorities)? {
            roots
                .add(root)
                .map_err(|error| invalid(authorities.display(), format!("{error}")))?;
        }
        let certificates = Certificates {
            own,
            roots: Arc::new(roots),
        };
        Ok(Self(Kind::Certificates {
            files: Arc::new(certificates),
            names: Arc::new([]),
        }))
    }

    /// Makes clients also accept a certificate for `name`, besides certificates for the host that they connect to.
    /// This is for a server that is reached by an address, and has a certificate for its name. Has no effect on a
    /// secret, or if `name` is not a valid name.
    #[must_use]
    pub fn with_server_name(self, name: &str) -> Self {
        match (self.0, ServerName::try_from(name.to_owned())) {
            (Kind::Certificates { files, names }, Ok(name)) => Self(Kind::Certificates {
                files,
                names: names.iter().cloned().chain([name]).collect(),
            }),
            (kind, _) => Self(kind),
        }
    }

    /// Returns whether clients check the name of a server: with certificates, not with a secret.
    #[must_use]
    pub const fn has_certificates(&self) -> bool {
        matches!(self.0, Kind::Certificates { .. })
    }

    /// Returns the configuration of the server's side of connections.
    ///
    /// # Errors
    /// [`CredentialsError::Invalid`] if a key cannot be used.
    pub fn server(&self, protocol: Protocol) -> Result<TlsServer, CredentialsError> {
        let provider = provider();
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?;
        let mut config = match &self.0 {
            Kind::Secrets(secrets) => {
                let mut own = Vec::new();
                let mut expected = Vec::new();
                for secret in secrets {
                    let key = key_of(secret, protocol, Role::Server).map_err(unusable)?;
                    own.push((alpn_of(protocol, &key), key));
                    let of_client = key_of(secret, protocol, Role::Client).map_err(unusable)?;
                    expected.push(of_client.cert[0].clone());
                }
                let alpn = own.iter().map(|(alpn, _)| alpn.clone()).collect();
                let expected = Expected {
                    keys: expected,
                    provider,
                };
                let mut config = builder
                    .with_client_cert_verifier(Arc::new(expected))
                    .with_cert_resolver(Arc::new(ByName(own)));
                config.alpn_protocols = alpn;
                config
            }
            Kind::Certificates { files, .. } => {
                let own = files.own.as_ref().ok_or_else(no_certificate)?;
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::clone(&files.roots), provider)
                        .build()
                        .map_err(unusable)?;
                let mut config = builder
                    .with_client_cert_verifier(verifier)
                    .with_single_cert(own.chain.clone(), own.key.clone_key())
                    .map_err(unusable)?;
                config.alpn_protocols = vec![protocol.name().as_bytes().to_vec()];
                config
            }
        };
        // Each connection is a full handshake: a resumed one would pass no verifier.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        Ok(TlsServer(Arc::new(config)))
    }

    /// Returns the configuration of the client's side of connections to `host`.
    ///
    /// # Errors
    /// [`CredentialsError::Invalid`] if a key cannot be used, or certificates are to be checked for a host that has
    /// no valid name.
    pub fn client(&self, protocol: Protocol, host: &str) -> Result<TlsClient, CredentialsError> {
        let provider = provider();
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?;
        let (mut config, name) = match &self.0 {
            Kind::Secrets(_) if protocol == Protocol::Http => {
                let detail = "servers of other projects need certificates".to_owned();
                return Err(invalid("a secret", detail));
            }
            Kind::Secrets(secrets) => {
                let own = key_of(&secrets[0], protocol, Role::Client).map_err(unusable)?;
                let of_server = key_of(&secrets[0], protocol, Role::Server).map_err(unusable)?;
                let expected = Expected {
                    keys: vec![of_server.cert[0].clone()],
                    provider,
                };
                let mut config = builder
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(expected))
                    .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
                        own,
                    )));
                config.alpn_protocols = vec![alpn_of(protocol, &of_server)];
                // The key is checked. A name would only be sent in clear text.
                config.enable_sni = false;
                (config, ServerName::try_from("c10d").map_err(unusable)?)
            }
            Kind::Certificates { files, names } => {
                let roots = Arc::clone(&files.roots);
                let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider);
                let verifier = verifier.build().map_err(unusable)?;
                let names = Arc::clone(names);
                let builder = builder
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(Named { verifier, names }));
                let mut config = match &files.own {
                    Some(own) => builder
                        .with_client_auth_cert(own.chain.clone(), own.key.clone_key())
                        .map_err(unusable)?,
                    None if protocol == Protocol::Http => builder.with_no_client_auth(),
                    None => return Err(no_certificate()),
                };
                config.alpn_protocols = vec![protocol.name().as_bytes().to_vec()];
                let name = ServerName::try_from(host.to_owned())
                    .map_err(|error| invalid(host, error.to_string()))?;
                (config, name)
            }
        };
        config.resumption = Resumption::disabled();
        config.enable_early_data = false;
        Ok(TlsClient {
            config: Arc::new(config),
            name,
            // A server with HTTP/2 besides it need not name HTTP/1.1, as Go's does not.
            needs_protocol: protocol != Protocol::Http,
        })
    }

    /// Returns the token that a browser or a monitor sends to the HTTP pages of a server with a secret; `None` with
    /// certificates. It gives access to nothing else.
    #[must_use]
    pub fn http_token(&self) -> Option<String> {
        match &self.0 {
            Kind::Secrets(secrets) => {
                Some(URL_SAFE_NO_PAD.encode(derive(&secrets[0], &["http token"])))
            }
            Kind::Certificates { .. } => None,
        }
    }
}

/// The configuration of the server's side of connections. It makes a [`TlsLayer`] for each connection.
#[derive(Clone)]
pub struct TlsServer(Arc<ServerConfig>);

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsServer")
    }
}

impl TlsServer {
    /// Returns the layer of one accepted connection.
    ///
    /// # Errors
    /// [`CredentialsError::Invalid`] if the configuration cannot be used.
    pub fn start(&self) -> Result<TlsLayer, CredentialsError> {
        let connection = ServerConnection::new(Arc::clone(&self.0)).map_err(unusable)?;
        Ok(TlsLayer::new(connection.into(), true))
    }
}

/// The configuration of the client's side of connections to one host. It makes a [`TlsLayer`] for each connection.
#[derive(Clone)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    needs_protocol: bool,
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TlsClient").field(&self.name).finish()
    }
}

impl TlsClient {
    /// Returns the layer of one connection, which begins the handshake.
    ///
    /// # Errors
    /// [`CredentialsError::Invalid`] if the configuration cannot be used.
    pub fn start(&self) -> Result<TlsLayer, CredentialsError> {
        let config = Arc::clone(&self.config);
        let connection = ClientConnection::new(config, self.name.clone()).map_err(unusable)?;
        Ok(TlsLayer::new(connection.into(), self.needs_protocol))
    }
}

/// The server's keys by the name that a client requests. A client that requests an unknown name has another secret,
/// and is refused before anything is computed for it.
#[derive(Debug)]
struct ByName(Vec<(Vec<u8>, Arc<CertifiedKey>)>);

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut names = hello.alpn()?;
        names.find_map(|name| {
            let found = self.0.iter().find(|(known, _)| known == name);
            found.map(|(_, key)| Arc::clone(key))
        })
    }

    fn only_raw_public_keys(&self) -> bool {
        true
    }
}

/// The protocol's name in the handshake (ALPN), with the key that the client expects.
pub(super) fn alpn_of(protocol: Protocol, of_server: &CertifiedKey) -> Vec<u8> {
    format!("{}/{}", protocol.name(), id_of(of_server)).into_bytes()
}

/// Never the process' default: an embedding program may have installed another.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates_of(path: &Path) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found: Vec<_> = found.map_err(|error| invalid(path.display(), format!("{error}")))?;
    if found.is_empty() {
        return Err(invalid(path.display(), "has no certificate".to_owned()));
    }
    Ok(found)
}

fn no_certificate() -> CredentialsError {
    let detail = "stores need a certificate on both sides".to_owned();
    invalid("the credentials", detail)
}

fn unusable(error: impl fmt::Display) -> CredentialsError {
    invalid("the credentials", error.to_string())
}

fn invalid(origin: impl fmt::Display, detail: String) -> CredentialsError {
    CredentialsError::Invalid {
        origin: origin.to_string(),
        detail,
    }
}
