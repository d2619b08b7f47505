//! Handwritten histories, both right and wrong.

use super::super::history::{FaultRecord, Launcher};
use super::super::plan::{RANKS, Seat};
use super::*;

/// 20 ms a step.
const STEP_MS: u64 = 20;

/// The begin of the measured time; the undisturbed stretch is the second before it.
const BEGIN_MS: u64 = 2000;

/// Builds the history of a job whose ranks do the same at the same time.
struct Script {
    side: SideHistory,
    /// The processes of the running ranks, by seat.
    live: Vec<usize>,
    generation: u64,
    now_ms: u64,
    training: Training,
}

impl Script {
    fn new(keeps_ranks: bool) -> Self {
        let launchers = (0..4).map(|node| Launcher {
            node,
            begin_ms: 0,
            end_ms: None,
            how: String::new(),
        });
        let mut script = Self {
            side: SideHistory {
                keeps_ranks,
                calm_ms: (1000, BEGIN_MS),
                measured_ms: (BEGIN_MS, 22_000),
                has_finished: true,
                launchers: launchers.collect(),
                ..SideHistory::default()
            },
            live: Vec::new(),
            generation: 0,
            now_ms: 0,
            training: Training::default(),
        };
        script.start(RANKS);
        script
    }

    /// New processes for all ranks.
    fn start(&mut self, count: usize) {
        self.live.clear();
        for seat in (0..count).map(Seat::of) {
            self.live.push(self.side.processes.len());
            self.side.processes.push(Process {
                node: seat.node,
                local: seat.local,
                pid: 100 + self.side.processes.len() as u32,
                start_ms: self.now_ms,
                ..Process::default()
            });
        }
    }

    /// The live ranks form a group, which does the steps of this range.
    fn group(&mut self, first: u64, end: u64) {
        self.generation += 1;
        let generation = self.generation;
        let size = self.live.len() as u32;
        for (rank, index) in (0..).zip(&self.live) {
            self.side.processes[*index].joined.push(Joined {
                generation,
                rank,
                size,
                at_ms: self.now_ms,
            });
        }
        self.steps(first, end);
    }

    fn steps(&mut self, first: u64, end: u64) {
        let (chain, loss) = self.training.after(end - 1);
        let run = Run {
            generation: self.generation,
            first,
            last: end - 1,
            begin_ms: self.now_ms + STEP_MS,
            end_ms: self.now_ms + STEP_MS * (end - first),
            chain,
            loss,
            saved: None,
        };
        self.now_ms = run.end_ms;
        for index in &self.live {
            self.side.processes[*index].runs.push(run.clone());
        }
    }

    fn fault(&mut self, kind: Kind, hit: &[usize]) {
        self.side.faults.push(FaultRecord {
            kind,
            at_ms: self.now_ms,
            end_ms: self.now_ms,
            hit: hit.iter().map(|seat| Seat::of(*seat)).collect(),
            what: String::new(),
            is_void: false,
        });
    }

    /// All ranks go on to the end.
    fn finish(&mut self) {
        for index in &self.live {
            self.side.processes[*index].is_done = true;
        }
    }

    fn account(&mut self) -> Account {
        account(&self.side, &mut self.training)
    }

    fn violations(&mut self) -> Vec<String> {
        self.account().violations
    }
}

/// A rank is killed after 400 steps; all start again 5 s later from the checkpoint of step 350, and do steps to the end.
fn restarted() -> Script {
    let mut script = Script::new(false);
    script.group(0, 400);
    script.side.processes[0].runs[0].saved = Some((350, 7100));
    script.fault(Kind::KillRank, &[3]);
    script.now_ms += 4000;
    script.start(RANKS);
    script.now_ms += 1000 - STEP_MS;
    script.group(350, 801);
    script.finish();
    script
}

/// A rank is killed after 400 steps; the other ranks continue after 200 ms, and a new process joins 100 steps later.
fn kept() -> Script {
    let mut script = Script::new(true);
    script.group(0, 400);
    script.fault(Kind::KillRank, &[7]);
    script.live.pop();
    script.now_ms += 200 - STEP_MS;
    script.group(400, 500);
    let new = script.side.processes.len();
    script.side.processes.push(Process {
        node: 3,
        local: 1,
        pid: 900,
        start_ms: script.now_ms - 500,
        ..Process::default()
    });
    script.live.push(new);
    script.now_ms += 180 - STEP_MS;
    script.group(500, 1082);
    script.finish();
    script
}

#[test]
fn a_restart_from_a_checkpoint_is_counted() {
    let account = restarted().account();
    assert_eq!(account.violations, Vec::<String>::new());
    assert_eq!(account.step_ms, 20.0);
    assert_eq!(account.possible, 1000.0);
    // From step 100 to step 801.
    assert_eq!((account.kept, account.redone), (701, 50));
    assert_eq!(account.waits, [(Kind::KillRank, 5000)]);
    assert_eq!(account.stalled_ms, 5000);
    assert_eq!((account.jobs_lost, account.processes), (0, 16));
    assert!((account.goodput_percent() - 70.1).abs() < 1e-9);
}

#[test]
fn survivors_that_go_on_are_counted() {
    let account = kept().account();
    assert_eq!(account.violations, Vec::<String>::new());
    assert_eq!(
        (account.kept, account.redone, account.jobs_lost),
        (982, 0, 0)
    );
    // The longer one of two.
    assert_eq!(account.waits, [(Kind::KillRank, 200)]);
    assert_eq!(account.stalled_ms, 380);
}

#[test]
fn a_pause_that_no_launcher_outlives_is_a_lost_job() {
    let mut script = restarted();
    for launcher in &mut script.side.launchers {
        launcher.end_ms = Some(8500 + launcher.node as u64);
    }
    assert_eq!(script.account().jobs_lost, 1);
    script.side.launchers[2].end_ms = None;
    assert_eq!(script.account().jobs_lost, 0);
}

#[test]
fn a_job_that_stays_away_waits_to_the_end() {
    let mut script = Script::new(false);
    script.group(0, 400);
    script.fault(Kind::KillStore, &[0]);
    let account = script.account();
    assert_eq!(
        (account.kept, account.waits),
        (300, vec![(Kind::KillStore, 14_000)])
    );
}

#[test]
fn a_fault_without_effect_has_no_wait_and_a_void_one_is_not_counted() {
    let mut script = Script::new(false);
    script.group(0, 400);
    script.fault(Kind::FillDisk, &[]);
    script.steps(400, 500);
    script.fault(Kind::KillRelay, &[]);
    script.side.faults[1].is_void = true;
    script.steps(500, 1100);
    script.finish();
    assert_eq!(script.account().waits, [(Kind::FillDisk, 0)]);
}

#[test]
fn a_pause_is_of_the_fault_that_it_begins_with() {
    let mut script = Script::new(true);
    script.group(0, 400);
    script.fault(Kind::FillDisk, &[]);
    script.steps(400, 500);
    // Between two steps.
    script.now_ms += 7;
    script.fault(Kind::KillStore, &[]);
    script.now_ms += 1000 - 7 - STEP_MS;
    script.steps(500, 1100);
    script.finish();
    let waits = [(Kind::FillDisk, 0), (Kind::KillStore, 993)];
    assert_eq!(script.account().waits, waits);
}

/// A second fault happens before the first step after the first fault.
#[test]
fn a_fault_of_a_job_that_is_down_has_no_time_and_ends_that_of_the_one_before() {
    let mut script = Script::new(false);
    script.group(0, 400);
    script.fault(Kind::KillStore, &[0]);
    script.now_ms += 3000;
    script.fault(Kind::FillDisk, &[]);
    script.now_ms += 2000 - STEP_MS;
    script.steps(400, 1100);
    script.finish();
    assert_eq!(script.account().waits, [(Kind::KillStore, 3000)]);
}

/// Steps before and after the undisturbed stretch do not count.
#[test]
fn an_undisturbed_step_is_one_of_the_undisturbed_stretch() {
    let mut script = Script::new(false);
    script.group(0, 50);
    for first in [50, 100] {
        script.steps(first, first + 50);
    }
    let runs = |script: &mut Script, first: usize, factor: u64| {
        for process in &mut script.side.processes {
            let mut at_ms = 0;
            for (index, run) in process.runs.iter_mut().enumerate() {
                let step = if index == first {
                    STEP_MS
                } else {
                    STEP_MS * factor
                };
                run.begin_ms = at_ms + step;
                at_ms += 50 * step;
                run.end_ms = at_ms;
            }
        }
    };
    // The second of three runs, between slower ones.
    runs(&mut script, 1, 4);
    script.side.calm_ms = (4000, 5000);
    script.side.measured_ms = (5000, 9000);
    assert_eq!(script.account().step_ms, 20.0);
}

/// Changes a right history, and returns what is found in it.
fn mutant(mut script: Script, change: impl FnOnce(&mut SideHistory)) -> Vec<String> {
    change(&mut script.side);
    script.violations()
}

fn assert_found(found: &[String], text: &str) {
    assert!(
        !found.is_empty() && found.iter().any(|it| it.contains(text)),
        "{found:?}"
    );
}

#[test]
fn a_wrong_sum_is_found() {
    let found = mutant(kept(), |side| {
        side.processes[2].wrong.push("sum: 35 is not 36".to_owned())
    });
    assert_found(&found, "sum: 35");
}

#[test]
fn a_loss_or_a_state_of_another_run_is_found() {
    let found = mutant(kept(), |side| side.processes[0].runs[1].loss *= 1.0 + 1e-8);
    assert_found(&found, "step 499 has chain");
    let found = mutant(restarted(), |side| side.processes[9].runs[0].chain += 1);
    assert_found(&found, "step 800 has chain");
}

#[test]
fn a_dropped_checkpoint_is_found() {
    // It was written before the ranks started, and they begin at the one before.
    let found = mutant(restarted(), |side| {
        side.processes[0].runs[0].saved = Some((400, 8000))
    });
    assert_found(&found, "begins at step 350, and the checkpoint had 400");
    // A checkpoint that is written while they start may be too late for them.
    let found = mutant(restarted(), |side| {
        side.processes[0].runs[0].saved = Some((400, 12_500))
    });
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn a_step_that_is_claimed_twice_or_left_out_is_found() {
    for (first, text) in [
        (399, "step 399 follows step 399"),
        (401, "step 401 follows step 399"),
    ] {
        let mut script = Script::new(true);
        script.group(0, 400);
        script.now_ms += 500;
        script.steps(first, 900);
        script.finish();
        assert_found(&script.violations(), text);
    }
}

#[test]
fn a_survivor_that_goes_back_is_found() {
    let mut script = Script::new(true);
    script.group(0, 400);
    script.group(390, 900);
    script.finish();
    assert_found(
        &script.violations(),
        "step 390 follows step 399 in generation 2",
    );
}

#[test]
fn a_group_that_begins_beyond_what_was_done_is_found() {
    let mut script = Script::new(false);
    script.group(0, 400);
    script.start(RANKS);
    script.group(450, 900);
    assert_found(
        &script.violations(),
        "begins at step 450, and 400 were done",
    );
}

#[test]
fn members_that_disagree_are_found() {
    let begins = mutant(kept(), |side| {
        side.processes[1].runs[1].first = 401;
    });
    assert_found(&begins, "generation 2 begins at the steps {400, 401}");
    let ranks = mutant(kept(), |side| side.processes[1].joined[1].rank = 0);
    assert_found(&ranks, "generation 2 has the ranks [0, 0, 2");
    let sizes = mutant(kept(), |side| side.processes[1].joined[1].size = 8);
    assert_found(&sizes, "{7, 8}");
    let order = mutant(kept(), |side| side.processes[1].joined.swap(0, 1));
    assert_found(&order, "do not ascend");
}

/// Both halves continue, for example after a cut.
#[test]
fn two_groups_at_a_time_are_found() {
    let mut script = Script::new(true);
    script.group(0, 400);
    let all = script.live.clone();
    let at_ms = script.now_ms;
    script.live = all[..4].to_vec();
    script.group(400, 600);
    script.now_ms = at_ms + 100;
    script.live = all[4..].to_vec();
    script.group(400, 600);
    script.live = all;
    script.finish();
    assert_found(&script.violations(), "steps after 3 has begun");
}

#[test]
fn a_rank_that_ends_without_a_fault_of_its_own_is_found() {
    let found = mutant(kept(), |side| side.faults[0].hit = vec![Seat::of(6)]);
    assert_found(&found, "rank 1 of node 3 (pid 107) ended without a fault");
    // Restarts end all ranks.
    assert_eq!(
        mutant(restarted(), |side| side.faults.clear()),
        Vec::<String>::new()
    );
}

/// This holds even for a rank that an earlier fault has hit, and that survived it.
#[test]
fn a_rank_that_ends_long_after_a_fault_of_its_own_is_found() {
    let mut script = Script::new(true);
    script.group(0, 400);
    script.fault(Kind::StopLauncher, &[6, 7]);
    let before = script.now_ms;
    script.steps(400, 400 + 35_000 / STEP_MS);
    script.live.pop();
    script.now_ms += 180;
    script.group(400 + 35_000 / STEP_MS, 3000);
    script.finish();
    assert_found(
        &script.violations(),
        "rank 1 of node 3 (pid 107) ended without a fault",
    );
    script.side.faults[0].at_ms = before + 10_000;
    script.side.faults[0].end_ms = before + 10_000;
    assert_eq!(script.violations(), Vec::<String>::new());
}

#[test]
fn a_job_that_does_not_end_is_found() {
    let found = mutant(kept(), |side| side.has_finished = false);
    assert_found(&found, "did not end");
    let end = |how: &str| {
        let how = how.to_owned();
        mutant(kept(), |side| {
            side.launchers[1].end_ms = Some(side.measured_ms.1 + 100);
            side.launchers[1].how = how;
        })
    };
    assert_found(
        &end("exit code 1"),
        "the launcher of node 1 ended by exit code 1",
    );
    assert_eq!(end("exit code 0"), Vec::<String>::new());
}

#[test]
fn a_history_is_read_as_it_was_written() {
    use super::super::history::{History, Setting};
    let history = History {
        setting: Setting {
            seed: 7,
            minutes: 10,
            step_ms: 20,
            notes: vec!["by hand".to_owned()],
        },
        sides: vec![restarted().side, kept().side],
    };
    let mut text = Vec::new();
    history.write(&mut text).unwrap();
    assert_eq!(History::read(&text[..]).unwrap(), history);
    let error = History::read(&b"{}\n"[..]).unwrap_err().to_string();
    assert!(error.contains("line 1"), "{error}");
}
