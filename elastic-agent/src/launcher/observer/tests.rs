use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use c10d_inspect::stacks::{Frame, Stacks, ThreadStack};
use c10d_inspect::{AnnouncedProcess, AnnouncedWorker};
use c10d_stacks::ProcessActivity;

use crate::launcher::observer::*;

const PATIENCE: Duration = Duration::from_secs(30);

/// Stacks that name the process instead of a line.
struct Fake;

impl ReadProcesses for Fake {
    fn stacks(&self, pids: &[u32]) -> Vec<Result<Stacks, NoStacks>> {
        let frames = |pid| vec![Frame::new("train.py", pid, "main")];
        let stacks = |pid: &u32| Stacks::of_threads(vec![ThreadStack::new(None, frames(*pid))]);
        pids.iter().map(|pid| Ok(stacks(pid).unwrap())).collect()
    }

    fn activity(&self, _: u32) -> ProcessActivity {
        let mut activity = ProcessActivity::default();
        activity.system_call = Some("read".to_owned());
        activity
    }
}

/// A node with one worker, this process.
fn this_process() -> AnnouncedNode {
    let mut process = AnnouncedProcess::default();
    process.pid = std::process::id();
    let mut worker = AnnouncedWorker::default();
    worker.pid = process.pid;
    worker.processes = vec![process];
    let mut node = AnnouncedNode::default();
    node.workers = vec![worker];
    node
}

#[test]
fn who_asks_waits_for_samples() {
    let (messages, inbox) = channel();
    let found = Arc::<Mutex<Vec<Observations>>>::default();
    let noted = Arc::clone(&found);
    let thread = Thread {
        inbox,
        epoch: Instant::now(),
        counters: Counters::new("/proc"),
        scanner: Scanner::new("/proc"),
        sampling: Sampling::new(None),
        agent: None,
        node: Box::new(this_process),
        processes: Box::new(Fake),
        note: Box::new(move |it| noted.lock().unwrap().push(it)),
    };
    let ended = thread.start().unwrap();
    let observer = Observer { messages, ended };
    let asker = observer.asker();
    let end = Instant::now() + PATIENCE;
    // A busy machine may not answer in time.
    while !asker.ask() {
        assert!(Instant::now() < end);
    }
    let pid = std::process::id();
    let last = found.lock().unwrap().last().cloned().unwrap();
    let sample = &last.samples[&pid];
    assert_eq!(
        last.stacks[sample.stacks.unwrap()].threads[0].frames[0].line,
        pid
    );
    assert_eq!(sample.system_call.as_deref(), Some("read"));
    assert_eq!(sample.command_line, None);
    drop(observer);
    assert!(!asker.ask());
}
