//! `c10d stacks`: where the ranks of a job are in their Python code.

mod ranks;

use c10d_inspect::stacks::{RankAnswer, StackGroup, answers_text};
use clap::Args;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::output::{print, print_json};
use crate::status::StatusArgs;
use ranks::RankArg;

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
    let choice = ranks::choose(job.report(), &args.ranks, args.all).map_err(Failure::Usage)?;
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
