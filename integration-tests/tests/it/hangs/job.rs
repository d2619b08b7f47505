//! A job of two nodes with two ranks each, and the reports of its launchers and of `c10d why`.

#![expect(clippy::print_stdout, reason = "the outputs for the manual")]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use integration_tests::launcher::{Job, Kind, Launcher, c10d, free_address};
use integration_tests::torch::script;
use serde_json::Value;
use tempfile::TempDir;

use super::expected::{Expected, SCRIPT, Verdict, culprits, first_sentence, without_times};
use super::mode::Mode;
use crate::debug_servers::get;

/// For the start of Python on a busy machine, and PyTorch's imports.
const START_LIMIT: Duration = Duration::from_secs(120);

/// The longest that `c10d why` may take, its start included.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// How long an INFO line must not appear a second time.
const ONCE: Duration = Duration::from_secs(12);

/// Before an alarm with the default times, and after the ranks have been quiet for some seconds.
const EARLY: Duration = Duration::from_secs(8);

/// How the report of a launcher about a job that makes no progress begins.
const ALARM: &str = "the job has made no progress for ";

/// The line of a launcher when such a job makes progress again.
const CONTINUES: &str = "the job continues";

const RANKS: usize = 4;

/// Drop kills it.
pub(super) struct HangingJob {
    folder: TempDir,
    endpoint: SocketAddr,
    mode: Mode,
    kinds: [Kind; 2],
    /// The first has ranks 0 and 1.
    nodes: Vec<Launcher>,
}

/// The answer of `c10d why`.
pub(super) struct Answer {
    pub(super) report: Value,
    pub(super) code: Option<i32>,
    took: Duration,
}

impl HangingJob {
    /// Starts the ranks of a kind of the script.
    pub(super) fn start(kind: &str, mode: Mode) -> Self {
        let words = [script(SCRIPT).into_os_string(), kind.into()];
        Self::start_nodes(mode.kinds(), mode, &words, &[])
    }

    /// Starts a launcher of each kind. Its ranks get these words and the job's folder as arguments, and these variables. The
    /// first launcher has ranks 0 and 1.
    pub(super) fn start_nodes(
        kinds: [Kind; 2],
        mode: Mode,
        words: &[OsString],
        variables: &[(&str, &str)],
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let endpoint = free_address();
        let arguments: Vec<OsString> = words
            .iter()
            .cloned()
            .chain([folder.path().into()])
            .collect();
        let mut job = Job::new(folder.path());
        if let Some(after) = mode.explain_after() {
            job = job.with_variable("PET_EXPLAIN_AFTER", after);
        }
        // The order of the addresses decides about the ranks.
        let nodes = [(kinds[0], "127.0.0.1", 1), (kinds[1], "127.0.0.2", 0)];
        let explain_after = match (mode, mode.explain_after()) {
            (Mode::Torchrun, Some(after)) => format!(",explain_after={after}"),
            _ => String::new(),
        };
        let nodes = nodes.map(|(kind, address, is_host)| {
            let mut options = vec![
                "--nnodes=2".to_owned(),
                "--nproc-per-node=2".to_owned(),
                "--rdzv-backend=c10d".to_owned(),
                "--rdzv-id=job".to_owned(),
                format!("--rdzv-endpoint={endpoint}"),
                format!("--rdzv-conf=is_host={is_host}{explain_after}"),
                format!("--local-addr={address}"),
            ];
            let own = if kind == Kind::C10d || mode == Mode::Torchrun {
                mode.options()
            } else {
                &[]
            };
            options.extend(own.iter().map(|it| (*it).to_owned()));
            job.start_script(kind, address, options, arguments.clone(), variables)
        });
        Self {
            folder,
            endpoint,
            mode,
            kinds,
            nodes: nodes.into(),
        }
    }

    /// Asserts that the launchers and `c10d why` say what is expected, in time.
    pub(super) fn expect(&mut self, expected: &Expected) {
        let stalled = self.await_stall();
        let parts = expected.parts();
        let took = self.await_report(&parts, stalled);
        println!("reported {} ms after the stall", took.as_millis());

        let ranks: BTreeSet<u64> = expected.culprits.iter().map(|it| *it as u64).collect();
        let answer = self.ask_until(stalled, |answer| {
            answer.report["state"] == expected.verdict.state() && culprits(&answer.report) == ranks
        });
        println!(
            "c10d why, within {} ms:\n{:#}",
            answer.took.as_millis(),
            answer.report
        );
        let log = self.nodes[0].process().stderr();
        println!("the first launcher:\n{log}");
        let headline = answer.report["headline"].as_str().unwrap_or_default();
        let all = answer.report.to_string();
        assert_eq!(answer.code, Some(expected.verdict.exit_code()), "{all}");
        assert_eq!(answer.report["state"], expected.verdict.state(), "{all}");
        let is_alarm = expected.verdict == Verdict::NoProgress;
        assert_eq!(answer.report["is_stuck"], is_alarm, "{all}");
        assert_eq!(self.is_stuck(), self.has_metrics().then_some(is_alarm));
        assert_eq!(culprits(&answer.report), ranks, "{all}");
        for part in &parts {
            assert!(all.contains(part), "no {part:?} in {all}");
        }
        let sentence = first_sentence(headline);
        assert!(without_times(&log).contains(&sentence), "{sentence}\n{log}");
        if expected.verdict == Verdict::Busy {
            self.expect_once(&sentence);
        } else if self.kinds[1] == Kind::C10d || self.mode == Mode::Torchrun {
            self.expect_of_the_other(&sentence, stalled);
        }
    }

    /// Asserts that `c10d why` finds the ranks and lines before the launchers report an alarm.
    pub(super) fn expect_early_answer(&mut self, expected: &Expected) {
        self.await_stall();
        thread::sleep(EARLY);
        // The launchers observe their workers only after a request. On a busy machine, they may not answer the first in time.
        let mut texts = (0..3).map(|_| {
            let started = Instant::now();
            let stacks = self.ask_by("stacks", "--all");
            println!("c10d stacks, within {} ms", started.elapsed().as_millis());
            without_times(&String::from_utf8_lossy(&stacks.stdout))
        });
        let is_observed = texts.any(|it| it.starts_with("Ranks 0, 1 and 3 wait in all_reduce"));
        assert!(is_observed, "{}", self.logs());
        let answer = self.ask();
        let all = answer.report.to_string();
        assert_eq!(answer.code, Some(0), "{all}");
        assert_eq!(answer.report["is_stuck"], false, "{all}");
        for part in expected.parts() {
            assert!(all.contains(&part), "no {part:?} in {all}");
        }
        assert!(all.contains(" s so far."), "{all}");
        assert!(!self.logs().contains(ALARM), "{}", self.logs());
    }

    /// Asserts that the launchers report what is expected, then that the job continues, and that it succeeds.
    pub(super) fn expect_to_continue(&mut self, expected: &Expected) {
        let stalled = self.await_stall();
        self.await_report(&expected.parts(), stalled);
        let codes: Vec<_> = self
            .nodes
            .iter_mut()
            .map(|node| node.wait(START_LIMIT))
            .collect();
        let log = self.nodes[0].process().stderr();
        println!("{log}");
        assert_eq!(codes, [Some(0); 2], "{}", self.logs());
        assert_eq!(log.matches(ALARM).count(), 1, "{log}");
        assert_eq!(log.matches(CONTINUES).count(), 1, "{log}");
    }

    /// Asserts that both launchers exit with 1; returns their logs.
    pub(super) fn expect_failure(&mut self) -> [String; 2] {
        let codes: Vec<_> = self
            .nodes
            .iter_mut()
            .map(|node| node.wait(START_LIMIT))
            .collect();
        assert_eq!(codes, [Some(1); 2], "{}", self.logs());
        [0, 1].map(|node| self.nodes[node].process().stderr())
    }

    /// Asserts until the job has ended that `c10d why` finds no alarm, and that the launchers report none.
    pub(super) fn expect_no_alarm(&mut self) {
        while self.nodes[0].process().try_wait().is_none() {
            thread::sleep(Duration::from_secs(5));
            let output = self.why();
            // While the job starts and ends, no store answers.
            let is_alarm = output.status.code() == Some(Verdict::NoProgress.exit_code());
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(!is_alarm, "{text}\n{}", self.logs());
        }
        let codes: Vec<_> = self.nodes.iter_mut().map(|node| node.wait(ONCE)).collect();
        let logs = self.logs();
        println!("{logs}");
        assert_eq!(codes, [Some(0); 2], "{logs}");
        assert!(!logs.contains(ALARM), "{logs}");
    }

    /// Waits until all ranks do what they never finish; returns the time.
    pub(super) fn await_stall(&mut self) -> SystemTime {
        let started = Instant::now();
        loop {
            let times: Vec<f64> = (0..RANKS)
                .filter_map(|rank| self.of_rank(rank)?["time"].as_f64())
                .collect();
            if times.len() == RANKS {
                let last = times.into_iter().fold(0.0, f64::max);
                return SystemTime::UNIX_EPOCH + Duration::from_secs_f64(last);
            }
            self.check_runs();
            assert!(started.elapsed() < START_LIMIT, "{}", self.logs());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the launcher of rank 0 has reported all parts; returns how long after the stall.
    fn await_report(&mut self, parts: &[String], stalled: SystemTime) -> Duration {
        loop {
            let text = without_times(&self.nodes[0].process().stderr());
            let elapsed = stalled.elapsed().unwrap_or_default();
            let Some(missing) = parts.iter().find(|part| !text.contains(*part)) else {
                return elapsed;
            };
            let limit = self.mode.report_limit();
            assert!(
                elapsed < limit,
                "no {missing:?} within {limit:?}:\n{}\n{:#}",
                self.logs(),
                self.ask().report
            );
            self.check_runs();
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The other launcher prints the first sentence.
    fn expect_of_the_other(&mut self, sentence: &str, stalled: SystemTime) {
        let limit = self.mode.other_report_limit();
        loop {
            let log = self.nodes[1].process().stderr();
            if without_times(&log).contains(sentence) {
                return;
            }
            let elapsed = stalled.elapsed().unwrap_or_default();
            assert!(elapsed < limit, "no {sentence:?} within {limit:?}:\n{log}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Only the launcher of rank 0 prints information, and once.
    fn expect_once(&mut self, sentence: &str) {
        thread::sleep(ONCE);
        let counts = [0, 1].map(|node| {
            let log = self.nodes[node].process().stderr();
            without_times(&log).matches(sentence).count()
        });
        assert_eq!(counts, [1, 0], "{sentence}\n{}", self.logs());
    }

    /// Runs `c10d why` until the answer is as expected, or the launchers must have reported.
    fn ask_until(&self, stalled: SystemTime, is_expected: impl Fn(&Answer) -> bool) -> Answer {
        loop {
            let answer = self.ask();
            let elapsed = stalled.elapsed().unwrap_or_default();
            if is_expected(&answer) || elapsed >= self.mode.report_limit() {
                return answer;
            }
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// Runs `c10d why`. A start of the command on a busy machine can take longer than its answer, so it may try again.
    pub(super) fn ask(&self) -> Answer {
        let mut answers = (0..3).map(|_| self.ask_once());
        let answer = answers.find(|answer| answer.took <= ANSWER_MAX);
        answer.unwrap_or_else(|| panic!("three answers took longer than {ANSWER_MAX:?}"))
    }

    fn ask_once(&self) -> Answer {
        let started = Instant::now();
        let output = self.why();
        let took = started.elapsed();
        let report = serde_json::from_slice(&output.stdout);
        Answer {
            report: report.unwrap_or_else(|error| {
                panic!("{error}: {}", String::from_utf8_lossy(&output.stderr))
            }),
            code: output.status.code(),
            took,
        }
    }

    fn why(&self) -> Output {
        self.ask_by("why", "--json")
    }

    fn ask_by(&self, command: &str, option: &str) -> Output {
        let endpoint = self.endpoint.to_string();
        let mut c10d = Command::new(c10d());
        let output = c10d
            .args([command, option, "--connect", &endpoint])
            .output();
        output.expect("c10d can be run")
    }

    /// A relay answers no request for a page.
    fn has_metrics(&self) -> bool {
        self.mode != Mode::Relay
    }

    /// The metric `c10d_job_stuck` of the workers' store; `None` if it cannot be asked.
    pub(super) fn is_stuck(&self) -> Option<bool> {
        if !self.has_metrics() {
            return None;
        }
        let store = self.of_rank(0)?["store"].as_str()?.to_owned();
        let metrics = get(&store, "/metrics");
        let mut values = metrics
            .lines()
            .filter_map(|line| line.strip_prefix("c10d_job_stuck "));
        Some(values.next()? == "1")
    }

    /// The file that a rank wrote when it stalled.
    fn of_rank(&self, rank: usize) -> Option<Value> {
        Job::new(self.folder.path()).read(&format!("stalled.{rank}"))
    }

    fn check_runs(&mut self) {
        let has_ended = |node: &mut Launcher| node.process().try_wait().is_some();
        assert!(!self.nodes.iter_mut().any(has_ended), "{}", self.logs());
    }

    pub(super) fn logs(&mut self) -> String {
        let logs = self.nodes.iter_mut().map(|node| node.process().stderr());
        logs.collect::<Vec<_>>().join("\n----\n")
    }
}
