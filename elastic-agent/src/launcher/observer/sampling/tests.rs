use c10d_inspect::stacks::{Frame, ThreadStack};

use crate::launcher::observer::activity::ProcessCounters;
use crate::launcher::observer::sampling::*;

const AFTER: Duration = Duration::from_secs(30);

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn stacks(line: u32) -> Stacks {
    let frames = vec![Frame::new("train.py", line, "main")];
    Stacks::of_threads(vec![ThreadStack::new(None, frames)]).unwrap()
}

/// Two workers, 10 and 20, which are read every 5 s, and the line at which each worker is.
struct Node {
    sampling: Sampling,
    now: Duration,
    cpu_ms: [u64; 2],
    samples: usize,
}

impl Node {
    fn new(after: Option<Duration>) -> Self {
        Self {
            sampling: Sampling::new(after),
            now: Duration::ZERO,
            cpu_ms: [0; 2],
            samples: 0,
        }
    }

    fn read(&mut self, used_ms: [u64; 2]) {
        let seen = [10, 20]
            .into_iter()
            .zip(self.cpu_ms.iter_mut().zip(used_ms));
        let seen = seen.map(|(pid, (cpu_ms, used_ms))| {
            *cpu_ms += used_ms;
            let process = ProcessCounters {
                cpu_ms: *cpu_ms,
                ..ProcessCounters::default()
            };
            let reading = Reading {
                main_cpu_ms: *cpu_ms,
                processes: [(pid, process)].into(),
                ..Reading::default()
            };
            Seen {
                pid,
                observed: pid,
                reading: Some((reading, 'S')),
            }
        });
        self.sampling.note(self.now, seen.collect(), None);
    }

    fn sample(&mut self, is_asked: bool, line: u32) {
        if !self.sampling.is_due(self.now, is_asked) {
            return;
        }
        self.samples += 1;
        let sample = Sample {
            at: self.now,
            stacks: Some(stacks(line)),
            ..Sample::default()
        };
        let targets = self.sampling.targets().into_iter();
        let samples = targets.map(|(pid, _)| (pid, sample.clone()));
        self.sampling.note_samples(self.now, samples.collect());
    }

    fn step(&mut self, used_ms: [u64; 2]) -> Option<Observations> {
        self.now += seconds(5);
        self.read(used_ms);
        self.sample(false, 7);
        self.sampling.announced(self.now)
    }
}

#[test]
fn stacks_are_read_only_while_a_worker_is_quiet() {
    let mut node = Node::new(Some(AFTER));
    for _ in 0..20 {
        assert_eq!(node.step([4900, 4900]), None);
    }
    assert_eq!(node.samples, 0);
    // Worker 20 is quiet from now on.
    assert_eq!(node.step([4900, 0]), None);
    assert_eq!(node.step([4900, 0]), None);
    let found = node.step([4900, 0]).unwrap();
    assert_eq!((found.stacks.len(), found.samples.len()), (1, 2));
    let (busy, quiet) = (&found.samples[&10], &found.samples[&20]);
    assert_eq!((busy.quiet_ms, busy.cpu_percent), (0, 98));
    assert_eq!((quiet.quiet_ms, quiet.cpu_percent), (15_000, 0));
    assert_eq!((quiet.stacks, quiet.stacks_before), (Some(0), None));
    let found = node.step([4900, 0]).unwrap();
    assert_eq!(found.samples[&20].stacks_before, Some(0));
    // It works again, so an announcement without samples is made once.
    assert_eq!(node.step([4900, 4900]), Some(Observations::default()));
    assert_eq!(node.step([4900, 4900]), None);
    assert_eq!(node.samples, 2);
}

#[test]
fn who_asks_gets_samples_for_15_s_at_most_one_a_second() {
    let mut node = Node::new(None);
    for _ in 0..10 {
        assert_eq!(node.step([0, 0]), None);
    }
    assert!(node.sampling.note_asked(node.now));
    node.sample(true, 7);
    let found = node.sampling.announced(node.now).unwrap();
    assert_eq!(found.samples[&10].quiet_ms, 45_000);
    assert!(!node.sampling.note_asked(node.now + seconds(1) / 2));
    assert!(node.sampling.note_asked(node.now + seconds(1)));
    node.sample(true, 7);
    assert_eq!(node.samples, 1);
    for _ in 0..3 {
        assert!(node.step([0, 0]).is_some());
    }
    assert_eq!(node.step([0, 0]), Some(Observations::default()));
    assert_eq!(node.step([0, 0]), None);
}

#[test]
fn an_observation_is_confirmed_by_one_of_5_to_15_s_before() {
    let mut node = Node::new(Some(AFTER));
    for second in 0..40 {
        node.now = seconds(second);
        node.read([0, 0]);
        node.sampling.note_asked(node.now);
        node.sample(true, 100 + u32::try_from(second).unwrap());
        let found = node.sampling.announced(node.now).unwrap();
        let sample = &found.samples[&10];
        let line = |place: usize| found.stacks[place].threads[0].frames[0].line;
        let before = sample.stacks_before.map(line);
        let apart = before.map(|before| line(sample.stacks.unwrap()) - before);
        assert_eq!(apart.is_some(), second >= 5, "{second}");
        assert!(apart.is_none_or(|apart| (5..=15).contains(&apart)));
    }
}

#[test]
fn a_sample_without_stacks_does_not_take_the_confirmation() {
    let mut node = Node::new(Some(AFTER));
    for _ in 0..4 {
        node.step([0, 0]);
    }
    node.now += seconds(5);
    node.read([0, 0]);
    let late = Sample {
        at: node.now,
        error: Some("late".to_owned()),
        ..Sample::default()
    };
    node.sampling.note_samples(node.now, vec![(10, late)]);
    let found = node.sampling.announced(node.now).unwrap();
    assert_eq!(found.samples[&10].stacks, None);
    let found = node.step([0, 0]).unwrap();
    let sample = &found.samples[&10];
    assert_eq!((sample.stacks, sample.stacks_before), (Some(0), Some(0)));
}

#[test]
fn a_process_that_takes_the_place_of_another_is_a_new_one() {
    let mut node = Node::new(Some(AFTER));
    for _ in 0..5 {
        node.step([0, 0]);
    }
    let other = Seen {
        pid: 10,
        observed: 11,
        reading: None,
    };
    node.sampling.note(node.now, vec![other], None);
    assert_eq!(node.sampling.targets(), [(10, 11)]);
    let found = node.sampling.announced(node.now);
    assert_eq!(found, Some(Observations::default()));
}

/// The system can hide the processes of other users, and a busy rank would look like a rank that uses no CPU.
#[test]
fn a_process_without_counters_is_not_announced() {
    let mut node = Node::new(None);
    node.step([0, 0]);
    let unread = Seen {
        pid: 10,
        observed: 10,
        reading: None,
    };
    node.sampling.note(node.now, vec![unread], None);
    node.sampling.note_asked(node.now);
    node.sample(true, 7);
    let found = node.sampling.announced(node.now);
    assert_eq!(found, Some(Observations::default()));
}

#[test]
fn workers_are_looked_at_every_5_s_and_more_often_if_explained_early() {
    let interval = |after| Sampling::new(after).interval();
    assert_eq!(interval(None), seconds(5));
    assert_eq!(interval(Some(AFTER)), seconds(5));
    assert_eq!(interval(Some(seconds(10))), seconds(2));
    assert_eq!(interval(Some(Duration::ZERO)), seconds(1));
}
