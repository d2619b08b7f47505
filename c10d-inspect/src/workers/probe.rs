//! The stacks of ranks, from a launcher that has read them or otherwise from debug servers. A rank without stacks shows
//! its flight recorder, which needs no Python, and its state in /proc if it runs on this host.

use std::time::Instant;

use super::process::Sample;
use super::reach::{AT_ONCE, TIMEOUT, Worker};
use super::{process, recording};
use crate::http::{HttpError, HttpRequest, HttpResponse, Target, fetch_all};
use crate::stacks::{RankAnswer, Stacks};

/// The most bytes of a dump of stacks: 100 threads of 100 frames with long paths.
const STACKS_BYTES_MAX: usize = 4 << 20;

/// The answers of all, in their order. Blocks for about 2 s if a rank does not answer, 4 s if it then may still
/// have a flight recorder.
pub(super) fn ask(workers: &[Worker]) -> Vec<RankAnswer> {
    let samples: Vec<Option<Sample>> = workers
        .iter()
        .map(|worker| process_of(worker).and_then(Sample::take))
        .collect();
    let mut answers: Vec<RankAnswer> = workers.iter().map(|it| RankAnswer::new(it.rank)).collect();
    let reached = ask_for_stacks(workers, &mut answers);
    let now = Instant::now();
    let silent: Vec<usize> = (0..answers.len())
        .filter(|index| answers[*index].stacks.is_none())
        .collect();
    let longest = silent.iter().filter_map(|index| samples[*index]);
    if let Some(wait) = longest.map(|sample| sample.remaining(now)).max() {
        std::thread::sleep(wait);
    }
    for index in &silent {
        let worker = &workers[*index];
        answers[*index].process = samples[*index].map(|sample| {
            let mut process = sample.finish();
            // Reading a command line can block. A launcher has read it where that delays nothing.
            process.command_line = match worker.stacks {
                Some(_) => worker.command_line.clone(),
                None => process::command_line(&process),
            };
            process
        });
    }
    ask_for_collectives(&reached, &mut answers);
    answers
}

/// Asks each rank's debug servers in turn until one accepts the connection. Returns, by index, the server of each
/// rank that has accepted and not answered.
fn ask_for_stacks(workers: &[Worker], answers: &mut [RankAnswer]) -> Vec<(usize, Target)> {
    let mut reached = Vec::new();
    for (worker, answer) in workers.iter().zip(&mut *answers) {
        answer.stacks = worker.stacks.clone().and_then(Result::ok);
    }
    let mut is_unreached: Vec<bool> = answers.iter().map(|it| it.stacks.is_none()).collect();
    for turn in 0.. {
        let asked: Vec<(usize, &Target)> = workers
            .iter()
            .enumerate()
            .filter(|(index, _)| is_unreached[*index])
            .filter_map(|(index, worker)| Some((index, worker.targets.get(turn)?)))
            .collect();
        if asked.is_empty() {
            break;
        }
        let requests: Vec<HttpRequest> = asked
            .iter()
            .map(|(_, target)| {
                HttpRequest::post((*target).clone(), "/handler/dump_traceback")
                    .with_limit(STACKS_BYTES_MAX)
            })
            .collect();
        let results = fetch_all(&requests, TIMEOUT, AT_ONCE);
        for ((index, target), result) in asked.into_iter().zip(results) {
            let answer = &mut answers[index];
            is_unreached[index] = matches!(result, Err(HttpError::Connect { .. }));
            if matches!(result, Err(HttpError::NoAnswer { .. })) {
                reached.push((index, target.clone()));
            }
            match stacks_of(result) {
                Ok(stacks) => {
                    answer.stacks = Some(stacks);
                    answer.error = None;
                }
                Err(error) => answer.error = Some(error),
            }
        }
    }
    for (worker, answer) in workers.iter().zip(answers) {
        if answer.stacks.is_none() {
            answer.error = Some(reason(worker, answer.error.take()));
        }
    }
    reached
}

/// Returns why a worker shows no stacks: the reason of its launcher, and then of its debug server if it has one.
fn reason(worker: &Worker, of_server: Option<String>) -> String {
    let unread = match &worker.stacks {
        Some(Err(reason)) => Some(format!("its stacks cannot be read: {reason}")),
        _ => None,
    };
    match (unread, of_server) {
        (None, None) => {
            "no launcher of c10d run reads its stacks, and it has no debug server".to_owned()
        }
        (Some(unread), Some(of_server)) => format!("{unread}; {of_server}"),
        (Some(reason), None) | (None, Some(reason)) => reason,
    }
}

fn stacks_of(result: Result<HttpResponse, HttpError>) -> Result<Stacks, String> {
    let answer = result.map_err(|error| match error {
        HttpError::NoAnswer { timeout, .. } => {
            format!("its debug server does not answer within {timeout:?}")
        }
        error => format!("its debug server gives no stacks: {error}"),
    })?;
    let text = String::from_utf8_lossy(&answer.body);
    if !answer.is_success() {
        let reason = text.lines().next().unwrap_or_default();
        let status = answer.status;
        return Err(format!(
            "its debug server answers with HTTP status {status}: {reason}"
        ));
    }
    let no_frame = || "its debug server answers, but no thread runs Python".to_owned();
    Stacks::parse_faulthandler(&text).ok_or_else(no_frame)
}

/// Asks ranks that hold Python's lock, and so gave no stacks, for their collective.
fn ask_for_collectives(reached: &[(usize, Target)], answers: &mut [RankAnswer]) {
    let is_stopped = |index: usize| {
        let process = answers[index].process.as_ref();
        process.is_some_and(|process| process.is_stopped() || !process.is_alive())
    };
    let asked: Vec<&(usize, Target)> = reached
        .iter()
        .filter(|(index, _)| !is_stopped(*index))
        .collect();
    let requests: Vec<HttpRequest> = asked
        .iter()
        .flat_map(|(_, target)| recording::requests(target))
        .collect();
    let mut results = fetch_all(&requests, TIMEOUT, AT_ONCE).into_iter();
    for (index, _) in asked {
        if let Ok(recording) = recording::merged(results.by_ref().take(recording::RECORDERS)) {
            let current = recording.current();
            let collective = current.map_or("no collective".to_owned(), |current| {
                format!(
                    "collective {} of group {}: {current}",
                    current.number, current.group
                )
            });
            answers[*index].collective = Some(collective);
        }
    }
}

/// The process that serves a unix socket, which works even for a stopped process; otherwise the announced process.
fn process_of(worker: &Worker) -> Option<u32> {
    let served = worker.targets.iter().find_map(|target| match target {
        Target::Unix(path) => process::serving(path),
        _ => None,
    });
    served.or(worker.pid)
}
