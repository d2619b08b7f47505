//! `c10d run` with an etcd, or a store, that requires credentials. Needs etcd (`C10D_ETCD`) and
//! openssl.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::certificates::Certificates;
use crate::etcd::Etcd;
use crate::process::{Running, free_port, until};
use crate::run_candidates::{await_keys_with, finish_with, launcher, store};
use crate::secret;

/// The options of etcd for its own certificate.
fn with_certificate(certificates: &Certificates) -> [String; 2] {
    [
        file_option(certificates, "--cert-file", "etcd.pem"),
        file_option(certificates, "--key-file", "etcd.key"),
    ]
}

fn file_option(certificates: &Certificates, name: &str, file: &str) -> String {
    format!("{name}={}", certificates.path(file).display())
}

/// A job of two launchers, with these options of all commands that use its store.
fn run_job(etcd: &Etcd, options: &[&str]) {
    let place = etcd.place("c10d/job");
    let of_launcher = [&["--nnodes=2"], options].concat();
    let launchers = [(); 2].map(|()| Running::start(launcher(&place, &of_launcher)));
    await_keys_with(&place, options, &["4-0", "4-1", "4-2", "4-3"]);
    finish_with(&place, options);
    for launcher in launchers {
        let ended = launcher.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
}

/// A request to etcd's gateway without TLS, repeated until it is answered: etcd may still start.
fn post(address: &str, path: &str, body: &str) -> Value {
    let mut answer = String::new();
    until("etcd answers", || {
        answer.clear();
        let asked = TcpStream::connect(address).and_then(|mut stream| {
            let length = body.len();
            let head = format!("POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n");
            stream.write_all((head + body).as_bytes())?;
            stream.read_to_string(&mut answer)
        });
        asked.is_ok() && answer.contains("200 OK")
    });
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap()
}

#[test]
#[ignore = "needs etcd (C10D_ETCD) and openssl"]
fn a_job_proves_itself_to_etcd_by_a_certificate_and_a_password() {
    let certificates = Certificates::new();
    certificates.issue("etcd", "/O=etcd");
    certificates.issue("client", "/O=c10d");
    let option = |name, file| file_option(&certificates, name, file);
    let own = with_certificate(&certificates);
    // With authorities, it requires certificates.
    let authority = option("--trusted-ca-file", "ca.pem");
    let mut options: Vec<&str> = own.iter().map(String::as_str).collect();
    // Passwords are checked often, and the machine may be busy.
    options.extend([&authority, "--bcrypt-cost=4"]);
    let admin = format!("127.0.0.1:{}", free_port());
    let etcd = Etcd::start_with(
        |client| format!("https://{client},http://{admin}"),
        &options,
    );
    // c10d/ to c10d0
    let permission = r#"{"permType":"READWRITE","key":"YzEwZC8=","range_end":"YzEwZDA="}"#;
    for (path, body) in [
        ("user/add", r#"{"name":"root","password":"r"}"#),
        ("user/grant", r#"{"user":"root","role":"root"}"#),
        ("user/add", r#"{"name":"store","password":"s"}"#),
        ("role/add", r#"{"name":"c10d"}"#),
        (
            "role/grant",
            &format!(r#"{{"name":"c10d","perm":{permission}}}"#),
        ),
        ("user/grant", r#"{"user":"store","role":"c10d"}"#),
        ("enable", "{}"),
    ] {
        post(&admin, &format!("/v3/auth/{path}"), body);
    }
    let password = certificates.path("password");
    std::fs::write(&password, "s\n").unwrap();
    let access = [
        option("--etcd-cert", "client.pem"),
        option("--etcd-key", "client.key"),
        option("--etcd-ca", "ca.pem"),
        "--etcd-user=store".to_owned(),
        option("--etcd-password-file", "password"),
    ];
    let access: Vec<&str> = access.iter().map(String::as_str).collect();
    run_job(&etcd, &access);
    std::fs::write(&password, "wrong").unwrap();
    let refused = store(&etcd.place("c10d/job"), &access, &["get", "done"]);
    refused.assert_fails(3, "authentication failed");
}

#[test]
#[ignore = "needs etcd (C10D_ETCD) and openssl"]
fn a_job_needs_only_the_authority_of_an_etcd_that_asks_for_no_certificate() {
    let certificates = Certificates::new();
    certificates.issue("etcd", "/O=etcd");
    let own = with_certificate(&certificates);
    let options: Vec<&str> = own.iter().map(String::as_str).collect();
    let etcd = Etcd::start_with(|client| format!("https://{client}"), &options);
    let authority = file_option(&certificates, "--etcd-ca", "ca.pem");
    run_job(&etcd, &[&authority]);
    // Of another authority.
    let others = Certificates::new();
    let other = file_option(&others, "--etcd-ca", "ca.pem");
    let refused = store(&etcd.place("c10d/job"), &[&other], &["get", "done"]);
    refused.assert_fails(3, "the peer showed a key");
}

#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn a_store_in_etcd_asks_for_the_secret_of_the_job() {
    let etcd = Etcd::start();
    let folder = tempfile::tempdir().unwrap();
    let own = secret::option(&secret::new_secret(folder.path(), "secret"));
    let place = etcd.place("c10d/job");
    let options = ["--nnodes=2", &own];
    let launchers = [(); 2].map(|()| Running::start(launcher(&place, &options)));
    await_keys_with(&place, &[&own], &["4-0", "4-1", "4-2", "4-3"]);
    let wrong = secret::option(&secret::new_secret(folder.path(), "wrong"));
    let refused = store(&place, &[&wrong], &["get", "done", "--timeout=0s"]);
    refused.assert_fails(3, "a different secret");
    finish_with(&place, &[&own]);
    for launcher in launchers {
        let ended = launcher.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
}

/// The options are for a firewall between the nodes, and for busy machines.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn a_launcher_serves_at_the_given_ports_with_the_given_lease() {
    let etcd = Etcd::start();
    let place = etcd.place("job");
    let [port, life] = [(); 2].map(|()| free_port());
    let options = [
        format!("--store-port={port}"),
        format!("--etcd-life-port={life}"),
        "--etcd-lease=7s".to_owned(),
    ];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let job = Running::start(launcher(&place, &options));
    await_keys_with(&place, &[], &["2-0", "2-1"]);

    let status = store(&place, &[], &["status", "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["leader"]["address"], format!("127.0.0.1:{port}"));
    let mut line = String::new();
    let stream = TcpStream::connect(("127.0.0.1", life)).unwrap();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert!(line.starts_with("c10d-life "), "{line:?}");
    let leases = post(&etcd.client, "/v3/lease/leases", "{}");
    let leases = leases["leases"].as_array().unwrap();
    let times = leases.iter().map(|lease| {
        let asked = json!({ "ID": lease["ID"] }).to_string();
        post(&etcd.client, "/v3/lease/timetolive", &asked)["grantedTTL"].clone()
    });
    let times: Vec<Value> = times.collect();
    assert!(times.contains(&Value::from("7")), "{times:?}");

    finish_with(&place, &[]);
    let ended = job.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}
