//! The problems that NCCL itself reports through its RAS service, which are not visible in the store.

use std::collections::BTreeSet;
use std::time::Duration;

use super::draft::Draft;
use super::nccl::NCCL_GRACE;
use crate::identity::shown_name;
use crate::job::Job;
use crate::launched::{Node, Worker};
use crate::nccl::{AnnouncedNccl, NcclMember, NcclProblem, ProblemKind};
use crate::nccl_names::NcclNames;
use crate::network::nccl_hint;
use crate::report::FindingKind;
use crate::text;

/// Two answers: a connection that breaks is made again at once.
const NCCL_SILENCE_GRACE: Duration = Duration::from_secs(4);

/// The most processes that a sentence names.
const NAMED_MAX: usize = 8;

pub(super) fn find(job: &Job<'_>, drafts: &mut Vec<Draft>) {
    let Some((node, nccl, answered)) = last_answer(job) else {
        return;
    };
    let names = NcclNames::new(job, &nccl.problems, answered);
    let known: Vec<BTreeSet<usize>> = drafts
        .iter()
        .map(|draft| draft.finding.culprits.0.clone())
        .collect();
    let mut is_silence_known = false;
    for problem in &nccl.problems {
        if Duration::from_millis(problem.for_ms) < grace(problem.kind) {
            continue;
        }
        let answer = Answer {
            job,
            node,
            answered,
            names: &names,
            problem,
        };
        let mut draft = answer.draft();
        let culprits = &draft.finding.culprits.0;
        // If a rank is stopped, has exited or never connected, the facts from the store and the launchers are nearer
        // to the cause.
        let is_known =
            !culprits.is_empty() && known.iter().any(|others| culprits.is_subset(others));
        let is_silence = matches!(problem.kind, ProblemKind::Dead | ProblemKind::Silent);
        draft.is_explained = is_known || is_silence_known && !is_silence;
        is_silence_known |= is_silence;
        drafts.push(draft);
    }
}

/// How long a problem lasts before it is reported: see [`NcclReport::problems`](crate::nccl::NcclReport::problems).
const fn grace(kind: ProblemKind) -> Duration {
    match kind {
        ProblemKind::Dead | ProblemKind::Failed => Duration::ZERO,
        ProblemKind::Silent => NCCL_SILENCE_GRACE,
        ProblemKind::Behind | ProblemKind::Apart => NCCL_GRACE,
    }
}

/// The newest answer that a connected launcher has, if something is wrong, and when it came, since the server's start.
fn last_answer<'j>(job: &'j Job<'_>) -> Option<(&'j Node, &'j AnnouncedNccl, Duration)> {
    let connected = job.launched.nodes.iter().filter(|it| it.closed.is_none());
    let answers = connected.filter_map(|node| {
        let nccl = node.announced.nccl.as_ref()?;
        let ago = Duration::from_millis(nccl.asked_ago_ms);
        Some((node, nccl, node.at.saturating_sub(ago)))
    });
    let newest = answers.max_by_key(|(_, _, answered)| *answered);
    newest.filter(|(_, nccl, _)| !nccl.problems.is_empty())
}

/// A problem in an answer.
struct Answer<'j, 'i> {
    job: &'j Job<'i>,
    node: &'j Node,
    answered: Duration,
    names: &'j NcclNames<'j>,
    problem: &'j NcclProblem,
}

impl Answer<'_, '_> {
    fn draft(&self) -> Draft {
        let problem = self.problem;
        let named = problem.members.named.iter();
        let ranks: BTreeSet<usize> = named
            .filter_map(|member| self.worker(member))
            .map(|worker| worker.worker.rank)
            .collect();
        let since = self
            .answered
            .saturating_sub(Duration::from_millis(problem.for_ms));
        let kind = match problem.kind {
            ProblemKind::Dead => FindingKind::NcclDead,
            ProblemKind::Silent => FindingKind::NcclSilent,
            ProblemKind::Failed => FindingKind::NcclFailed,
            ProblemKind::Behind => FindingKind::NcclBehind,
            ProblemKind::Apart => FindingKind::NcclApart,
        };
        let waiting = self.waiting(&ranks);
        let draft = Draft::new(kind, self.text(), since);
        draft.caused_by(ranks).waited_by(waiting)
    }

    /// All other ranks, if all ranks that are behind are known and the communicator has all ranks of the job.
    fn waiting(&self, behind: &BTreeSet<usize>) -> BTreeSet<usize> {
        let members = &self.problem.members;
        let is_whole = self.problem.kind == ProblemKind::Behind
            && behind.len() == members.count
            && self.problem.size.is_some()
            && self.problem.size == self.job.world_size;
        match self.job.world_size.filter(|_| is_whole) {
            Some(size) => (0..size).filter(|rank| !behind.contains(rank)).collect(),
            None => BTreeSet::new(),
        }
    }

    fn text(&self) -> String {
        let problem = self.problem;
        let count = problem.members.count;
        // As of the answer.
        let lasted = text::age(Duration::from_millis(problem.for_ms));
        let who = self.who();
        let are = text::verb(count, "is", "are");
        let detail = text::shown(problem.detail.as_bytes());
        let what = match problem.kind {
            ProblemKind::Dead => {
                format!(
                    "NCCL has given up {who}{}: silent for a minute.",
                    self.place(" in ")
                )
            }
            ProblemKind::Silent => format!(
                "NCCL has had no answer from {who}{} for {lasted}: stopped, dead, or cut off.",
                self.place(" in ")
            ),
            ProblemKind::Failed => {
                format!("NCCL has failed in {who}: {detail}{}.", self.place(", in "))
            }
            ProblemKind::Behind => {
                let (fewest, furthest) = problem.launched;
                let operations = match detail.as_str() {
                    "collective" => "collectives".to_owned(),
                    kind => format!("{kind} operations"),
                };
                format!(
                    "{} {are} behind{}: {} launched {fewest} {operations}, others up to {furthest}. There was no change \
                     for {lasted}; c10d stacks shows where the ranks are.",
                    text::capitalized(&who),
                    self.place(" in "),
                    text::verb(count, "it has", "they have"),
                )
            }
            ProblemKind::Apart => format!(
                "{} works for others, but is {detail} in {who}. There was no change for {lasted}.",
                text::capitalized(&self.place("")),
            ),
        };
        let network = match problem.kind {
            ProblemKind::Apart | ProblemKind::Failed => nccl_hint(self.job.launched),
            _ => None,
        };
        format!(
            "{what}{} (NCCL on {} said so {} ago.)",
            network.unwrap_or_default(),
            shown_name(&self.node.announced.host),
            text::age(self.job.ago(self.answered)),
        )
    }

    /// "rank 2 (pid 4711 on node1)", "pid 4711 on 10.0.0.3 and 3 more processes".
    fn who(&self) -> String {
        let members = &self.problem.members;
        let named = members.named.iter().take(NAMED_MAX);
        let mut words: Vec<String> = named.filter_map(|it| self.name(it)).collect();
        let left = members.count.saturating_sub(words.len());
        if left > 0 {
            let more = if words.is_empty() { "" } else { " more" };
            words.push(match left {
                1 => format!("1{more} process"),
                left => format!("{left}{more} processes"),
            });
        }
        text::joined(&words)
    }

    /// The name of a member; `None` if only its rank in a communicator is known.
    fn name(&self, member: &NcclMember) -> Option<String> {
        let process = member.process.as_ref()?;
        Some(match self.worker(member) {
            Some(worker) => format!(
                "rank {} (pid {} on {})",
                worker.worker.rank,
                process.pid,
                shown_name(&worker.node.announced.host),
            ),
            None => format!("pid {} on {}", process.pid, process.host),
        })
    }

    fn worker(&self, member: &NcclMember) -> Option<Worker<'_>> {
        self.names.worker(self.problem.kind, member)
    }

    /// "communicator cf264af53edbe986 of 32 ranks, and 3 more communicators".
    fn place(&self, before: &str) -> String {
        let problem = self.problem;
        if problem.communicator.is_empty() {
            return String::new();
        }
        let mut text = format!(
            "{before}communicator {}",
            text::shown(problem.communicator.as_bytes())
        );
        if let Some(size) = problem.size {
            text.push_str(&format!(" of {}", text::count(size, "rank")));
        }
        match problem.others {
            0 => {}
            1 => text.push_str(" and another one"),
            others => text.push_str(&format!(" and {others} others")),
        }
        text
    }
}

#[cfg(test)]
mod tests;
