//! The text of a status. It is for people: a line that is not known says nothing.
//!
//! A section `Errors` has the silent and dead processes, and the communicators that are `INCOMPLETE` or have an `ERROR`; a
//! section `Warnings` those with a `MISMATCH`. A line that begins with `#`, as `#0-1 (27a079b828ff1a75) MISMATCH`, starts
//! a part about one communicator: group 0 of the table above, number 1 in it, and its id. Small sets of ranks are listed
//! below the line that counts them; a single one is named in the line that would count it.

use super::report::{
    COMMUNICATORS_MAX, Communicator, CommunicatorStatus, Counted, DifferentCounts, Failed,
    InStatus, Members, NcclAnswerError, NcclMember, NcclProcess, NcclReport,
};
use crate::text::shown_up_to;

/// The most characters of a release or of the name of an operation.
const NAME_CHARS_MAX: usize = 40;

/// The kind of entries in the next lines.
enum Listing {
    Nothing,
    Silent,
    Dead,
    Missing,
    Failed,
    Status,
    Counts,
}

struct Parser {
    report: NcclReport,
    /// The numbers of ranks of the table's groups.
    sizes: Vec<(usize, usize)>,
    /// Whether lines are about the last communicator.
    listing: Listing,
    is_in_table: bool,
}

pub(super) fn parse(text: &str) -> Result<NcclReport, NcclAnswerError> {
    // The last part of the text. It says that all before it has arrived.
    if !text.lines().any(|line| line == "Warnings") && !text.contains("No communicator data") {
        return Err(NcclAnswerError::Incomplete);
    }
    let mut parser = Parser {
        report: NcclReport::default(),
        sizes: Vec::new(),
        listing: Listing::Nothing,
        is_in_table: false,
    };
    for line in text.lines() {
        // Unknown lines are skipped.
        let _ = parser.line(line);
    }
    Ok(parser.report)
}

impl Parser {
    fn line(&mut self, line: &str) -> Option<()> {
        if let Some(version) = line.strip_prefix("NCCL version ") {
            let version = version.split(' ').next()?;
            self.report.version = shown_up_to(version.as_bytes(), NAME_CHARS_MAX);
            return Some(());
        }
        match line {
            "" => self.is_in_table = false,
            "Errors" | "Warnings" => self.listing = Listing::Nothing,
            "INCOMPLETE" => self.listing = Listing::Silent,
            "DEAD" => self.listing = Listing::Dead,
            _ if line.starts_with("Group     Comms") => self.is_in_table = true,
            _ if line.starts_with('#') => self.communicator(line)?,
            _ if self.is_in_table => self.row(line)?,
            _ => self.entry(line.strip_prefix("  ")?)?,
        }
        Some(())
    }

    /// `    0         8         4         1         4        32   RUNNING      OK`
    fn row(&mut self, line: &str) -> Option<()> {
        let mut words = line.split_ascii_whitespace();
        let group = words.next()?.parse().ok()?;
        let size = words.nth(3)?.parse().ok()?;
        if self.sizes.len() < COMMUNICATORS_MAX {
            self.sizes.push((group, size));
        }
        Some(())
    }

    fn communicator(&mut self, line: &str) -> Option<()> {
        self.listing = Listing::Nothing;
        let (number, rest) = line.strip_prefix('#')?.split_once(" (")?;
        let (id, _) = rest.split_once(") ")?;
        let (group, _) = number.split_once('-')?;
        let group: usize = group.parse().ok()?;
        let is_id = (1..=16).contains(&id.len()) && id.bytes().all(|it| it.is_ascii_hexdigit());
        if !is_id {
            return None;
        }
        let all = &mut self.report.communicators;
        // Its parts are about one thing each.
        let known = all.iter().position(|it| it.id == id);
        let communicator = match known {
            Some(place) => all.remove(place),
            None if all.len() < COMMUNICATORS_MAX => Communicator {
                id: id.to_owned(),
                size: self.sizes.iter().find(|it| it.0 == group).map(|it| it.1),
                ..Communicator::default()
            },
            None => return None,
        };
        all.push(communicator);
        self.listing = Listing::Missing;
        Some(())
    }

    fn entry(&mut self, entry: &str) -> Option<()> {
        if let Some(rest) = entry.strip_prefix("Encountered ") {
            self.report.timeouts = number(rest)?.0;
            return Some(());
        }
        match self.listing {
            Listing::Nothing => None,
            Listing::Silent => process_list(&mut self.report.silent, entry),
            Listing::Dead => process_list(&mut self.report.dead, entry),
            Listing::Missing | Listing::Failed | Listing::Status | Listing::Counts => {
                self.about_members(entry)
            }
        }
    }

    fn about_members(&mut self, entry: &str) -> Option<()> {
        let communicator = self.report.communicators.last_mut()?;
        if entry.starts_with("Missing communicator data from ") {
            self.listing = Listing::Missing;
            communicator.missing.count =
                number(entry.strip_prefix("Missing communicator data from ")?)?.0;
        } else if entry.starts_with("Initialization error")
            || entry.starts_with("Asynchronous error")
        {
            self.listing = Listing::Failed;
        } else if entry == "Communicator ranks have different status" {
            self.listing = Listing::Status;
        } else if let Some(rest) = entry.strip_prefix("Communicator ranks have different ") {
            let operation = rest.strip_suffix(" operation counts")?;
            self.listing = Listing::Counts;
            communicator.counts.push(DifferentCounts {
                operation: shown_up_to(operation.as_bytes(), NAME_CHARS_MAX),
                launched: Vec::new(),
            });
        } else if let Some((_, list)) = entry
            .split_once("ranks: ")
            .or_else(|| entry.split_once("rank: "))
        {
            // Up to 2.25: "The missing ranks: 3,5", "The unknown ranks: 3,5".
            let members = self.last()?;
            for rank in list.split(',') {
                members.name(NcclMember {
                    rank: Some(rank.trim().parse().ok()?),
                    ..NcclMember::default()
                });
            }
        } else if let Some(rest) = entry.strip_prefix("Rank ") {
            let (rank, rest) = number(rest)?;
            match rest.strip_prefix(" -- ") {
                Some(place) => self.last()?.name(member(rank, place)),
                None => {
                    let (what, place) = match rest.split_once(" -- ") {
                        Some((what, place)) => (what, place),
                        None => (rest, ""),
                    };
                    self.begin(1, what.trim_start())?.name(member(rank, place));
                }
            }
        } else {
            let (count, rest) = number(entry)?;
            self.begin(count, rest.strip_prefix(" ranks ")?)?;
        }
        Some(())
    }

    /// A set of members, as in "2 ranks have status INIT", "Rank 3 has status INIT".
    fn begin(&mut self, count: usize, what: &str) -> Option<&mut Members> {
        let communicator = self.report.communicators.last_mut()?;
        let what = what
            .strip_prefix("have ")
            .or_else(|| what.strip_prefix("has "))
            .unwrap_or(what);
        let members = Counted::of(count);
        if let Some(error) = what.strip_prefix("reported ") {
            let error = shown_up_to(error.as_bytes(), NAME_CHARS_MAX);
            communicator.failed.push(Failed { error, members });
        } else if let Some(status) = what.strip_prefix("status ") {
            let status = CommunicatorStatus::of(status)?;
            communicator.statuses.push(InStatus { status, members });
        } else {
            let count = match what.strip_prefix("launched up to operation ") {
                Some(count) => count.parse().ok()?,
                None if what == "not launched any operations" => 0,
                None => return None,
            };
            communicator
                .counts
                .last_mut()?
                .launched
                .push((count, members));
        }
        self.last()
    }

    /// The set that lines list.
    fn last(&mut self) -> Option<&mut Members> {
        let communicator = self.report.communicators.last_mut()?;
        match self.listing {
            Listing::Missing => Some(&mut communicator.missing),
            Listing::Failed => Some(&mut communicator.failed.last_mut()?.members),
            Listing::Status => Some(&mut communicator.statuses.last_mut()?.members),
            Listing::Counts => Some(&mut communicator.counts.last_mut()?.launched.last_mut()?.1),
            Listing::Nothing | Listing::Silent | Listing::Dead => None,
        }
    }
}

/// "Missing communicator data from 1 job process", "2 job processes are considered dead", "Process 7 on node 10.0.0.3
/// managing GPU 5".
fn process_list(list: &mut Counted<NcclProcess>, entry: &str) -> Option<()> {
    if let Some(rest) = entry.strip_prefix("Process ") {
        let (pid, rest) = number(rest)?;
        let rest = rest.strip_prefix(" on node ")?;
        let host = rest.split(' ').next()?.parse().ok()?;
        let pid = u32::try_from(pid).ok()?;
        list.name(NcclProcess { host, pid });
    } else {
        let rest = entry.strip_prefix("Missing communicator data from ");
        let (count, rest) = number(rest.unwrap_or(entry))?;
        if rest.starts_with(" job process") {
            list.count = count;
        }
    }
    Some(())
}

/// "GPU 5 (NVML 6) managed by process 3487984 on node 172.16.64.213", "[process information not found]".
fn member(rank: usize, place: &str) -> NcclMember {
    let device = place.strip_prefix("GPU ").and_then(number);
    let process = || {
        let (_, rest) = place.split_once(" managed by process ")?;
        let (pid, rest) = number(rest)?;
        let host = rest.strip_prefix(" on node ")?.trim().parse().ok()?;
        let pid = u32::try_from(pid).ok()?;
        Some(NcclProcess { host, pid })
    };
    NcclMember {
        rank: Some(rank),
        process: process(),
        device: device.and_then(|(device, _)| u32::try_from(device).ok()),
    }
}

/// The number at the start, and the rest of the text.
fn number(text: &str) -> Option<(usize, &str)> {
    let end = text
        .find(|it: char| !it.is_ascii_digit())
        .unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}
