//! All commands: a failing standard output, mistyped names, the version.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::process::Stdio;

use crate::process::{Running, Server, command, run, run_with_input};

/// Larger than the buffer of a pipe.
const VALUE_BYTES: usize = 1 << 20;

fn server_with_a_long_value() -> Server {
    let server = Server::start();
    let words = server.arguments(&["set", "k", "-"]);
    run_with_input(words, &[b'x'; VALUE_BYTES]).assert_prints("");
    server
}

#[test]
fn a_closed_standard_output_ends_the_command_silently() {
    let server = server_with_a_long_value();
    for words in [&["get", "k"][..], &["get", "k", "--json"]] {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut get = command(server.arguments(words));
        get.stdout(writer);
        let running = Running::start(get);
        reader.read_exact(&mut [0; 10]).unwrap();
        drop(reader);
        let ended = running.end();
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(141), ""));
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_has_a_message_and_an_exit_code_of_its_own() {
    let server = server_with_a_long_value();
    let address = server.address.to_string();
    for words in [
        &["store", "get", "k", "--connect", &address][..],
        &["store", "count", "--json", "--connect", &address],
        &["store", "serve", "--port=0"],
    ] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = command(words);
        command.env("RUST_LOG", "error").stdout(Stdio::from(full));
        let ended = Running::start(command).end();
        ended.assert_fails(
            4,
            "cannot write to standard output: No space left on device",
        );
    }
}

#[test]
fn a_mistyped_command_is_corrected() {
    for (words, meant) in [
        (&["serve"][..], "c10d store serve"),
        (&["launch", "train.py"], "c10d run"),
        (&["get", "k"], "c10d store get"),
        (&["store", "run"], "c10d run"),
    ] {
        let ended = run(words);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        let tip = format!("tip: a similar subcommand exists: '{meant}'");
        assert!(ended.stderr.contains(&tip), "{ended:?}");
    }
}

#[test]
fn the_version_names_the_commit_and_the_release_of_pytorch() {
    let ended = run(["--version"]);
    let text = ended.stdout_text();
    let start = concat!("c10d ", env!("CARGO_PKG_VERSION"), " (");
    let inside = text.strip_prefix(start).unwrap();
    let commit = inside.strip_suffix("follows PyTorch 2.15)\n").unwrap();
    // Missing in a build from a source archive.
    if let Some(commit) = commit.strip_prefix("commit ") {
        let digits = commit.strip_suffix(", ").unwrap();
        assert!(digits.len() == 12 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    } else {
        assert_eq!(commit, "");
    }
}
