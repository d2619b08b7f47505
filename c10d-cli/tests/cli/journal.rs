//! A store in a directory: served, verified, exported, imported.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::gloo::rank_that_waits;
use crate::process::{Ended, Server, after, command, run, run_with_input, until};

fn serve(directory: &Path) -> Server {
    let directory = format!("--dir={}", directory.display());
    Server::start_with(["store", "serve", "--port=0", &directory])
}

fn offline(word: &str, directory: &Path) -> Ended {
    run(["store", word, directory.to_str().unwrap()])
}

fn verified(directory: &Path) -> Value {
    let ended = run(["store", "verify", "--json", directory.to_str().unwrap()]);
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(0), ""),
        "{ended:?}"
    );
    serde_json::from_slice(&ended.stdout).unwrap()
}

#[test]
fn a_store_in_a_directory_survives_kill_and_sigterm() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("store");
    let server = serve(&directory);
    server.store(&["set", "k", "v"]).assert_prints("");
    server.store(&["add", "sum", "5"]).assert_prints("5\n");
    server.store(&["push", "q", "first"]).assert_prints("");
    server.store(&["push", "q", "second"]).assert_prints("");
    // SIGKILL.
    drop(server);

    let server = serve(&directory);
    server.store(&["get", "k"]).assert_prints("v");
    server.store(&["add", "sum", "2"]).assert_prints("7\n");
    server.store(&["pop", "q"]).assert_prints("first");
    server.running.signal(Signal::TERM);
    let ended = server.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let kept = format!("stopping; the store is kept in {}", directory.display());
    assert!(ended.stderr.contains(&kept), "{ended:?}");

    let server = serve(&directory);
    server.store(&["get", "sum"]).assert_prints("7");
    server.store(&["len", "q"]).assert_prints("1\n");
    drop(server);
    let report = verified(&directory);
    assert_eq!(report["intact"], true);
    assert_eq!(report["epoch"], 3);
    assert_eq!(report["queue_elements"], 1);
}

#[test]
fn a_directory_has_one_owner() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path());
    let directory = format!("--dir={}", folder.path().display());
    let owner = format!("is in use by process {} on ", server.running.id());
    for ended in [
        run(["store", "serve", "--port=0", &directory]),
        offline("verify", folder.path()),
        offline("export", folder.path()),
        offline("import", folder.path()),
    ] {
        assert_eq!(ended.code, Some(5), "{ended:?}");
        assert!(ended.stderr.contains(&owner), "{ended:?}");
    }
}

#[test]
fn what_is_exported_is_imported() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let server = serve(&from);
    server.store(&["set", "text", "a\nb"]).assert_prints("");
    run_with_input(server.arguments(&["set", "bytes", "-"]), b"\xff\x00").assert_prints("");
    server.store(&["push", "q", "1"]).assert_prints("");
    run_with_input(server.arguments(&["push", "q", "-"]), b"\xfe").assert_prints("");
    drop(server);

    let exported = offline("export", &from);
    let text = exported.stdout_text();
    assert!(text.contains(r#""value":"a\nb""#), "{text}");
    assert!(text.contains(r#""base64":"/wA=""#), "{text}");
    assert!(
        text.contains(r#""queue":[{"value":"1"},{"base64":"/g=="}]"#),
        "{text}"
    );
    exported.assert_prints(text);

    let import = |input: &[u8]| run_with_input(["store", "import", to.to_str().unwrap()], input);
    import(&exported.stdout).assert_prints("");
    assert_eq!(offline("export", &to).stdout, exported.stdout);
    assert_ne!(verified(&to)["store"], verified(&from)["store"]);
    let server = serve(&to);
    server.store(&["get", "bytes"]).assert_prints(b"\xff\x00");
    server.store(&["pop", "q"]).assert_prints("1");
    drop(server);
    let before = verified(&to);
    import(&exported.stdout).assert_fails(2, "has contents: import into a new directory");
    assert_eq!(verified(&to), before);
}

#[test]
fn an_import_is_all_or_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("new");
    let path = directory.to_str().unwrap();
    for (input, error) in [
        ("{\"key\":\"k\",\"value\":\"v\"}\n{\"key\"", "line 2: "),
        ("{\"key\":\"k\"}\n", "line 1: neither a value nor a queue"),
        (
            "{\"key\":\"k\",\"value\":\"1\"}\n\n{\"key\":\"k\",\"value\":\"2\"}\n",
            "line 3: its key is also in an earlier line",
        ),
    ] {
        let ended = run_with_input(["store", "import", path], input.as_bytes());
        ended.assert_fails(2, error);
        assert!(!directory.exists());
    }
}

#[test]
fn damage_is_reported_with_what_is_intact() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path());
    server
        .store(&["set", "k", &"x".repeat(300)])
        .assert_prints("");
    server.running.signal(Signal::TERM);
    server.end();
    let path = folder.path().join("journal.db");
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(9).position(|it| it == b"xxxxxxxxx").unwrap();
    bytes[at + 5] = b'y';
    fs::write(&path, bytes).unwrap();

    let ended = offline("verify", folder.path());
    assert!(
        ended
            .stdout_text()
            .ends_with("DAMAGED: only the above could be read\n"),
        "{ended:?}"
    );
    ended.assert_fails(5, "does not match its checksum; intact: all before it");
    let directory = format!("--dir={}", folder.path().display());
    let ended = run(["store", "serve", "--port=0", &directory]);
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert!(
        ended.stderr.contains("is damaged: batch 1 does not match"),
        "{ended:?}"
    );
    let missing = folder.path().join("missing");
    offline("verify", &missing).assert_fails(5, "cannot open the journal");
    assert!(!missing.exists());
}

/// A file that may not grow, like on a full disk: the server exits with a specific code and message.
#[test]
fn a_failed_write_ends_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let mut serve = command(["store", "serve", "--port=0", "--dir"]);
    serve.arg(folder.path());
    let server = Server::start_command(after("trap '' XFSZ; ulimit -f 400", &serve));
    let mut sum = 0;
    loop {
        let added = server.store(&["add", "sum", "1"]);
        if added.code != Some(0) {
            break;
        }
        sum = added.stdout_text().trim().parse().unwrap();
        assert!(sum < 1000);
    }
    let ended = server.end();
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert!(
        ended.stderr.contains("cannot append to the journal"),
        "{ended:?}"
    );
    assert!(ended.stderr.contains("writing failed"), "{ended:?}");
    let exported = offline("export", folder.path());
    let line: Value = serde_json::from_slice(&exported.stdout).unwrap();
    let kept: u64 = line["value"].as_str().unwrap().parse().unwrap();
    assert!(kept == sum || kept == sum + 1, "{kept} of {sum}");
}

/// Ranks behind a relay would survive.
#[test]
fn ranks_that_would_not_survive_a_restart_of_their_store_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path());
    let upstream = format!("--upstream={}", server.address);
    let relay = Server::start_with(["relay", "--listen=127.0.0.1:0", &upstream]);
    let _direct = rank_that_waits(&server, 0, 3, 2);
    let _relayed = rank_that_waits(&relay, 1, 3, 2);
    let mut why = Value::Null;
    until("both wait", || {
        let address = server.address.to_string();
        let ended = run(["why", "--json", "--connect", &address]);
        why = serde_json::from_slice(&ended.stdout).unwrap_or_default();
        let waits = |rank: usize| why["ranks"][rank]["state"] == "waiting";
        waits(0) && waits(1)
    });
    let findings = why["findings"].as_array().unwrap();
    let note = findings
        .iter()
        .find(|it| it["kind"] == "connected_directly");
    let text = note.map_or("", |note| note["text"].as_str().unwrap());
    assert!(text.starts_with("Rank 0 is connected"), "{why}");
}
