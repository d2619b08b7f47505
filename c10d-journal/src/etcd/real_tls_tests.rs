//! The journal over a real etcd with certificates and users, which the environment variable `C10D_ETCD` names.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, CertificateFiles, Credentials, Deadline, HostPort};
use c10d_store::journal::{Journal, JournalError};
use serde_json::{Value, json};

use super::gateway::{CallError, Gateway};
use super::journal::EtcdJournal;
use super::options::EtcdOptions;
use super::real_site::RealSite;

/// An authority, and keys with certificates of it.
struct Certificates(tempfile::TempDir);

impl Certificates {
    fn new() -> Self {
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

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `NAME.pem` and `NAME.key`.
    fn issue(&self, name: &str, subject: &str) {
        let extensions = "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n";
        fs::write(self.path("extensions"), extensions).expect("a file");
        self.openssl(&format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj {subject} -keyout {name}.key -out {name}.csr"
        ));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile extensions -out {name}.pem"
        ));
    }

    fn credentials(&self, name: &str) -> Credentials {
        let files = CertificateFiles {
            certificate: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}.key")),
            authorities: self.path("ca.pem"),
        };
        Credentials::from_files(&files).expect("certificates")
    }
}

fn open(options: &EtcdOptions) -> Result<EtcdJournal, JournalError> {
    let mut journal = EtcdJournal::open(options, &HostPort::new("h", 1), &Cancel::NEVER)?;
    journal.recover(&mut |_| Ok(()))?;
    Ok(journal)
}

#[test]
#[ignore = "needs etcd (C10D_ETCD) and openssl"]
fn certificates_and_users() {
    let certificates = Certificates::new();
    certificates.issue("etcd", "/O=etcd");
    certificates.issue("client", "/O=c10d");
    certificates.issue("named", "/O=c10d/CN=c10d");
    let path = |name: &str| -> String {
        let path: &Path = &certificates.path(name);
        path.to_str().expect("text").to_owned()
    };
    let options = [
        ("--cert-file", path("etcd.pem")),
        ("--key-file", path("etcd.key")),
        ("--trusted-ca-file", path("ca.pem")),
    ];
    let options = options.iter().flat_map(|(name, value)| [*name, value]);
    let options: Vec<&str> = options.chain(["--client-cert-auth"]).collect();
    let site = RealSite::with_options(1, "https", &options);
    let of = |name: &str| {
        site.options()
            .with_credentials(certificates.credentials(name))
    };

    let mut journal = open(&of("client")).expect("it has a certificate");
    journal.append(1, b"one").expect("kept");
    drop(journal);

    let mut root = Gateway::new(Arc::clone(&of("client").site), Cancel::NEVER);
    let mut call = |path: &'static str, body: Value| {
        let deadline = Deadline::after(Instant::now(), Duration::from_secs(30));
        match root.call_other(path, &body, deadline) {
            // The first attempt has done it, and its answer came late.
            Err(CallError::Refused { message, .. }) if message.contains("already") => {}
            result => drop(result.expect(path)),
        }
    };
    call(
        "/v3/auth/user/add",
        json!({ "name": "root", "password": "r" }),
    );
    call(
        "/v3/auth/user/grant",
        json!({ "user": "root", "role": "root" }),
    );
    call(
        "/v3/auth/user/add",
        json!({ "name": "store", "password": "s" }),
    );
    call("/v3/auth/role/add", json!({ "name": "c10d" }));
    // c10d/ to c10d0
    let permission = json!({ "permType": "READWRITE", "key": "YzEwZC8=", "range_end": "YzEwZDA=" });
    call(
        "/v3/auth/role/grant",
        json!({ "name": "c10d", "perm": permission }),
    );
    call(
        "/v3/auth/user/grant",
        json!({ "user": "store", "role": "c10d" }),
    );
    call("/v3/auth/enable", json!({}));

    let mut journal = open(&of("client").with_user("store", "s")).expect("a user");
    journal.append(2, b"two").expect("kept");
    journal.begin_snapshot(2).expect("begun");
    journal.add_to_snapshot(b"all").expect("added");
    journal.finish_snapshot().expect("finished");
    journal.append(3, b"three").expect("kept");
    drop(journal);
    for (options, reason) in [
        (of("client"), "permission denied"),
        (
            of("client").with_user("store", "wrong"),
            "authentication failed",
        ),
        (of("named").with_user("store", "s"), "CommonName"),
    ] {
        let error = open(&options).map(|_| ()).expect_err(reason);
        assert!(error.to_string().contains(reason), "{reason}: {error}");
    }
}
