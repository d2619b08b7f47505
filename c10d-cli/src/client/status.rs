//! `c10d store status`: who serves a store in etcd, and who may take over.

use std::time::{Duration, Instant};

use c10d_journal::{EtcdCandidate, EtcdDirectory, EtcdOptions, EtcdStatus};
use c10d_socket::{Cancel, Deadline, printable};
use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::etcd::EtcdArgs;
use crate::failure::Failure;
use crate::output::print;
use crate::printable::printable_json;

/// How long etcd may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The most characters of a text that another process has written.
const TEXT_CHARS_MAX: usize = 300;

#[derive(Debug, Args)]
pub(crate) struct EtcdStatusArgs {
    #[command(flatten)]
    etcd: EtcdArgs,

    /// The same as --etcd and --etcd-prefix, in one address.
    #[arg(
        long,
        value_name = "etcd://HOST:PORT,../PREFIX",
        conflicts_with = "etcd",
        required_unless_present = "etcd"
    )]
    connect: Option<EtcdOptions>,

    /// Prints one JSON object.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &EtcdStatusArgs) -> Result<(), Failure> {
    let options = match &args.connect {
        Some(options) => args.etcd.access(options.clone())?,
        None => (args.etcd.options()?).expect("one of them is required"),
    };
    let place = options.to_string();
    let deadline = Deadline::after(Instant::now(), TIMEOUT);
    let status = EtcdDirectory::new(options).status(deadline, &Cancel::NEVER);
    let status = status.map_err(|error| Failure::Etcd(error.to_string()))?;
    let text = match args.json {
        true => printable_json(&format!("{}\n", to_json(&place, &status))),
        false => to_text(&place, &status),
    };
    print(text.as_bytes())
}

/// How many batches it has not read. One that has just taken over may be ahead of what was read of it.
fn lag(status: &EtcdStatus, candidate: &EtcdCandidate) -> u64 {
    status.position.saturating_sub(candidate.position)
}

fn to_json(place: &str, status: &EtcdStatus) -> Value {
    let leader = status.leader.as_ref().map(|leader| {
        json!({
            "address": leader.address, "process": leader.process, "since": leader.since, "epoch": leader.epoch,
        })
    });
    let candidates = status.candidates.iter().map(|candidate| {
        json!({
            "address": candidate.address, "process": candidate.process, "since": candidate.since,
            "lag": lag(status, candidate),
        })
    });
    json!({
        "etcd": place,
        "leader": leader,
        "position": status.position,
        "snapshot_position": status.snapshot_position,
        "candidates": candidates.collect::<Vec<_>>(),
    })
}

fn to_text(place: &str, status: &EtcdStatus) -> String {
    let text = |text: &str| printable(text, TEXT_CHARS_MAX).to_string();
    let time = |seconds: u64| {
        let seconds = i64::try_from(seconds).ok();
        let time = seconds.and_then(|it| Timestamp::from_second(it).ok());
        time.map_or_else(|| "?".to_owned(), |time| time.to_string())
    };
    let leader = status.leader.as_ref().map_or_else(
        || "nobody".to_owned(),
        |leader| {
            let (address, process) = (text(&leader.address), text(&leader.process));
            let since = time(leader.since);
            format!(
                "{address} ({process}), epoch {}, since {since}",
                leader.epoch
            )
        },
    );
    let (batches, snapshot) = (status.position, status.snapshot_position);
    let mut lines = format!(
        "store     {}\nserves    {leader}\nlog       {batches} batches, {} of them after the snapshot\n",
        text(place),
        batches.saturating_sub(snapshot),
    );
    for candidate in &status.candidates {
        let (address, process) = (text(&candidate.address), text(&candidate.process));
        let (since, lag) = (time(candidate.since), lag(status, candidate));
        lines += &format!("candidate {address} ({process}), since {since}, {lag} batches behind\n");
    }
    lines
}
