//! What holds for every command: standard output that fails.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::process::Stdio;

use crate::process::{Running, Server, command, run_with_input};

/// A value larger than a pipe holds.
const VALUE_BYTES: usize = 1 << 20;

fn server_with_a_long_value() -> Server {
    let server = Server::start();
    let words = server.arguments(&["set", "k", "-"]);
    run_with_input(words, &[b'x'; VALUE_BYTES]).assert_prints("");
    server
}

#[test]
fn a_reader_that_leaves_ends_the_command_quietly() {
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
