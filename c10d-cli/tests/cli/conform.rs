//! `c10d conform`: its output, files and exit codes.

use std::fs;

use crate::process::{Server, run};

#[test]
fn a_server_is_compared_case_by_case() {
    let server = Server::start();
    let address = server.address.to_string();
    let folder = tempfile::tempdir().unwrap();
    let junit = folder.path().join("junit.xml");
    let arguments = ["conform", "server", &address, "--as", "c10d", "--junit"];
    let ended = run([&arguments[..], &[junit.to_str().unwrap()]].concat());
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(0), ""),
        "{ended:?}"
    );
    let text = ended.stdout_text();
    assert!(text.contains(" as c10d, cases "), "{text}");
    assert!(text.contains("\nMULTI_GET "), "{text}");
    let junit = fs::read_to_string(junit).unwrap();
    assert!(
        junit.contains("<testcase classname=\"ADD\" name=\"add_negative\"/>"),
        "{junit}"
    );
    assert!(!junit.contains("<failure"), "{junit}");
    // Nothing stays.
    server.store(&["count"]).assert_prints("0\n");
}

#[test]
fn a_case_that_differs_is_explained() {
    let server = Server::start();
    let address = server.address.to_string();
    // The server is not PyTorch 2.4, which has no PING.
    let arguments = [
        "conform",
        "server",
        &address,
        "--as",
        "2.4",
        "--only",
        "ping_is_unknown",
    ];
    let ended = run(arguments);
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(6), ""),
        "{ended:?}"
    );
    let text = ended.stdout_text();
    let sentence = "hangs: ping_is_unknown: after 0d on connection A, PyTorch closes the connection; \
                    this server sent nothing, then nothing in time\n1 case does not pass.\n";
    assert!(text.ends_with(sentence), "{text}");
    let ended = run([&arguments[..], &["--json"]].concat());
    assert_eq!(ended.code, Some(6), "{ended:?}");
    let json: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(json["as"], "torch-2.4", "{json}");
    assert_eq!(json["outcomes"][0]["verdict"], "hangs", "{json}");
}

#[test]
fn cases_are_listed_and_wrong_arguments_are_refused() {
    let ended = run(["conform", "server", "--list"]);
    assert!(
        ended.stdout_text().contains("add_negative: ADD\n"),
        "{ended:?}"
    );
    run(["conform", "server", "127.0.0.1:1", "--only", "nothing"])
        .assert_fails(2, "no case is called nothing");
    let ended = run(["conform", "server", "127.0.0.1:1", "--as", "3.0"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("torch-2.15-poll"), "{ended:?}");
}

#[test]
fn a_client_that_does_not_speak_is_described() {
    let arguments = [
        "conform",
        "client",
        "--only",
        "close_in_wait",
        "--",
        "echo",
        "hello",
    ];
    let ended = run(arguments);
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(6), ""),
        "{ended:?}"
    );
    let sentence = "wrong: close_in_wait: the client printed hello instead of ready\n";
    assert!(ended.stdout_text().contains(sentence), "{ended:?}");
    let silent = [
        "conform",
        "client",
        "--only",
        "timeouts",
        "--start-timeout",
        "100ms",
        "--",
        "sleep",
        "1000",
    ];
    let ended = run(silent);
    assert!(
        ended
            .stdout_text()
            .contains("the client did not connect and print ready in time\n"),
        "{ended:?}"
    );
    run(["conform", "client", "--", "/nowhere"]).assert_fails(3, "cannot start /nowhere: ");
    let ended = run(["conform", "client", "--list"]);
    assert!(
        ended
            .stdout_text()
            .contains("slow_reader: a long request is read slowly"),
        "{ended:?}"
    );
}
