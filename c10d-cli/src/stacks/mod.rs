//! `c10d stacks`: where the ranks of a job are in their Python code.

pub(crate) mod answer;
pub(crate) mod job;
pub(crate) mod probe;
mod process;
mod py_spy;
mod ranks;
mod route;

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use c10d_inspect::http::{HttpError, HttpRequest, HttpResponse, fetch_all};
use c10d_inspect::stacks::StackGroup;
use clap::Args;
use serde_json::json;

use crate::failure::Failure;
use crate::output::{print, print_line};
use crate::printable::{printable, printable_json};
use crate::status::{StatusArgs, get};
use answer::RankAnswer;
use job::{Job, Reach};
use ranks::{Choice, RankArg};

pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    all ranks that were asked have shown their stacks
  1    some have not; what else is known about them is shown
  2    invalid arguments
  3    no connection to the store
  4    cannot write to standard output
  141  the reader of standard output closed it, as `head` does; no message";

/// How long a launcher has to answer for one of its workers: as long as it may itself wait for the worker, and for
/// py-spy.
const LAUNCHER_TIMEOUT: Duration = Duration::from_secs(11);

/// The most bytes of a launcher's answer.
const LAUNCHER_BYTES_MAX: usize = 8 << 20;

/// Asks PyTorch's debug servers, where ranks run them: with `c10d run --debug-server`, or
/// torch.distributed.debug.start_debug_server(). Each rank has 2 s to answer. For a rank on this host that does not:
/// the state of its process, and py-spy if it is installed.
///
/// Ranks at the same lines are shown once. The most recent call is last, as in a traceback.
#[derive(Debug, Args)]
pub(crate) struct StacksArgs {
    /// Ranks and ranges of ranks, as 2 or 4-7. [default: those that `c10d why` suspects, and one other]
    #[arg(value_name = "RANK", conflicts_with = "all")]
    ranks: Vec<RankArg>,

    /// Asks all ranks.
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    status: StatusArgs,

    /// Prints one JSON object: groups of ranks with equal stacks, and the ranks without.
    #[arg(long)]
    json: bool,
}

/// Prints the stacks.
pub(crate) fn run(args: &StacksArgs) -> Result<(), Failure> {
    let job = Job::load(&args.status)?;
    let choice = ranks::choose(&job.report, &args.ranks, args.all).map_err(Failure::Usage)?;
    if choice.ranks.is_empty() {
        return Err(Failure::No(nobody(&job)));
    }
    let mut answers = ask_all(&job.reach(&choice.ranks));
    for answer in &mut answers {
        if answer.host.is_none() {
            answer.host = job.rank(answer.rank).and_then(|rank| rank.host.clone());
        }
    }
    let answers: Vec<RankAnswer> = answers.into_iter().map(RankAnswer::cleaned).collect();
    if args.json {
        print_line(printable_json(&to_json(&answers).to_string()))?;
    } else {
        print(to_text(&job, &choice, &answers).as_bytes())?;
    }
    if answers.iter().any(|answer| answer.stacks.is_none()) {
        return Err(Failure::No(String::new()));
    }
    Ok(())
}

/// Why there is nobody to ask.
pub(crate) fn nobody(job: &Job) -> String {
    if job.is_from_keys {
        "the store has no status pages, and no debug server has published its address in it: start the ranks with \
         `c10d run --debug-server`, or call torch.distributed.debug.start_debug_server() in them"
            .to_owned()
    } else {
        "the store knows no rank yet".to_owned()
    }
}

/// The answers of all ranks, in their order.
fn ask_all(reach: &Reach) -> Vec<RankAnswer> {
    let mut answers = thread::scope(|scope| {
        let by_launcher = scope.spawn(|| ask_launchers(reach));
        let mut answers = probe::ask(&reach.workers);
        // A panic has been reported by its thread.
        answers.extend(by_launcher.join().unwrap_or_default());
        answers
    });
    answers.sort_by_key(|answer| answer.rank);
    answers
}

fn ask_launchers(reach: &Reach) -> Vec<RankAnswer> {
    let ranks = &reach.by_launcher;
    let requests: Vec<HttpRequest> = ranks
        .iter()
        .map(|(rank, address)| {
            let path = format!("/stacks?rank={rank}");
            get(*address, &path, reach.token.as_deref()).with_limit(LAUNCHER_BYTES_MAX)
        })
        .collect();
    let results = fetch_all(&requests, LAUNCHER_TIMEOUT, probe::AT_ONCE);
    let pairs = ranks.iter().zip(results);
    pairs
        .map(|((rank, address), result)| launchers_answer(*rank, *address, result))
        .collect()
}

fn launchers_answer(
    rank: usize,
    address: SocketAddr,
    result: Result<HttpResponse, HttpError>,
) -> RankAnswer {
    let failed = |reason: String| {
        RankAnswer::failed(
            rank,
            format!("its launcher at {address} does not say: {reason}"),
        )
    };
    match result {
        Ok(answer) if answer.is_success() => {
            match serde_json::from_slice::<RankAnswer>(&answer.body) {
                // Of another rank: a launcher that has restarted its workers meanwhile.
                Ok(answer) if answer.rank == rank => answer,
                Ok(answer) => failed(format!("it answers for rank {}", answer.rank)),
                Err(error) => failed(error.to_string()),
            }
        }
        Ok(answer) => failed(String::from_utf8_lossy(&answer.body).trim().to_owned()),
        Err(error) => failed(error.to_string()),
    }
}

fn groups(answers: &[RankAnswer]) -> Vec<StackGroup> {
    let with_stacks = answers
        .iter()
        .filter_map(|answer| Some((answer.rank, answer.stacks.clone()?)));
    StackGroup::of(with_stacks)
}

fn to_json(answers: &[RankAnswer]) -> serde_json::Value {
    let others: Vec<&RankAnswer> = answers.iter().filter(|it| it.error.is_some()).collect();
    json!({ "groups": groups(answers), "unanswered": others })
}

fn to_text(job: &Job, choice: &Choice, answers: &[RankAnswer]) -> String {
    let mut text = String::new();
    if !job.report.headline.is_empty() {
        text.push_str(&printable(&job.report.headline));
        text.push('\n');
    }
    if let Some(reason) = &choice.reason {
        text.push_str(reason);
        text.push('\n');
    }
    // First those that do not answer: they are the ones to look at.
    for answer in answers.iter().filter(|answer| answer.error.is_some()) {
        text.push('\n');
        text.push_str(&answer.explanation());
        if answer.is_from_py_spy {
            text.push_str(" py-spy shows its stacks below.");
        }
        text.push('\n');
    }
    for group in groups(answers) {
        text.push_str(&format!("\n{group}\n"));
    }
    text.trim_start_matches('\n').to_owned()
}
