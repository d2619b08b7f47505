//! `c10d store get` and its siblings: one operation on a running store, for scripts.

mod connections;
mod lease;
mod stats;
#[cfg(feature = "etcd")]
mod status;
mod target;
mod values;
mod watch;

use std::ffi::OsString;
use std::path::Path;

use c10d_socket::printable;
use c10d_store::{Store, StoreError, StoreExt, key_to_bytes};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use target::TargetArgs;
use values::ValueArgs;

use crate::failure::Failure;
use crate::output::is_for_terminal;
use crate::quantity::at_least_one;

/// The subcommands of `c10d store`, except `serve`.
#[derive(Debug, Subcommand)]
pub(crate) enum ClientCommand {
    /// Wait until a key exists, and print its value: exactly its bytes, without a newline.
    ///
    /// On a terminal, characters that are not printable are shown as escapes, for example \u{1b}.
    Get(KeyArgs),
    /// Set a key.
    #[command(override_usage = "c10d store set [OPTIONS] KEY <VALUE|-|--file FILE>")]
    Set(KeyValueArgs),
    /// Add to the number at a key, and print the sum. A missing key counts as 0.
    Add(AddArgs),
    /// Set a key if it has the expected value, or if it is missing and the expected value is empty.
    ///
    /// Prints the server's answer: the value of the key after the command. The exit code is 1 if nothing was written. (In
    /// that case the server answers with the expected value for a missing key.)
    #[command(
        override_usage = "c10d store compare-set [OPTIONS] KEY EXPECTED <DESIRED|-|--file FILE>"
    )]
    CompareSet(CompareSetArgs),
    /// Check whether all keys exist. Prints `true` or `false`; the exit code is 0 or 1.
    Check(KeysArgs),
    /// Wait until all keys exist.
    Wait(KeysArgs),
    /// Delete a key. The exit code is 1 if it does not exist.
    Delete(KeyArgs),
    /// Print the keys, sorted, one per line. Bytes that are not UTF-8 are shown as replacement characters.
    ///
    /// On a terminal, characters that are not printable are shown as escapes, for example \u{1b}.
    Keys(TargetArgs),
    /// Print the number of all keys, including those outside --prefix and internal ones.
    Count(TargetArgs),
    /// Append to a key's value. Creates a missing key.
    #[command(override_usage = "c10d store append [OPTIONS] KEY <VALUE|-|--file FILE>")]
    Append(KeyValueArgs),
    /// Wait until all keys exist, and print their values without separators; --json separates them.
    MultiGet(KeysArgs),
    /// Set several keys with one request.
    MultiSet(MultiSetArgs),
    /// Append a value to a queue.
    #[command(override_usage = "c10d store push [OPTIONS] KEY <VALUE|-|--file FILE>")]
    Push(KeyValueArgs),
    /// Wait for a value in a queue, remove the first one, and print it.
    Pop(PopArgs),
    /// Print the length of a queue.
    Len(KeyArgs),
    /// Wait until --world-size workers have called this with the same key.
    ///
    /// A key can be used for one barrier only. A worker whose wait timed out still counts as arrived.
    Barrier(BarrierArgs),
    /// Hold a key as a lock while a command runs, or without a command until SIGINT or SIGTERM.
    ///
    /// Waits for at most --timeout while the key has a value, and checks it every 100 ms. The server deletes the key when
    /// this process exits for any reason. Without a COMMAND, a line with the key is printed once the lock is held.
    ///
    /// The COMMAND gets the input, output and environment of this process, and SIGINT and SIGTERM. The exit code is that of
    /// the COMMAND, or 128 + N if signal N killed it. When the COMMAND has exited, the processes that it has left behind
    /// are killed, and then the key is deleted. If the lease is lost, for example because the server exits or another
    /// client changes the key, the COMMAND gets SIGTERM, after a third of --ttl SIGKILL, and the exit code is 3. If this
    /// process is killed, so is the COMMAND (on Linux). A store in etcd keeps the lease when another server takes over
    /// within two thirds of --ttl.
    #[command(override_usage = "c10d store lease [OPTIONS] KEY [-- COMMAND...]")]
    Lease(lease::LeaseArgs),
    /// Print the time of one round trip in milliseconds.
    Ping(TargetArgs),
    /// Print each change of a key as a line: time, key, length, and the start of the value.
    ///
    /// The first line is the present value. The command runs until it is interrupted or the connection is lost; --timeout
    /// limits the time to connect. A store in etcd is followed for up to 10 minutes without a server. A deletion of KEY is
    /// not shown. The keys of --prefix, and any key of a server that is not c10d's, are checked once a second, so values
    /// between two checks are not seen.
    #[command(override_usage = "c10d store watch [OPTIONS] <KEY|--prefix PREFIX>")]
    Watch(watch::WatchArgs),
    /// List the connections with their age, last request and current wait.
    ///
    /// PID is what PyTorch's clients report, as seen in their own container. The answer is up to a second old. Needs a
    /// store that `c10d run` or `c10d store serve` serves.
    Clients(connections::ClientsArgs),
    /// Print the server's counters, or with --interval their rates.
    ///
    /// Needs a store that `c10d run` or `c10d store serve` serves.
    Stats(stats::StatsArgs),
    /// Show the server of a store in etcd, and the servers that can take over.
    ///
    /// The lag of a server is the number of batches of the log that it has not read. It can be up to 45 s old if the server
    /// cannot be asked at its `--etcd-life-port`. A killed server is listed for another minute.
    #[cfg(feature = "etcd")]
    Status(status::EtcdStatusArgs),
}

#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// The key, without the prefix.
    key: String,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct KeysArgs {
    /// One or more keys, without the prefix.
    #[arg(required = true)]
    keys: Vec<String>,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct KeyValueArgs {
    /// The key, without the prefix.
    key: String,
    #[command(flatten)]
    value: ValueArgs,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// The key, without the prefix.
    key: String,
    /// Add this number, which may be negative.
    #[arg(default_value_t = 1, allow_negative_numbers = true)]
    delta: i64,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CompareSetArgs {
    /// The key, without the prefix.
    key: String,
    /// The value that the key must have; empty for a key that must not exist.
    #[arg(allow_negative_numbers = true)]
    expected: OsString,
    #[command(flatten)]
    desired: ValueArgs,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct MultiSetArgs {
    /// Set these pairs of a key and a value. The value `-` is read from standard input.
    #[arg(
        value_name = "KEY VALUE",
        allow_negative_numbers = true,
        required_unless_present = "file"
    )]
    pairs: Vec<OsString>,
    /// Set this key to the contents of this file, after the pairs above.
    #[arg(long, num_args = 2, value_names = ["KEY", "FILE"])]
    file: Vec<OsString>,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PopArgs {
    /// The queue's key, without the prefix.
    key: String,
    /// Do not wait: the exit code is 1 if the queue is empty.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct BarrierArgs {
    /// The key, without the prefix: one that no other barrier has used.
    key: String,
    /// Wait for this number of workers.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    world_size: usize,
    #[command(flatten)]
    target: TargetArgs,
}

/// Reads the input, connects, executes the command, prints the answer.
pub(crate) fn run(command: &ClientCommand) -> Result<(), Failure> {
    match command {
        ClientCommand::Get(args) => {
            let value = args.target.connect()?.store().get(&args.key)?;
            args.target.answer(values::pair(&args.key, &value), &value)
        }
        ClientCommand::Set(args) => write("set", args, |store, value| store.set(&args.key, value)),
        ClientCommand::Add(args) => {
            let sum = args.target.connect()?.store().add(&args.key, args.delta)?;
            let json = json!({ "key": args.key, "value": sum });
            args.target.answer_line(json, sum)
        }
        ClientCommand::CompareSet(args) => compare_set(args),
        ClientCommand::Check(args) => {
            let exist = args.target.connect()?.store().check(&as_strs(&args.keys))?;
            let json = json!({ "keys": args.keys, "exist": exist });
            args.target.answer_line(json, exist)?;
            Failure::unless(exist, String::new)
        }
        ClientCommand::Wait(args) => {
            args.target.connect()?.store().wait(&as_strs(&args.keys))?;
            args.target.answer(json!({ "keys": args.keys }), b"")
        }
        ClientCommand::Delete(args) => {
            let deleted = args.target.connect()?.store().delete_key(&args.key)?;
            let json = json!({ "key": args.key, "deleted": deleted });
            args.target.answer(json, b"")?;
            Failure::unless(deleted, || {
                format!("delete {:?}: the key does not exist", args.key)
            })
        }
        ClientCommand::Keys(target) => list_keys(target),
        ClientCommand::Count(target) => {
            let count = target.connect()?.store().num_keys()?;
            target.answer_line(json!({ "count": count }), count)
        }
        ClientCommand::Append(args) => write("append", args, |store, value| {
            store.append(&args.key, value)
        }),
        ClientCommand::MultiGet(args) => {
            let client = args.target.connect()?;
            let values = client.store().multi_get(&as_strs(&args.keys))?;
            let pairs = args.keys.iter().zip(&values);
            let pairs: Value = pairs.map(|(key, value)| values::pair(key, value)).collect();
            args.target
                .answer(json!({ "values": pairs }), &values.concat())
        }
        ClientCommand::MultiSet(args) => multi_set(args),
        ClientCommand::Push(args) => write("push", args, |store, value| {
            store.queue_push(&args.key, value)
        }),
        ClientCommand::Pop(args) => pop(args),
        ClientCommand::Len(args) => {
            let length = args.target.connect()?.store().queue_len(&args.key)?;
            let json = json!({ "key": args.key, "length": length });
            args.target.answer_line(json, length)
        }
        ClientCommand::Barrier(args) => {
            let client = args.target.connect()?;
            client.store().barrier(&args.key, args.world_size)?;
            let json = json!({ "key": args.key, "world_size": args.world_size });
            args.target.answer(json, b"")
        }
        ClientCommand::Lease(args) => lease::run(args),
        ClientCommand::Ping(target) => {
            let milliseconds = target.connect()?.tcp().ping()?.as_secs_f64() * 1e3;
            let json = json!({ "round_trip_ms": milliseconds });
            target.answer_line(json, format_args!("{milliseconds:.3} ms"))
        }
        ClientCommand::Watch(args) => watch::run(args),
        ClientCommand::Clients(args) => connections::run(args),
        ClientCommand::Stats(args) => stats::run(args),
        #[cfg(feature = "etcd")]
        ClientCommand::Status(args) => status::run(args),
    }
}

fn list_keys(target: &TargetArgs) -> Result<(), Failure> {
    let keys = target.connect()?.store().list_keys()?;
    let keys = keys.iter().map(|key| key_to_bytes(key));
    let mut keys: Vec<String> = keys
        .map(|key| String::from_utf8_lossy(&key).into_owned())
        .collect();
    keys.sort_unstable();
    let json = json!({ "keys": keys });
    if is_for_terminal() {
        // A line break in a key must not look like two keys.
        let shown = keys.iter().map(|key| printable(key, usize::MAX));
        keys = shown.map(|key| key.to_string()).collect();
    }
    let lines: String = keys.iter().flat_map(|key| [key, "\n"]).collect();
    target.answer(json, lines.as_bytes())
}

/// Writes one value to one key. Such a write has no answer.
fn write(
    operation: &str,
    args: &KeyValueArgs,
    write: impl FnOnce(&dyn Store, &[u8]) -> Result<(), StoreError>,
) -> Result<(), Failure> {
    let value = args.value.read()?;
    let what = format!("{operation} {:?}", args.key);
    let client = args.target.connect()?;
    client.write(what, |store| write(store, &value))?;
    args.target.answer(json!({ "key": args.key }), b"")
}

fn pop(args: &PopArgs) -> Result<(), Failure> {
    let client = args.target.connect()?;
    let value = match args.no_wait {
        true => client.store().try_queue_pop(&args.key)?,
        false => Some(client.store().queue_pop(&args.key)?),
    };
    match value {
        Some(value) => args.target.answer(values::pair(&args.key, &value), &value),
        None => {
            let json = json!({ "key": args.key, "value": Value::Null });
            args.target.answer(json, b"")?;
            let text = format!("pop {:?}: the queue is empty", args.key);
            Err(Failure::No(text))
        }
    }
}

fn compare_set(args: &CompareSetArgs) -> Result<(), Failure> {
    let expected = values::bytes_of(&args.expected);
    let desired = args.desired.read()?;
    let client = args.target.connect()?;
    let swap = client.store().compare_set(&args.key, expected, &desired)?;
    let written = match swap.swapped() {
        Some(swapped) => swapped,
        // For a missing key the server answers with the expected value. If that equals the desired one,
        // only another request shows whether the key exists.
        None => expected != desired || client.store().check(&[&args.key])?,
    };
    let mut json = values::pair(&args.key, swap.value());
    json["written"] = written.into();
    args.target.answer(json, swap.value())?;
    Failure::unless(written, || {
        format!(
            "compare-set {:?}: not written, the key does not have the expected value",
            args.key
        )
    })
}

fn multi_set(args: &MultiSetArgs) -> Result<(), Failure> {
    let mut pairs = Vec::new();
    let values = args.pairs.iter().skip(1).step_by(2);
    if values.filter(|value| *value == "-").count() > 1 {
        let text = "standard input can be read only once: at most one value can be -";
        return Err(Failure::Usage(text.to_owned()));
    }
    for pair in args.pairs.chunks(2) {
        let [key, value] = pair else {
            let text = format!("the key {:?} has no value", pair[0]);
            return Err(Failure::Usage(text));
        };
        pairs.push((values::key(key)?, values::argument(value)?));
    }
    for pair in args.file.chunks_exact(2) {
        let value = values::file(Path::new(&pair[1]))?;
        pairs.push((values::key(&pair[0])?, value));
    }
    let pairs = pairs.iter().map(|(key, value)| (*key, value.as_slice()));
    let pairs: Vec<(&str, &[u8])> = pairs.collect();
    let client = args.target.connect()?;
    client.write("multi-set".to_owned(), |store| store.multi_set(&pairs))?;
    let keys: Vec<&str> = pairs.iter().map(|(key, _)| *key).collect();
    args.target.answer(json!({ "keys": keys }), b"")
}

fn as_strs(keys: &[String]) -> Vec<&str> {
    keys.iter().map(String::as_str).collect()
}
