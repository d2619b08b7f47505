//! `c10d secret`, and a store that requires a secret.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::process::{Server, run};

/// Writes a new secret to a file.
pub(crate) fn new_secret(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    let made = run(["secret", "new"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    fs::write(&path, &made.stdout).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path
}

/// The option that names the file.
pub(crate) fn option(path: &Path) -> String {
    format!("--secret-file={}", path.display())
}

#[test]
fn a_store_with_a_secret_serves_only_those_who_have_it() {
    let folder = tempfile::tempdir().unwrap();
    let (right, wrong) = (
        option(&new_secret(folder.path(), "right")),
        option(&new_secret(folder.path(), "wrong")),
    );
    let server = Server::start_with(["store", "serve", "--port=0", &right]);
    server.store(&["set", "k", "v", &right]).assert_prints("");
    server.store(&["get", "k", &right]).assert_prints("v");
    let refused = server.store(&["get", "k", &wrong]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.stderr.contains("a different secret"), "{refused:?}");
    let refused = server.store(&["get", "k", "--timeout=2s"]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(
        refused.stderr.contains("may require a secret"),
        "{refused:?}"
    );
    let address = server.address.to_string();
    let why = run(["why", "--connect", &address, &right]);
    assert_eq!(why.code, Some(0), "{why:?}");
    let why = run(["why", "--connect", &address]);
    assert_eq!(why.code, Some(3), "{why:?}");
    let cure = "has a secret: name its file with --secret-file FILE";
    assert!(why.stderr.contains(cure), "{why:?}");
    let why = run(["why", "--connect", &address, &wrong]);
    assert_eq!(why.code, Some(3), "{why:?}");
    let cure = "is not the secret of the job";
    assert!(why.stderr.contains(cure), "{why:?}");
}

/// docs/spec/handshake.md, SEC 8.
#[test]
fn the_pages_of_a_store_with_a_secret_ask_for_a_password() {
    let folder = tempfile::tempdir().unwrap();
    let secret = option(&new_secret(folder.path(), "secret"));
    let server = Server::start_with(["store", "serve", "--port=0", &secret]);
    let token = run(["secret", "token", &secret]);
    let token = token.stdout_text().trim().to_owned();
    let page = |headers: &str| {
        let mut stream = server.connect();
        let request = format!(
            "GET /healthz HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = page("");
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    assert!(answer.contains("www-authenticate: Basic"), "{answer}");
    assert!(page("Authorization: Bearer other\r\n").starts_with("HTTP/1.1 401"));
    let answer = page(&format!("Authorization: Bearer {token}\r\n"));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn a_secret_that_others_can_read_or_that_is_none_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = new_secret(folder.path(), "secret");
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let refused = run(["secret", "token", &option(&path)]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("chmod 600"), "{refused:?}");
    fs::write(&path, "password").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let refused = run(["store", "serve", "--port=0", &option(&path)]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("c10d secret new"), "{refused:?}");
    assert!(!refused.stderr.contains("password"), "{refused:?}");
    let missing = run(["secret", "token", &option(&folder.path().join("none"))]);
    assert_eq!(missing.code, Some(2), "{missing:?}");
}
