//! The journal over a real etcd with certificates and users, which the environment variable `C10D_ETCD` names.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, CertificateFiles, Credentials, Deadline, HostPort};
use c10d_store::journal::{Journal, JournalError};
use serde_json::{Value, json};

use super::gateway::{CallError, Gateway};
use super::journal::EtcdJournal;
use super::options::EtcdOptions;
use super::real_certificates::Certificates;
use super::real_site::RealSite;

fn credentials(certificates: &Certificates, name: &str) -> Credentials {
    let files = CertificateFiles {
        certificate: certificates.path(&format!("{name}.pem")),
        key: certificates.path(&format!("{name}.key")),
        authorities: certificates.path("ca.pem"),
    };
    Credentials::from_files(&files).expect("certificates")
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
            .with_credentials(credentials(&certificates, name))
    };

    let mut journal = open(&of("client")).expect("it has a certificate");
    journal.append(1, b"one").expect("kept");
    drop(journal);

    let mut root = Gateway::new(Arc::clone(&of("client").site), Cancel::NEVER);
    let mut call = |path: &'static str, body: Value| {
        let deadline = Deadline::after(Instant::now(), Duration::from_secs(30));
        match root.call_other(path, &body, deadline) {
            // The first attempt has done it, and its answer arrived late.
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
