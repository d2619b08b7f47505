//! Questions about the workers of this node: their stacks, and the records of their debug servers.

use std::sync::Arc;
use std::time::Duration;

use c10d_inspect::AnnouncedNode;
use c10d_inspect::http::Target;
use c10d_inspect::workers::{self, Question, Worker};
use c10d_stacks::StackError;

use super::AnswersPort;
use crate::launcher::stacks::{NoStacks, StackThread, observed};

/// How long the stacks of one worker may take, including earlier requests that must be answered first.
const STACKS_TIMEOUT: Duration = Duration::from_secs(3);

/// Answers `/stacks` and `/flight` at this port. `node` returns the workers as they are announced, because clients find
/// the port in the announcement. `stacks` reads their stacks; `None` if that is turned off.
///
/// An answer takes up to 3 s while stacks are read, and 4 s more if that fails and a debug server does not answer.
pub(in crate::launcher) fn answer_questions(
    port: &AnswersPort,
    node: impl Fn() -> AnnouncedNode + Send + Sync + 'static,
    stacks: Option<Arc<StackThread>>,
) {
    let find = move |question| find(&node(), question, stacks.as_deref());
    let find = Arc::new(find);
    for path in ["/stacks", "/flight"] {
        let find = Arc::clone(&find);
        port.answer(path, Arc::new(move |path| workers::answer(path, &*find)));
    }
}

/// Returns the worker of a question, and for a question about stacks also its stacks.
fn find(node: &AnnouncedNode, question: Question, stacks: Option<&StackThread>) -> Option<Worker> {
    let rank = question.rank();
    let worker = node.workers.iter().find(|it| it.rank == rank)?;
    if worker.end.is_some() {
        // Another process may have its id.
        let ended = Worker::new(rank, Vec::new(), None);
        return Some(ended.with_stacks(Err(StackError::Ended.to_string()), None));
    }
    let targets = worker.debug_socket.clone().map(Target::Unix);
    let pid = observed(worker.pid, &worker.processes);
    let asked = Worker::new(rank, targets.into_iter().collect(), Some(pid));
    Some(match (question, stacks) {
        (Question::Stacks { .. }, Some(thread)) => with_stacks(asked, thread, pid),
        _ => asked,
    })
}

fn with_stacks(worker: Worker, thread: &StackThread, pid: u32) -> Worker {
    // One result for each process.
    match thread.read(&[pid], STACKS_TIMEOUT).pop() {
        Some(Ok(stacks)) => worker.with_stacks(Ok(stacks), None),
        Some(Err(error)) => {
            let reason = error.to_string();
            let command_line = match error {
                NoStacks::NotPython { command_line } => command_line,
                NoStacks::Unread(_) => None,
            };
            worker.with_stacks(Err(reason), command_line)
        }
        None => worker,
    }
}
