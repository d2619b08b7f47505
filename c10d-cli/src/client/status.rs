//! `c10d store status`: who serves a store in etcd, who may take over, and how etcd is.

use std::time::{Duration, Instant};

use c10d_journal::{
    EtcdCandidate, EtcdDirectory, EtcdMember, EtcdMemberStatus as MemberStatus, EtcdOptions,
    EtcdStatus,
};
use c10d_socket::{Cancel, Deadline, printable};
use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::etcd::EtcdArgs;
use crate::failure::Failure;
use crate::output::print;
use crate::output::printable_json;

/// How long etcd may take, once its members were asked.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The most characters of a text that another process has written.
const TEXT_CHARS_MAX: usize = 300;

#[derive(Debug, Args)]
pub(crate) struct EtcdStatusArgs {
    #[command(flatten)]
    etcd: EtcdArgs,

    /// Give --etcd and --etcd-prefix as one address.
    #[arg(
        long,
        value_name = "etcd://HOST:PORT,../PREFIX",
        conflicts_with = "etcd",
        required_unless_present = "etcd"
    )]
    connect: Option<EtcdOptions>,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &EtcdStatusArgs) -> Result<(), Failure> {
    let options = match &args.connect {
        Some(options) => args.etcd.access(options.clone())?,
        None => (args.etcd.options()?).expect("one of them is required"),
    };
    let place = options.to_string();
    let directory = EtcdDirectory::new(options);
    // First, as they say why there may be no status.
    let members = directory.members(&Cancel::NEVER);
    let deadline = Deadline::after(Instant::now(), TIMEOUT);
    let status = directory.status(deadline, &Cancel::NEVER);
    let text = match args.json {
        true => {
            let status = status.as_ref().map_err(ToString::to_string);
            printable_json(&format!("{}\n", to_json(&place, &members, status)))
        }
        false => {
            members_to_text(&place, &members) + &status.as_ref().map(to_text).unwrap_or_default()
        }
    };
    print(text.as_bytes())?;
    status
        .map(drop)
        .map_err(|error| Failure::Etcd(error.to_string()))
}

/// The number of batches that a candidate has not read. A candidate that has just taken over may be
/// ahead of the status that was read.
fn lag(status: &EtcdStatus, candidate: &EtcdCandidate) -> u64 {
    status.position.saturating_sub(candidate.position)
}

fn to_json(place: &str, members: &[EtcdMember], status: Result<&EtcdStatus, String>) -> Value {
    let members = members.iter().map(|member| {
        let address = member.address.to_string();
        match &member.status {
            Ok(status) => json!({
                "address": address, "version": status.version, "leads": status.leads,
                "database_bytes": status.database_bytes, "used_bytes": status.used_bytes, "errors": status.errors,
            }),
            Err(error) => json!({ "address": address, "error": error }),
        }
    });
    let members: Vec<_> = members.collect();
    let status = match status {
        Ok(status) => status,
        Err(error) => return json!({ "etcd": place, "members": members, "error": error }),
    };
    let leader = status.leader.as_ref().map(|leader| {
        json!({
            "address": leader.address, "process": leader.process, "since": leader.since, "epoch": leader.epoch,
        })
    });
    let candidates = status.candidates.iter().map(|candidate| {
        json!({
            "address": candidate.address, "process": candidate.process, "since": candidate.since,
            "lag": lag(status, candidate), "reads": [candidate.formats.oldest, candidate.formats.newest],
        })
    });
    let takeover = status.takeover.as_ref().map(|takeover| {
        json!({
            "from": takeover.address, "process": takeover.process, "at": takeover.at,
            "seconds": takeover.duration.as_secs_f64(),
        })
    });
    json!({
        "etcd": place,
        "members": members,
        "leader": leader,
        "takeover": takeover,
        "format": status.format,
        "position": status.position,
        "snapshot_position": status.snapshot_position,
        "log_bytes": status.log_bytes,
        "snapshot_bytes": status.snapshot_bytes,
        "candidates": candidates.collect::<Vec<_>>(),
    })
}

fn text(text: &str) -> String {
    printable(text, TEXT_CHARS_MAX).to_string()
}

fn time(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).ok();
    let time = seconds.and_then(|it| Timestamp::from_second(it).ok());
    time.map_or_else(|| "?".to_owned(), |time| time.to_string())
}

fn members_to_text(place: &str, members: &[EtcdMember]) -> String {
    let mut lines = format!("store     {}\n", text(place));
    for member in members {
        let how = match &member.status {
            Ok(status) => {
                let role = if status.leads { "leads" } else { "follows" };
                let MemberStatus {
                    version,
                    database_bytes,
                    used_bytes,
                    errors,
                    ..
                } = status;
                let mut how =
                    format!("{version}, {role}, {database_bytes} B, {used_bytes} B of them in use");
                for error in errors {
                    how += &format!("; {}", text(error));
                }
                how
            }
            Err(error) => text(error),
        };
        lines += &format!("etcd      {}  {how}\n", member.address);
    }
    lines
}

fn to_text(status: &EtcdStatus) -> String {
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
    let mut lines = format!("serves    {leader}\n");
    if let Some(takeover) = &status.takeover {
        let (address, process) = (text(&takeover.address), text(&takeover.process));
        let (at, seconds) = (time(takeover.at), takeover.duration.as_secs_f64());
        lines += &format!("takeover  from {address} ({process}), {at}, in {seconds:.3} s\n");
    }
    let batches = status.position.saturating_sub(status.snapshot_position);
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "? B".to_owned(), |it| format!("{it} B"));
    let log = bytes(status.log_bytes);
    lines += &match status.snapshot_position {
        0 => format!("log       {batches} batches, {log}"),
        snapshot => format!(
            "log       {batches} batches, {log}, after a snapshot of {snapshot} batches, {}",
            bytes(status.snapshot_bytes)
        ),
    };
    lines += &match status.format {
        Some(format) => format!("; format {format}\n"),
        None => "\n".to_owned(),
    };
    for candidate in &status.candidates {
        let (address, process) = (text(&candidate.address), text(&candidate.process));
        let (since, lag) = (time(candidate.since), lag(status, candidate));
        let newest = candidate.formats.newest;
        lines += &format!(
            "candidate {address} ({process}), since {since}, {lag} batches behind, reads up to format {newest}\n"
        );
    }
    lines
}
