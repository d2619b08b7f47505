//! Checks the certificate of a server that has several names.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

/// Accepts a certificate for the host that the client connects to, or for one of these names.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) verifier: Arc<WebPkiServerVerifier>,
    pub(super) names: Arc<[ServerName<'static>]>,
}

impl ServerCertVerifier for Named {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verify = |name: &ServerName<'_>| {
            let verifier = &self.verifier;
            verifier.verify_server_cert(end_entity, intermediates, name, ocsp_response, now)
        };
        match verify(host) {
            // The error names the host that the user passed.
            Err(error) if is_name(&error) => {
                let found = self.names.iter().find_map(|name| verify(name).ok());
                found.ok_or(error)
            }
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verifier = &self.verifier;
        verifier.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verifier = &self.verifier;
        verifier.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// Whether the certificate is right for another name.
const fn is_name(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
        )
    )
}
