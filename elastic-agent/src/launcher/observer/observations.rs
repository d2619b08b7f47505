//! The observations of the workers of a node, shortened for an announcement. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use c10d_inspect::AnnouncedSample;
use c10d_inspect::stacks::Stacks;

/// The most bytes of the JSON of all stacks of a node.
const STACKS_BYTES_MAX: usize = 64 << 10;

/// The calls of a thread that are kept if there is no room for all: the innermost ones, which show where it is.
const FRAMES_KEPT: usize = 16;

/// The observations to announce: the sample of each worker by its process id, and the distinct stacks of the samples.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::launcher) struct Observations {
    pub(in crate::launcher) samples: HashMap<u32, AnnouncedSample>,
    pub(in crate::launcher) stacks: Vec<Stacks>,
}

impl Observations {
    /// Drops stacks until the rest fits: first the stacks of all threads except the main thread, then the earlier stacks of
    /// workers that are at work, then outer calls, and then the stacks of whole workers, those at work first.
    pub(super) fn shorten(&mut self) {
        if self.is_too_long() {
            for stacks in &mut self.stacks {
                stacks.is_cut |= stacks.threads.len() > 1;
                stacks.threads.truncate(1);
            }
        }
        if self.is_too_long() {
            let samples = self.samples.values_mut();
            for sample in samples.filter(|sample| sample.quiet_ms == 0) {
                sample.stacks_before = None;
            }
            self.drop_unused();
        }
        if self.is_too_long() {
            for stacks in &mut self.stacks {
                for thread in &mut stacks.threads {
                    let cut = thread.frames.len().saturating_sub(FRAMES_KEPT);
                    stacks.is_cut |= cut > 0;
                    thread.frames.drain(..cut);
                }
            }
        }
        if self.is_too_long() {
            self.drop_workers();
            self.drop_unused();
        }
    }

    /// Keeps the stacks of as many workers as fit, those that have been quiet for the longest time first.
    fn drop_workers(&mut self) {
        let sizes: Vec<usize> = self
            .stacks
            .iter()
            .map(|it| json_bytes(std::slice::from_ref(it)))
            .collect();
        let mut workers: Vec<(&u32, &mut AnnouncedSample)> = self.samples.iter_mut().collect();
        workers.sort_by_key(|(pid, sample)| (Reverse(sample.quiet_ms), **pid));
        let (mut kept, mut room) = (BTreeSet::new(), STACKS_BYTES_MAX - 2);
        for (_, sample) in workers {
            let wanted = BTreeSet::from_iter(sample.stacks.into_iter().chain(sample.stacks_before));
            let more = wanted.difference(&kept).map(|place| sizes[*place]).sum();
            if let Some(left) = room.checked_sub(more) {
                room = left;
                kept.extend(wanted);
                continue;
            }
            sample.stacks = None;
            sample.stacks_before = None;
            let reason = "the stacks of its node are too long to announce";
            sample.error = Some(reason.to_owned());
        }
    }

    /// Drops the stacks to which no sample refers.
    fn drop_unused(&mut self) {
        let mut places = HashMap::new();
        let mut kept = Vec::new();
        for sample in self.samples.values_mut() {
            for place in [&mut sample.stacks, &mut sample.stacks_before] {
                let Some(place) = place else { continue };
                *place = *places.entry(*place).or_insert_with(|| {
                    kept.push(std::mem::take(&mut self.stacks[*place]));
                    kept.len() - 1
                });
            }
        }
        self.stacks = kept;
    }

    fn is_too_long(&self) -> bool {
        json_bytes(&self.stacks) > STACKS_BYTES_MAX
    }
}

fn json_bytes(stacks: &[Stacks]) -> usize {
    serde_json::to_vec(stacks).map_or(usize::MAX, |json| json.len())
}

#[cfg(test)]
mod tests {
    use c10d_inspect::stacks::{Frame, ThreadStack};

    use crate::launcher::observer::observations::*;

    /// Threads whose innermost calls are at this line.
    fn stacks(line: u32, threads: usize, frames: u32) -> Stacks {
        let frames = (0..frames)
            .rev()
            .map(|outer| Frame::new("train.py", line + 10_000 * outer, "main"));
        let thread = ThreadStack::new(None, frames.collect());
        Stacks::of_threads(vec![thread; threads]).unwrap()
    }

    fn sample(quiet_ms: u64, place: usize) -> AnnouncedSample {
        let mut sample = AnnouncedSample::default();
        sample.quiet_ms = quiet_ms;
        sample.stacks = Some(place);
        sample.stacks_before = Some(place + 1);
        sample
    }

    /// Returns the current and the previous line of a worker.
    fn lines(found: &Observations, pid: u32) -> [Option<u32>; 2] {
        let sample = &found.samples[&pid];
        [sample.stacks, sample.stacks_before].map(|place| {
            let frames = &found.stacks[place?].threads[0].frames;
            frames.last().map(|frame| frame.line)
        })
    }

    #[test]
    fn other_threads_are_left_out_first() {
        let mut found = Observations {
            samples: [(10, sample(0, 0)), (20, sample(9, 2))].into(),
            stacks: vec![
                stacks(1, 1, 1),
                stacks(2, 120, 3),
                stacks(3, 128, 3),
                stacks(4, 128, 3),
            ],
        };
        let samples = found.samples.clone();
        found.shorten();
        assert_eq!(found.samples, samples);
        assert!(found.stacks.iter().all(|it| it.threads.len() == 1));
        assert!(!found.stacks[0].is_cut && found.stacks[1].is_cut);
        let fits = found.clone();
        found.shorten();
        assert_eq!(found, fits);
    }

    /// Megatron or Lightning have 35 calls of 140 bytes.
    #[test]
    fn the_calls_of_quiet_workers_are_kept() {
        let of_workers = |count: u32| Observations {
            samples: (0..count)
                .map(|pid| (pid, sample(u64::from(pid == 7) * 30_000, 2 * pid as usize)))
                .collect(),
            stacks: (0..2 * count).map(|line| stacks(line, 1, 64)).collect(),
        };
        // The announcement has no earlier stacks of workers at work.
        let mut found = of_workers(12);
        found.shorten();
        assert_eq!(lines(&found, 7), [Some(14), Some(15)]);
        assert_eq!(lines(&found, 3), [Some(6), None]);
        assert_eq!(found.stacks[0].threads[0].frames.len(), 64);
        // All but the inner calls, and then workers.
        let mut found = of_workers(40);
        found.shorten();
        assert_eq!(found.stacks[0].threads[0].frames.len(), FRAMES_KEPT);
        assert!(found.samples.values().all(|it| it.error.is_none()));
        let mut found = of_workers(200);
        found.shorten();
        assert_eq!(lines(&found, 7), [Some(14), Some(15)]);
        assert_eq!(lines(&found, 199), [None, None]);
        assert!(found.samples[&199].error.is_some() && !found.is_too_long());
    }
}
