//! `c10d store get` and its siblings: one operation on a running store, for shells and scripts.

mod input;
mod json;
mod target;

use std::ffi::OsString;
use std::path::PathBuf;

use c10d_store::{Store, StoreError};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::quantity::at_least_one;
use input::ValueArgs;
use target::TargetArgs;

/// All but `serve` that `c10d store` can do.
#[derive(Debug, Subcommand)]
pub(crate) enum ClientCommand {
    /// Prints a key's value, waiting for the key. Exactly its bytes, no newline.
    Get(KeyArgs),
    /// Sets a key.
    #[command(override_usage = "c10d store set [OPTIONS] KEY <VALUE|-|--file FILE>")]
    Set(KeyValueArgs),
    /// Adds to the number at a key and prints the sum. A missing key counts as 0.
    Add(AddArgs),
    /// Sets a key if it has the expected value, or if it is missing and the expected value is empty.
    ///
    /// Prints the server's answer: the value that the key has now. Exit code 1 when nothing was
    /// written. (For a missing key the server then answers with the expected value.)
    #[command(
        override_usage = "c10d store compare-set [OPTIONS] KEY EXPECTED <DESIRED|-|--file FILE>"
    )]
    CompareSet(CompareSetArgs),
    /// Tells whether all keys are there: prints `true` or `false`, exit code 0 or 1.
    Check(KeysArgs),
    /// Waits until all keys are there.
    Wait(KeysArgs),
    /// Deletes a key. Exit code 1 when it was not there.
    Delete(KeyArgs),
    /// Prints the keys, sorted, one a line. A key that is not UTF-8 shows replacement characters.
    Keys(TargetArgs),
    /// Prints how many keys the store has, those outside --prefix and its own bookkeeping included.
    Count(TargetArgs),
    /// Appends to a key's value, creating the key if it is missing.
    #[command(override_usage = "c10d store append [OPTIONS] KEY <VALUE|-|--file FILE>")]
    Append(KeyValueArgs),
    /// Prints the values of all keys, waiting for them, with nothing in between; --json keeps them
    /// apart.
    MultiGet(KeysArgs),
    /// Sets several keys with one request.
    MultiSet(MultiSetArgs),
    /// Puts a value at the end of a queue.
    #[command(override_usage = "c10d store push [OPTIONS] KEY <VALUE|-|--file FILE>")]
    Push(KeyValueArgs),
    /// Takes the first value from a queue and prints it, waiting for one.
    Pop(PopArgs),
    /// Prints the length of a queue.
    Len(KeyArgs),
    /// Waits until so many workers have called this with this key. A key serves once, and a timeout
    /// does not take the arrival back.
    Barrier(BarrierArgs),
    /// Prints the time of one round trip.
    Ping(TargetArgs),
}

#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// The key.
    key: String,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct KeysArgs {
    /// The keys.
    #[arg(required = true)]
    keys: Vec<String>,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct KeyValueArgs {
    /// The key.
    key: String,
    #[command(flatten)]
    value: ValueArgs,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// The key.
    key: String,
    /// What to add; may be negative.
    #[arg(default_value_t = 1, allow_negative_numbers = true)]
    delta: i64,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CompareSetArgs {
    /// The key.
    key: String,
    /// The value it must have; empty for a key that must be missing.
    #[arg(allow_negative_numbers = true)]
    expected: OsString,
    #[command(flatten)]
    desired: ValueArgs,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct MultiSetArgs {
    /// KEY VALUE, any number of times. A value of `-` is read from standard input.
    #[arg(
        value_name = "KEY VALUE",
        allow_negative_numbers = true,
        required_unless_present = "file"
    )]
    pairs: Vec<OsString>,
    /// A key and the file that holds its value; after the pairs above.
    #[arg(long, num_args = 2, value_names = ["KEY", "FILE"])]
    file: Vec<OsString>,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PopArgs {
    /// The key.
    key: String,
    /// Does not wait: exit code 1 when the queue is empty.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct BarrierArgs {
    /// The key.
    key: String,
    /// How many workers meet.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    world_size: usize,
    #[command(flatten)]
    target: TargetArgs,
}

/// Reads what the command needs, connects, does it, prints the answer.
pub(crate) fn run(command: &ClientCommand) -> Result<(), Failure> {
    match command {
        ClientCommand::Get(args) => {
            let value = args.target.connect()?.store().get(&args.key)?;
            args.target.answer(json::pair(&args.key, &value), &value)
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
            if exist {
                Ok(())
            } else {
                Err(Failure::No(String::new()))
            }
        }
        ClientCommand::Wait(args) => {
            args.target.connect()?.store().wait(&as_strs(&args.keys))?;
            args.target.answer(json!({ "keys": args.keys }), b"")
        }
        ClientCommand::Delete(args) => {
            let deleted = args.target.connect()?.store().delete_key(&args.key)?;
            let json = json!({ "key": args.key, "deleted": deleted });
            args.target.answer(json, b"")?;
            if deleted {
                Ok(())
            } else {
                Err(Failure::No(format!("delete {:?}: not there", args.key)))
            }
        }
        ClientCommand::Keys(target) => {
            let mut keys = target.connect()?.store().list_keys()?;
            keys.sort_unstable();
            let lines: String = keys.iter().flat_map(|key| [key, "\n"]).collect();
            target.answer(json!({ "keys": keys }), lines.as_bytes())
        }
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
            let pairs: Value = pairs.map(|(key, value)| json::pair(key, value)).collect();
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
        ClientCommand::Ping(target) => {
            let milliseconds = target.connect()?.ping()?.as_secs_f64() * 1e3;
            let json = json!({ "round_trip_ms": milliseconds });
            target.answer_line(json, format_args!("{milliseconds:.3} ms"))
        }
    }
}

/// A write of one value to one key, which has no answer but that it was done.
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
    if !args.no_wait {
        let value = client.store().queue_pop(&args.key)?;
        return args.target.answer(json::pair(&args.key, &value), &value);
    }
    match client.store().try_queue_pop(&args.key)? {
        Some(value) => args.target.answer(json::pair(&args.key, &value), &value),
        None => {
            let json = json!({ "key": args.key, "value": Value::Null });
            args.target.answer(json, b"")?;
            let text = format!("pop {:?}: the queue is empty", args.key);
            Err(Failure::No(text))
        }
    }
}

fn compare_set(args: &CompareSetArgs) -> Result<(), Failure> {
    let expected = input::bytes_of(&args.expected);
    let desired = args.desired.read()?;
    let client = args.target.connect()?;
    let swap = client.store().compare_set(&args.key, expected, &desired)?;
    let written = match swap.swapped() {
        Some(swapped) => swapped,
        // A key that is missing is answered with the expected value. Where that is the desired one
        // as well, only a look can tell whether the key is there.
        None => expected != desired || client.store().check(&[&args.key])?,
    };
    let mut json = json::pair(&args.key, swap.value());
    json["written"] = written.into();
    args.target.answer(json, swap.value())?;
    if written {
        return Ok(());
    }
    Err(Failure::No(format!(
        "compare-set {:?}: nothing written, it does not have the expected value",
        args.key
    )))
}

fn multi_set(args: &MultiSetArgs) -> Result<(), Failure> {
    let mut pairs = Vec::new();
    if args
        .pairs
        .iter()
        .skip(1)
        .step_by(2)
        .filter(|value| *value == "-")
        .count()
        > 1
    {
        let text = "standard input can be read only once, so one value at most can be -";
        return Err(Failure::Usage(text.to_owned()));
    }
    for pair in args.pairs.chunks(2) {
        let [key, value] = pair else {
            return Err(Failure::Usage(format!(
                "the key {:?} has no value",
                pair[0]
            )));
        };
        pairs.push((key_of(key)?, input::argument(value)?));
    }
    for pair in args.file.chunks_exact(2) {
        pairs.push((key_of(&pair[0])?, input::file(&PathBuf::from(&pair[1]))?));
    }
    let pairs: Vec<(&str, &[u8])> = pairs
        .iter()
        .map(|(key, value)| (*key, value.as_slice()))
        .collect();
    let client = args.target.connect()?;
    client.write("multi-set".to_owned(), |store| store.multi_set(&pairs))?;
    let keys: Vec<&str> = pairs.iter().map(|(key, _)| *key).collect();
    args.target.answer(json!({ "keys": keys }), b"")
}

fn key_of(argument: &OsString) -> Result<&str, Failure> {
    let not_text = || Failure::Usage(format!("the key {argument:?} is not UTF-8"));
    argument.to_str().ok_or_else(not_text)
}

fn as_strs(keys: &[String]) -> Vec<&str> {
    keys.iter().map(String::as_str).collect()
}
