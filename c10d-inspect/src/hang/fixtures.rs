//! Observations for tests: the announcements of a launcher about workers in typical states.

use crate::announced::{AnnouncedNode, AnnouncedSample, AnnouncedWorker, WorkerEnd};
use crate::stacks::{Frame, Stacks, ThreadStack};

/// The frames of a thread: "train.py:60 <module> > train.py:41 step", the most recent one last. `torch/` and `python3.11/` are
/// libraries.
pub(crate) fn frames(text: &str) -> Vec<Frame> {
    let frame = |text: &str| {
        let (place, function) = text.split_once(' ').expect("a place and a function");
        let (file, line) = place.rsplit_once(':').expect("a file and a line");
        let folder = match file.split('/').next() {
            Some("torch" | "typing_extensions.py") => "/venv/lib/python3.11/site-packages/",
            Some("python3.11") => "/usr/lib/",
            _ => "/home/user/",
        };
        let line = line.parse().expect("a number");
        Frame::new(&format!("{folder}{file}"), line, function)
    };
    text.split(" > ").map(frame).collect()
}

/// The frames of a call of `torch.distributed` at a line of train.py.
pub(crate) fn in_c10d(function: &str, line: u32) -> String {
    format!(
        "train.py:90 <module> > train.py:{line} step > torch/distributed/c10d_logger.py:83 wrapper > \
         torch/distributed/distributed_c10d.py:4181 {function}"
    )
}

/// An observed worker.
#[derive(Debug, Clone)]
pub(crate) struct Observed {
    pub(crate) sample: AnnouncedSample,
    /// The frames of its threads, the main thread first, at both moments; `None` if it has no stack.
    pub(crate) stacks: Option<Vec<String>>,
    pub(crate) stacks_before: Option<Vec<String>>,
    pub(crate) end: Option<WorkerEnd>,
}

impl Observed {
    /// A worker with this main thread, which has been quiet in a system call for 40 s.
    pub(crate) fn quiet(system_call: &str, main: &str) -> Self {
        let sample = AnnouncedSample {
            taken_ago_ms: 100,
            pid: 4711,
            quiet_ms: 40_000,
            idle_ms: 40_000,
            state: Some('S'),
            system_call: Some(system_call.to_owned()),
            ..AnnouncedSample::default()
        };
        Self {
            sample,
            stacks: Some(vec![main.to_owned()]),
            stacks_before: Some(vec![main.to_owned()]),
            end: None,
        }
    }

    /// A worker that has waited in a function of `torch.distributed` at a line of train.py for 40 s.
    pub(crate) fn waits(function: &str, line: u32) -> Self {
        Self::quiet("futex", &in_c10d(function, line))
    }

    /// A worker that has been blocked in read at loader.py:17 for 40 s.
    pub(crate) fn blocked() -> Self {
        Self::quiet("read", "train.py:90 <module> > loader.py:17 load_batch")
    }

    /// A worker whose main thread uses the CPU.
    pub(crate) fn busy(main: &str) -> Self {
        let mut busy = Self::quiet("", main);
        busy.sample = AnnouncedSample {
            quiet_ms: 0,
            cpu_percent: 100,
            state: Some('R'),
            system_call: None,
            ..busy.sample
        };
        busy
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Adds a thread to the worker.
    pub(crate) fn thread(self, frames: &str) -> Self {
        self.with(|it| {
            for stacks in [&mut it.stacks, &mut it.stacks_before] {
                stacks.as_mut().expect("stacks").push(frames.to_owned());
            }
        })
    }

    /// A worker that exited with code 0, 50 s ago.
    pub(crate) fn left() -> Self {
        Self::quiet("", "train.py:90 <module>").with(|it| {
            it.end = Some(WorkerEnd {
                exit_code: Some(0),
                ago_ms: 50_000,
                ..WorkerEnd::default()
            });
        })
    }
}

/// The announcement of a node with these ranks.
pub(crate) fn node(host: &str, world_size: usize, ranks: &[(usize, Observed)]) -> AnnouncedNode {
    let mut node = AnnouncedNode {
        host: host.to_owned(),
        world_size: Some(world_size),
        explain_after_ms: Some(30_000),
        ..AnnouncedNode::default()
    };
    for (rank, observed) in ranks {
        let mut add = |threads: &Option<Vec<String>>| {
            let threads = threads.as_ref()?.iter();
            let threads = threads.map(|thread| ThreadStack::new(None, frames(thread)));
            node.stacks.push(Stacks::of_threads(threads.collect())?);
            Some(node.stacks.len() - 1)
        };
        let sample = AnnouncedSample {
            stacks: add(&observed.stacks),
            stacks_before: add(&observed.stacks_before),
            ..observed.sample.clone()
        };
        node.workers.push(AnnouncedWorker {
            rank: *rank,
            pid: sample.pid,
            sample: observed.end.is_none().then_some(sample),
            end: observed.end,
            ..AnnouncedWorker::default()
        });
    }
    node
}
