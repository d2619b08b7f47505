//! Certificates for tests, made by openssl.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// An authority, `ca.pem`, and keys with certificates of it.
pub(crate) struct Certificates(tempfile::TempDir);

impl Certificates {
    pub(crate) fn new() -> Self {
        let this = Self(tempfile::tempdir().expect("a folder"));
        this.openssl(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /O=authority \
            -keyout ca.key -out ca.pem",
        );
        this
    }

    fn openssl(&self, arguments: &str) {
        let output = Command::new("openssl")
            .args(arguments.split_whitespace())
            .current_dir(self.0.path())
            .output()
            .expect("openssl runs");
        assert!(output.status.success(), "{output:?}");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `NAME.pem` and `NAME.key`.
    pub(crate) fn issue(&self, name: &str, subject: &str) {
        let extensions = "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n";
        fs::write(self.path("extensions"), extensions).expect("a file");
        self.openssl(&format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj {subject} -keyout {name}.key -out {name}.csr"
        ));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile extensions -out {name}.pem"
        ));
    }
}
