//! The JSON of a status: every rank of every communicator, without a judgement. The releases 2.28.7 to 2.28.9 leave out
//! a comma in front of the status of a missing rank.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::report::{
    COMMUNICATORS_MAX, Communicator, CommunicatorStatus, DifferentCounts, Failed, InStatus,
    Members, NcclAnswerError, NcclMember, NcclProcess, NcclReport,
};
use crate::text::shown_up_to;

const NAME_CHARS_MAX: usize = 40;

/// `ncclSuccess` and `ncclInProgress`.
const SUCCESS: i64 = 0;
const IN_PROGRESS: i64 = 7;

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    nccl_version: String,
    communicators: Vec<Comm>,
    ras: Ras,
}

#[derive(Deserialize)]
struct Ras {
    #[serde(default)]
    timeouts_count: usize,
}

#[derive(Deserialize)]
struct Comm {
    hash: String,
    size: usize,
    ranks: Vec<Rank>,
    #[serde(default)]
    missing_ranks: Vec<Missing>,
}

#[derive(Deserialize)]
struct Place {
    rank: usize,
    /// "unknown" or an address.
    host: String,
    /// -1 if it is not known.
    pid: i64,
    cuda_dev: i64,
}

#[derive(Deserialize)]
struct Rank {
    #[serde(flatten)]
    place: Place,
    status: Status,
    #[serde(default)]
    collective_counts: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
struct Status {
    init_state: i64,
    async_error: i64,
    finalize_called: bool,
    destroy_flag: bool,
    abort_flag: bool,
}

#[derive(Deserialize)]
struct Missing {
    #[serde(flatten)]
    place: Place,
    status: MissingStatus,
}

#[derive(Deserialize)]
struct MissingStatus {
    unresponsive: bool,
    considered_dead: bool,
}

pub(super) fn parse(bytes: &[u8]) -> Result<NcclReport, NcclAnswerError> {
    let answer: Answer = match serde_json::from_slice(bytes) {
        Ok(answer) => answer,
        Err(_) => {
            let mended = with_commas(&String::from_utf8_lossy(bytes));
            serde_json::from_str(&mended).map_err(|_| NcclAnswerError::Incomplete)?
        }
    };
    let mut report = NcclReport {
        version: shown_up_to(answer.nccl_version.as_bytes(), NAME_CHARS_MAX),
        timeouts: answer.ras.timeouts_count,
        ..NcclReport::default()
    };
    for comm in answer.communicators.into_iter().take(COMMUNICATORS_MAX) {
        for missing in comm
            .missing_ranks
            .iter()
            .filter(|it| it.status.unresponsive)
        {
            let list = match missing.status.considered_dead {
                true => &mut report.dead,
                false => &mut report.silent,
            };
            if let Some(process) = missing.place.process()
                && !list.named.contains(&process)
            {
                list.add(process);
            }
        }
        report.communicators.extend(communicator(comm));
    }
    Ok(report)
}

fn communicator(comm: Comm) -> Option<Communicator> {
    let id = comm.hash.strip_prefix("0x")?;
    let mut communicator = Communicator {
        id: format!("{:016x}", u64::from_str_radix(id, 16).ok()?),
        size: Some(comm.size),
        ..Communicator::default()
    };
    let mut statuses = BTreeMap::<CommunicatorStatus, Members>::new();
    let mut failed = BTreeMap::<i64, Members>::new();
    let mut counts = BTreeMap::<&str, BTreeMap<u64, Members>>::new();
    for missing in &comm.missing_ranks {
        match missing.status.unresponsive {
            true => communicator.missing.add(missing.place.member()),
            false => {
                let none = statuses.entry(CommunicatorStatus::None).or_default();
                none.add(missing.place.member());
            }
        }
    }
    for rank in &comm.ranks {
        let status = statuses.entry(rank.status.summary()).or_default();
        status.add(rank.place.member());
        for error in [rank.status.init_state, rank.status.async_error] {
            if error != SUCCESS && error != IN_PROGRESS {
                failed.entry(error).or_default().add(rank.place.member());
            }
        }
        for (operation, count) in &rank.collective_counts {
            let launched = counts.entry(operation).or_default().entry(*count);
            launched.or_default().add(rank.place.member());
        }
    }
    // As the text does: the largest set first.
    if statuses.len() > 1 {
        let all = statuses.into_iter();
        let mut all: Vec<_> = all
            .map(|(status, members)| InStatus { status, members })
            .collect();
        all.sort_by_key(|it| std::cmp::Reverse(it.members.count));
        communicator.statuses = all;
    }
    communicator.failed = failed
        .into_iter()
        .map(|(error, members)| Failed {
            error: error_text(error).to_owned(),
            members,
        })
        .collect();
    for (operation, launched) in counts {
        if launched.len() > 1 {
            let mut launched: Vec<_> = launched.into_iter().collect();
            launched.sort_by_key(|(_, members)| std::cmp::Reverse(members.count));
            communicator.counts.push(DifferentCounts {
                operation: shown_up_to(operation.as_bytes(), NAME_CHARS_MAX),
                launched,
            });
        }
    }
    Some(communicator)
}

impl Status {
    const fn summary(&self) -> CommunicatorStatus {
        if self.abort_flag {
            CommunicatorStatus::Abort
        } else if self.finalize_called || self.destroy_flag {
            CommunicatorStatus::Finalize
        } else if self.init_state == SUCCESS {
            CommunicatorStatus::Running
        } else {
            CommunicatorStatus::Init
        }
    }
}

impl Place {
    fn process(&self) -> Option<NcclProcess> {
        let pid = u32::try_from(self.pid).ok()?;
        let host = self.host.parse().ok()?;
        Some(NcclProcess { host, pid })
    }

    fn member(&self) -> NcclMember {
        NcclMember {
            rank: Some(self.rank),
            process: self.process(),
            device: u32::try_from(self.cuda_dev).ok(),
        }
    }
}

/// The words of the text for `ncclResult_t`.
const fn error_text(error: i64) -> &'static str {
    match error {
        1 => "Unhandled CUDA error",
        2 => "System error",
        3 => "Internal error",
        4 => "Invalid argument",
        5 => "Invalid usage",
        6 => "Remote process error",
        _ => "Unexpected error",
    }
}

/// The text with a comma behind each number that a member without one follows.
fn with_commas(text: &str) -> String {
    let mut mended = String::with_capacity(text.len() + 64);
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        mended.push_str(line);
        let lacks_comma = line.ends_with(|last: char| last.is_ascii_digit());
        let next = lines.peek().map(|next| next.trim_start());
        if lacks_comma && next.is_some_and(|next| next.starts_with("\"status\"")) {
            mended.push(',');
        }
        mended.push('\n');
    }
    mended
}
