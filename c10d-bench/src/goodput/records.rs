//! Reads the output of a rank line by line, and compresses it to runs of steps.

use super::history::{CHECKPOINT_STEPS, Joined, PAUSE_MS, Process, Run};
use super::training::Training;
use crate::failure::Failure;

/// The most wrong steps of a process that are kept; later wrong steps follow from the first.
const WRONG_MAX: usize = 10;

/// More steps than any job does: two weeks.
const STEPS_MAX: u64 = 1 << 26;

/// The file of a process. Its name is node, local rank and process id.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) process: Process,
    /// The clock at the start of the side, in milliseconds.
    origin_ms: u64,
    /// The start of a line that is not complete.
    rest: String,
}

impl Record {
    pub(super) fn new(name: &str, origin_ms: u64) -> Option<Self> {
        let mut numbers = name.split('-').map(str::parse);
        let mut next = || numbers.next()?.ok();
        let process = Process {
            node: next()? as usize,
            local: next()? as usize,
            pid: next()?,
            ..Process::default()
        };
        Some(Self {
            process,
            origin_ms,
            rest: String::new(),
        })
    }

    /// Adds what was read of the file.
    pub(super) fn feed(&mut self, text: &str, training: &mut Training) -> Result<(), Failure> {
        self.rest.push_str(text);
        let text = std::mem::take(&mut self.rest);
        let (lines, rest) = text.rsplit_once('\n').unwrap_or(("", &text));
        rest.clone_into(&mut self.rest);
        for line in lines.lines() {
            self.line(line, training).ok_or_else(|| {
                let name = self.process.name();
                Failure::new(format!("{name} wrote a line that is none: {line:?}"))
            })?;
        }
        Ok(())
    }

    fn line(&mut self, line: &str, training: &mut Training) -> Option<()> {
        let (text, at) = line.rsplit_once(' ')?;
        let at = (at.parse::<f64>().ok()? * 1e3) as u64;
        let at_ms = at.saturating_sub(self.origin_ms);
        let mut words = text.split(' ');
        let process = &mut self.process;
        match words.next()? {
            "start" => process.start_ms = at_ms,
            "generation" => process.joined.push(Joined {
                generation: words.next()?.parse().ok()?,
                rank: words.next()?.parse().ok()?,
                size: words.next()?.parse().ok()?,
                at_ms,
            }),
            "step" => {
                let step = words.next()?.parse().ok()?;
                let chain = words.next()?.parse().ok()?;
                let loss: f64 = words.next()?.parse().ok()?;
                if step > STEPS_MAX || !loss.is_finite() {
                    // The right values cannot be computed for such a step, or the history could not
                    // be read again.
                    note(process, format!("step {step}: loss {loss}"));
                    return Some(());
                }
                if !training.is_right(step, chain, loss) {
                    let right = training.after(step);
                    let text = format!(
                        "step {step}: chain and loss {:?}, not {right:?}",
                        (chain, loss)
                    );
                    note(process, text);
                }
                add_step(process, step, chain, loss, at_ms);
            }
            "wrong" => note(process, format!("sum: {text}")),
            "saved" => {
                let step = words.next()?.parse().ok()?;
                if let Some(run) = process.runs.last_mut() {
                    run.saved = Some((step, at_ms));
                }
            }
            "unsaved" => process.unsaved += 1,
            "error" => process.error = Some((words.next()?.to_owned(), at_ms)),
            "done" => process.is_done = true,
            _ => return None,
        }
        Some(())
    }
}

fn note(process: &mut Process, text: String) {
    if process.wrong.len() < WRONG_MAX {
        process.wrong.push(text);
    }
}

fn add_step(process: &mut Process, step: u64, chain: u64, loss: f64, at_ms: u64) {
    let generation = process.joined.last().map_or(0, |it| it.generation);
    if let Some(run) = process.runs.last_mut() {
        let follows = run.generation == generation && run.last + 1 == step;
        let is_same = run.first / CHECKPOINT_STEPS == step / CHECKPOINT_STEPS;
        if follows && is_same && at_ms.saturating_sub(run.end_ms) <= PAUSE_MS {
            (run.last, run.end_ms, run.chain, run.loss) = (step, at_ms, chain, loss);
            return;
        }
    }
    process.runs.push(Run {
        generation,
        first: step,
        last: step,
        begin_ms: at_ms,
        end_ms: at_ms,
        chain,
        loss,
        saved: None,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(text: &str) -> Record {
        let mut record = Record::new("2-1-77", 1000).unwrap();
        record.feed(text, &mut Training::default()).unwrap();
        record
    }

    /// The lines of steps, as a rank without faults writes them.
    fn steps(first: u64, last: u64, at: f64) -> String {
        let mut training = Training::default();
        let line = |step| {
            let (chain, loss) = training.after(step);
            let at = at + 0.02 * (step - first) as f64;
            format!("step {step} {chain} {loss} {at:.4}\n")
        };
        (first..=last).map(line).collect()
    }

    #[test]
    fn steps_between_checkpoints_without_a_pause_are_one_run() {
        let text = format!(
            "start 8 2.0\ngeneration 5 3 8 3.0\n{}saved 50 4.5\n{}generation 6 2 7 9.0\n{}error Evicted 12.0\n",
            steps(0, 49, 3.5),
            steps(50, 60, 4.5),
            steps(61, 62, 9.5),
        );
        let process = record(&text).process;
        assert_eq!((process.node, process.local, process.pid), (2, 1, 77));
        assert_eq!(process.start_ms, 1000);
        let runs: Vec<_> = process
            .runs
            .iter()
            .map(|it| (it.generation, it.first, it.last))
            .collect();
        assert_eq!(runs, [(5, 0, 49), (5, 50, 60), (6, 61, 62)]);
        assert_eq!(
            (process.runs[0].begin_ms, process.runs[0].saved),
            (2500, Some((50, 3500)))
        );
        assert_eq!(process.runs[1].saved, None);
        assert_eq!(process.error, Some(("Evicted".to_owned(), 11_000)));
        assert_eq!(process.wrong, Vec::<String>::new());
    }

    #[test]
    fn a_line_is_read_once_it_is_complete() {
        let text = steps(0, 3, 3.0);
        let mut record = Record::new("0-0-1", 0).unwrap();
        let mut training = Training::default();
        for character in text.chars() {
            record.feed(&character.to_string(), &mut training).unwrap();
        }
        assert_eq!(record.process.runs[0].last, 3);
        assert!(record.feed("stop 3 4.0\n", &mut training).is_err());
    }

    #[test]
    fn a_wrong_state_loss_or_sum_is_noted() {
        let right = steps(0, 3, 3.0);
        for (from, to) in [("step 2 ", "step 2 1"), ("step 3 ", "step 4 ")] {
            assert_eq!(record(&right.replace(from, to)).process.wrong.len(), 1);
        }
        for step in ["step 4 1 nan 3.1", "step 99999999999 1 0.5 3.1"] {
            let process = record(&format!("{right}{step}\n")).process;
            assert_eq!((process.wrong.len(), process.runs[0].last), (1, 3));
        }
        let text = format!("{right}wrong 3 35.0 36.0 3.1\n");
        assert_eq!(record(&text).process.wrong, ["sum: wrong 3 35.0 36.0"]);
    }
}
