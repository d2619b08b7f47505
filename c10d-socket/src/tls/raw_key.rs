//! The key of a role: an Ed25519 key derived from a secret, shown as a raw public key (RFC 7250), and the check that a
//! peer has the key of the other role.

use std::sync::Arc;

use ring::{digest, hkdf};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use super::Protocol;
use super::secret::{SECRET_BYTES, Secret};

/// The salt of HKDF (RFC 5869). A new version of the scheme has another.
const SALT: &[u8] = b"c10d secret v1";

/// The bytes before the seed in a PKCS#8 file of an Ed25519 key (RFC 8410, section 7).
const PKCS8_HEAD: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// The owner of a key. A client that shows the server's key is refused, so a handshake cannot be reflected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Client,
    Server,
}

impl Role {
    const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// The key of a role, private half included.
pub(super) fn key_of(
    secret: &Secret,
    protocol: Protocol,
    role: Role,
) -> Result<Arc<CertifiedKey>, Error> {
    let seed = derive(secret, &["ed25519 ", protocol.name(), " ", role.name()]);
    let mut pkcs8 = PKCS8_HEAD.to_vec();
    pkcs8.extend_from_slice(&seed);
    let key = rustls::crypto::ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8))?;
    let public = key
        .public_key()
        .ok_or_else(|| Error::General("an Ed25519 key has a public half".to_owned()))?;
    let shown = CertificateDer::from(public.as_ref().to_vec());
    Ok(Arc::new(CertifiedKey::new(vec![shown], key)))
}

/// HKDF-SHA256 with the texts, one after the other, as info.
pub(super) fn derive(secret: &Secret, info: &[&str]) -> [u8; SECRET_BYTES] {
    let info: Vec<&[u8]> = info.iter().map(|text| text.as_bytes()).collect();
    let key = hkdf::Salt::new(hkdf::HKDF_SHA256, SALT).extract(secret.bytes());
    let mut derived = [0; SECRET_BYTES];
    let filled = key
        .expand(&info, hkdf::HKDF_SHA256)
        .and_then(|output| output.fill(&mut derived));
    match filled {
        Ok(()) => derived,
        Err(_) => unreachable!("HKDF-SHA256 gives up to 8160 bytes"),
    }
}

/// The name of a key that both sides can send in clear text: 64 bits of the hash of the public key, which the server
/// shows to everyone anyway.
pub(super) fn id_of(key: &CertifiedKey) -> String {
    let sum = digest::digest(&digest::SHA256, key.cert[0].as_ref());
    let bytes = &sum.as_ref()[..8];
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Accepts a peer that has one of these public keys and signs the handshake with it.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) keys: Vec<CertificateDer<'static>>,
    pub(super) provider: Arc<CryptoProvider>,
}

impl Expected {
    fn check_key(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Result<(), Error> {
        let is_known = self.keys.iter().any(|key| key == end_entity);
        if is_known && intermediates.is_empty() {
            return Ok(());
        }
        let failure = CertificateError::ApplicationVerificationFailure;
        Err(Error::InvalidCertificate(failure))
    }
}

/// The methods that verifiers of servers and of clients share.
macro_rules! signature_checks {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::General("only TLS 1.3 is spoken".to_owned()))
        }

        /// This is the one indispensable check: any peer can show a public key.
        fn verify_tls13_signature(
            &self,
            message: &[u8],
            key: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            let key = SubjectPublicKeyInfoDer::from(key.as_ref());
            verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for Expected {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check_key(end_entity, intermediates)?;
        Ok(ServerCertVerified::assertion())
    }

    signature_checks!();
}

impl ClientCertVerifier for Expected {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check_key(end_entity, intermediates)?;
        Ok(ClientCertVerified::assertion())
    }

    signature_checks!();
}
