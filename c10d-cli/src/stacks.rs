//! `c10d stacks`: where the ranks of a job are in their Python code.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::str::FromStr;

use c10d_inspect::Report;
use c10d_inspect::stacks::{RankAnswer, StackGroup, answers_text};
use clap::Args;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::output::{print, print_json};
use crate::status::StatusArgs;

pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    all ranks that were asked have shown their stacks
  1    some have not; what else is known about them is shown
  2    invalid arguments
  3    no connection to the store
  4    cannot write to standard output
  141  the reader of standard output, for example `head`, closed it; no message";

/// The options of `c10d stacks`.
#[derive(Debug, Args)]
pub(crate) struct StacksArgs {
    /// Show these ranks or ranges of ranks, for example 2 or 4-7. [default: those that `c10d why` suspects, and one other]
    #[arg(value_name = "RANK", conflicts_with = "all")]
    ranks: Vec<RankArg>,

    /// Show all ranks.
    #[arg(long)]
    all: bool,

    /// Print one JSON object: groups of ranks with equal stacks, and the ranks without.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    status: StatusArgs,
}

/// Prints the stacks.
pub(crate) fn run(args: &StacksArgs) -> Result<(), Failure> {
    let job = args.status.open_observed_job()?;
    let choice = choose(job.report(), &args.ranks, args.all).map_err(Failure::Usage)?;
    let answers = job.stacks(&choice.ranks);
    if args.json {
        print_json(to_json(&answers))?;
    } else {
        let headline = job.report().headline_text();
        let reason = choice.reason.unwrap_or_default();
        let above = [headline, reason].into_iter().filter(|it| !it.is_empty());
        let parts: Vec<String> = above.chain([answers_text(&answers)]).collect();
        print(parts.join("\n").trim_start_matches('\n').as_bytes())?;
    }
    let is_complete = answers.iter().all(|answer| answer.stacks.is_some());
    Failure::unless(is_complete, String::new)
}

fn to_json(answers: &[RankAnswer]) -> Value {
    let others: Vec<&RankAnswer> = answers.iter().filter(|it| it.error.is_some()).collect();
    json!({ "groups": StackGroup::of_answers(answers), "unanswered": others })
}

/// The maximum number of ranks that are asked if no rank is suspected or named.
const DEFAULT_MAX: usize = 64;

/// A rank, or a range of ranks as `4-7`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RankArg(RangeInclusive<usize>);

impl FromStr for RankArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            text.parse::<usize>()
                .map_err(|_| format!("{text:?} is not a rank"))
        };
        let (first, last) = match text.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(text)?, number(text)?),
        };
        if first > last {
            return Err(format!("no rank is in {text}"));
        }
        Ok(Self(first..=last))
    }
}

/// The ranks to ask, and why these.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Choice {
    ranks: BTreeSet<usize>,
    /// A sentence, if the caller did not name them.
    reason: Option<String>,
}

/// The ranks that are named, all, or the suspects and one other for comparison.
///
/// # Errors
/// A named rank is none of the job, in one line.
fn choose(report: &Report, named: &[RankArg], all: bool) -> Result<Choice, String> {
    let known: BTreeSet<usize> = report.ranks.iter().map(|rank| rank.rank).collect();
    if all || !named.is_empty() {
        let ranks = match all {
            true => known,
            false => named_ranks(&known, named)?,
        };
        let reason = None;
        return Ok(Choice { ranks, reason });
    }
    let suspects = report.ranks.iter().filter(|rank| rank.is_suspect);
    let suspects: BTreeSet<usize> = suspects.map(|rank| rank.rank).collect();
    if suspects.is_empty() {
        let ranks: BTreeSet<usize> = known.iter().copied().take(DEFAULT_MAX).collect();
        let shown = match ranks.len() < known.len() {
            true => format!("the first {DEFAULT_MAX} of {}", known.len()),
            false => "all".to_owned(),
        };
        let reason = format!("There are no suspected ranks, so {shown} are shown.");
        return Ok(Choice {
            ranks,
            reason: Some(reason),
        });
    }
    let mut ranks: BTreeSet<usize> = suspects.iter().copied().take(DEFAULT_MAX).collect();
    let left_out = suspects.len() - ranks.len();
    let mut reason = match left_out {
        0 => "The suspected ranks are shown".to_owned(),
        _ => format!(
            "The first {DEFAULT_MAX} of {} suspected ranks are shown",
            suspects.len()
        ),
    };
    if let Some(other) = known.difference(&suspects).next() {
        ranks.insert(*other);
        reason.push_str(&format!(", and rank {other} for comparison"));
    }
    Ok(Choice {
        ranks,
        reason: Some(format!("{reason}.")),
    })
}

fn named_ranks(known: &BTreeSet<usize>, named: &[RankArg]) -> Result<BTreeSet<usize>, String> {
    let mut ranks = BTreeSet::new();
    for RankArg(range) in named {
        let before = ranks.len();
        ranks.extend(known.range(range.clone()));
        let last = known.last().copied();
        // A range that exceeds the job is a mistake too, and could have any length.
        if ranks.len() == before && !ranks.contains(range.start())
            || last.is_none_or(|last| *range.end() > last)
        {
            let ranks_known = match known.len() {
                0 => "no rank has used this store yet".to_owned(),
                count => format!(
                    "the store has {count} ranks, up to rank {}",
                    last.unwrap_or(0)
                ),
            };
            return Err(format!("there is no rank {}: {ranks_known}", range.end()));
        }
    }
    Ok(ranks)
}

#[cfg(test)]
mod tests {
    use c10d_inspect::RankReport;

    use super::*;

    fn report(count: usize, suspects: &[usize]) -> Report {
        let mut report = Report::default();
        report.ranks = (0..count)
            .map(|number| {
                let mut rank = RankReport::default();
                rank.rank = number;
                rank.is_suspect = suspects.contains(&number);
                rank
            })
            .collect();
        report
    }

    fn chosen(count: usize, suspects: &[usize], named: &[&str], all: bool) -> Vec<usize> {
        let named: Vec<RankArg> = named.iter().map(|text| text.parse().unwrap()).collect();
        let choice = choose(&report(count, suspects), &named, all).unwrap();
        choice.ranks.into_iter().collect()
    }

    #[test]
    fn suspects_are_shown_beside_one_other() {
        assert_eq!(chosen(4, &[2], &[], false), [0, 2]);
        assert_eq!(chosen(4, &[0, 1], &[], false), [0, 1, 2]);
        assert_eq!(chosen(2, &[0, 1], &[], false), [0, 1]);
        let choice = choose(&report(4, &[2]), &[], false).unwrap();
        assert_eq!(
            choice.reason.unwrap(),
            "The suspected ranks are shown, and rank 0 for comparison."
        );
    }

    #[test]
    fn without_suspects_all_are_shown_up_to_a_limit() {
        assert_eq!(chosen(4, &[], &[], false), [0, 1, 2, 3]);
        assert_eq!(chosen(1000, &[], &[], false).len(), DEFAULT_MAX);
        assert_eq!(chosen(1000, &[7], &[], true).len(), 1000);
    }

    #[test]
    fn ranks_are_named_alone_and_in_ranges() {
        assert_eq!(chosen(8, &[], &["1", "5-6", "6"], false), [1, 5, 6]);
        for bad in ["", "x", "-1", "3-", "4-2", "1-2-3"] {
            assert!(bad.parse::<RankArg>().is_err(), "{bad}");
        }
        for bad in ["8", "0-18446744073709551615"] {
            let named = [bad.parse().unwrap()];
            let error = choose(&report(8, &[]), &named, false).unwrap_err();
            assert!(
                error.ends_with("the store has 8 ranks, up to rank 7"),
                "{error}"
            );
        }
        let error = choose(&Report::default(), &["0".parse().unwrap()], false).unwrap_err();
        assert_eq!(error, "there is no rank 0: no rank has used this store yet");
    }
}
