//! Detects a job that makes no progress in its collectives, which are not visible in the store. The flight recorder of
//! one rank is read from time to time. When it has not moved, the recorders of all ranks are compared.
//!
//! Only the launcher that serves the workers' store does so. All blocking calls are made on a separate thread, which is
//! abandoned if a rank does not answer at the end of the job.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, SystemTime};

use c10d_inspect::flight::{FlightRecording, FlightReport};
use c10d_inspect::http::Target;
use c10d_inspect::workers::{Job, fetch_recording};
use c10d_inspect::{AnnouncedNode, Report};

use crate::wording::local_time_and_age;

const THREAD: &str = "explain-flight";

/// How often the recorder of one rank is read at the least time between: it answers with up to 1 MiB.
const SAMPLE_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// How often a rank is sampled within the time after which a hang is reported.
const SAMPLES: u32 = 3;

/// How often all ranks are compared while the sampled one does not move.
const COMPARE_INTERVAL: Duration = Duration::from_secs(60);

/// The next question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ask {
    Nothing,
    /// One rank's recorder.
    One,
    /// All ranks' recorders.
    All,
}

/// Decides when to ask whom. Times are counted from any moment.
#[derive(Debug)]
struct Stall {
    after: Duration,
    /// The last recording that differed from the one before, and when it was made.
    moved: Option<(FlightRecording, Duration)>,
    sampled: Option<Duration>,
    compared: Option<Duration>,
}

impl Stall {
    const fn new(after: Duration) -> Self {
        Self {
            after,
            moved: None,
            sampled: None,
            compared: None,
        }
    }

    /// Returns the question that is due at `now`.
    fn due(&self, now: Duration) -> Ask {
        let interval = (self.after / SAMPLES).max(SAMPLE_INTERVAL_MIN);
        let has_passed =
            |since: Option<Duration>, time| since.is_none_or(|at| now.saturating_sub(at) >= time);
        if self.lasted(now).is_some_and(|lasted| lasted >= self.after)
            && has_passed(self.compared, COMPARE_INTERVAL)
        {
            Ask::All
        } else if has_passed(self.sampled, interval) {
            Ask::One
        } else {
            Ask::Nothing
        }
    }

    fn note_asked(&mut self, ask: Ask, now: Duration) {
        match ask {
            Ask::One => self.sampled = Some(now),
            Ask::All => self.compared = Some(now),
            Ask::Nothing => {}
        }
    }

    /// Takes what the sampled rank has recorded; `None` if it does not answer, which proves nothing. Returns whether it
    /// has moved.
    fn note_sample(&mut self, recording: Option<FlightRecording>, now: Duration) -> bool {
        let Some(recording) = recording else {
            return false;
        };
        if recording.is_empty() {
            // The rank has not created a group, so it has not begun.
            self.moved = None;
            self.compared = None;
            return true;
        }
        let before = self.moved.as_ref();
        if before.is_some_and(|(before, _)| !recording.has_moved_since(before)) {
            return false;
        }
        self.moved = Some((recording, now));
        self.compared = None;
        true
    }

    /// How long the sampled rank has not moved; `None` before it has recorded anything.
    fn lasted(&self, now: Duration) -> Option<Duration> {
        let (_, since) = self.moved.as_ref()?;
        Some(now.saturating_sub(*since))
    }

    /// Whether the sampled rank is inside a collective.
    fn is_inside(&self) -> bool {
        let recording = self.moved.as_ref().map(|(recording, _)| recording);
        recording.is_some_and(|recording| recording.current().is_some())
    }
}

/// Ranks that hang in collectives.
#[derive(Debug)]
pub(super) struct Stuck {
    pub(super) report: FlightReport,
    /// How long one of them has not moved at least.
    pub(super) lasted: Duration,
}

enum Answer {
    Sample(Option<FlightRecording>),
    Comparison(FlightReport),
}

/// Watches the collectives of a round's workers.
#[derive(Debug)]
pub(super) struct Collectives {
    stall: Stall,
    token: Option<String>,
    asking: Option<Receiver<Answer>>,
    stuck: Option<FlightReport>,
}

impl Collectives {
    pub(super) const fn new(after: Duration, token: Option<String>) -> Self {
        Self {
            stall: Stall::new(after),
            token,
            asking: None,
            stuck: None,
        }
    }

    /// Returns the ranks known at `now` to hang in collectives. Asks for more in the background. `report` has all
    /// ranks, and `node` has this launcher's ranks.
    pub(super) fn look(
        &mut self,
        now: Duration,
        report: &Report,
        node: &AnnouncedNode,
    ) -> Option<Stuck> {
        self.take(now);
        if self.asking.is_none() {
            let ask = self.stall.due(now);
            self.stall.note_asked(ask, now);
            self.asking = match ask {
                Ask::Nothing => None,
                Ask::One => socket_of(node, report)
                    .and_then(|socket| ask_in_background(move || sample(socket))),
                Ask::All => {
                    let job = Job::new(
                        report.clone(),
                        Some(IpAddr::from(Ipv4Addr::LOCALHOST)),
                        self.token.clone(),
                    );
                    ask_in_background(move || compare(&job))
                }
            };
        }
        let report = self.stuck.clone()?;
        let lasted = self.stall.lasted(now)?;
        Some(Stuck { report, lasted })
    }

    fn take(&mut self, now: Duration) {
        let Some(answers) = &self.asking else { return };
        let answer = match answers.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => return,
            // The thread has panicked.
            Err(TryRecvError::Disconnected) => None,
        };
        self.asking = None;
        match answer {
            Some(Answer::Sample(recording)) => {
                let has_moved = self.stall.note_sample(recording, now);
                self.stuck = self.stuck.take().filter(|_| !has_moved);
            }
            Some(Answer::Comparison(report)) => {
                // A rank in a long computation does not enter a collective either, and then the other ranks do not
                // either.
                let tells = !report.findings.is_empty() || self.stall.is_inside();
                self.stuck = tells.then_some(report);
            }
            None => {}
        }
    }
}

impl Stuck {
    /// The first sentence of `c10d flight`, and the next step for the user.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "the job has made no progress in its collectives for {} s\n{}\n",
            self.lasted.as_secs(),
            self.report.headline
        );
        let causes = self.report.findings.iter().filter(|it| !it.is_consequence);
        let culprits: BTreeSet<usize> = causes.flat_map(|it| &it.culprits.0).copied().collect();
        let ranks: Vec<String> = culprits.iter().take(4).map(usize::to_string).collect();
        let of = match ranks.is_empty() {
            true => "--all".to_owned(),
            false => ranks.join(" "),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  all ranks: c10d flight; where they are: c10d stacks {of}"
        );
        text
    }
}

/// The debug server of a worker of this node that runs: of survivors, of a member of their generation.
fn socket_of(node: &AnnouncedNode, report: &Report) -> Option<PathBuf> {
    let mut members = report.memberships.iter().map(|group| &group.ranks.0);
    let members = members.find(|ranks| !ranks.is_empty());
    let mut running = node.workers.iter().filter(|worker| {
        worker.end.is_none() && members.is_none_or(|ranks| ranks.contains(&worker.rank))
    });
    running.find_map(|worker| worker.debug_socket.clone())
}

fn sample(socket: PathBuf) -> Answer {
    Answer::Sample(fetch_recording(&Target::Unix(socket)).ok())
}

fn compare(job: &Job) -> Answer {
    let clock = |unix_ns| local_time_and_age(unix_ns, SystemTime::now());
    Answer::Comparison(job.compare_flights(&job.ranks(), &clock))
}

/// `None` if the system has no thread left.
fn ask_in_background(ask: impl FnOnce() -> Answer + Send + 'static) -> Option<Receiver<Answer>> {
    let (sender, answers) = channel();
    let asking = std::thread::Builder::new()
        .name(THREAD.to_owned())
        .spawn(move || {
            // The job may have ended before the answer.
            let _ = sender.send(ask());
        });
    asking.ok().map(|_| answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recorder whose rank has entered `entered` collectives, and has completed all of them, or all except the last.
    fn recording(entered: u64, is_inside: bool) -> FlightRecording {
        let entry = serde_json::json!({
            "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": entered,
            "profiling_name": "gloo:all_reduce", "retired": !is_inside,
            // The clock of another host.
            "time_created_ns": 7,
        });
        let json = serde_json::json!({ "entries": [entry] }).to_string();
        FlightRecording::parse(json.as_bytes()).unwrap()
    }

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Returns the questions by second. `entered` gives the number of collectives that the sampled rank has entered by
    /// a second.
    fn asked(seconds: u64, entered: impl Fn(u64) -> Option<u64>) -> Vec<(u64, Ask)> {
        let mut stall = Stall::new(at(30));
        let mut asked = Vec::new();
        for second in 0..seconds {
            let ask = stall.due(at(second));
            stall.note_asked(ask, at(second));
            match ask {
                Ask::Nothing => continue,
                Ask::One => {
                    let recording = entered(second).map(|entered| recording(entered, true));
                    stall.note_sample(recording, at(second));
                }
                Ask::All => {}
            }
            asked.push((second, ask));
        }
        asked
    }

    #[test]
    fn a_job_that_runs_costs_one_recorder_every_10_s() {
        let asked = asked(100, Some);
        assert_eq!(asked.len(), 10);
        assert!(asked.iter().all(|(_, ask)| *ask == Ask::One), "{asked:?}");
    }

    #[test]
    fn all_ranks_are_compared_when_one_has_not_moved_for_30_s_and_then_once_a_minute() {
        let asked = asked(200, |second| Some(second.min(20)));
        let all = asked.iter().filter(|(_, ask)| *ask == Ask::All);
        let all: Vec<u64> = all.map(|(second, _)| *second).collect();
        assert_eq!(all, [50, 110, 170]);
    }

    #[test]
    fn a_rank_that_is_silent_or_has_recorded_nothing_is_no_standstill() {
        let asked = asked(200, |_| None);
        assert!(asked.iter().all(|(_, ask)| *ask == Ask::One), "{asked:?}");
        let mut stall = Stall::new(at(30));
        for second in 0..100 {
            stall.note_sample(Some(FlightRecording::parse(b"{}").unwrap()), at(second));
            assert_ne!(stall.due(at(second)), Ask::All);
        }
        // The job begins late, and makes no progress after that.
        stall.note_sample(Some(recording(1, false)), at(100));
        assert_ne!(stall.due(at(129)), Ask::All);
        assert_eq!(stall.due(at(130)), Ask::All);
        assert!(!stall.is_inside());
        // The job continues.
        assert!(stall.note_sample(Some(recording(1, true)), at(131)));
        assert!(stall.is_inside());
        assert_ne!(stall.due(at(150)), Ask::All);
        assert!(!stall.note_sample(Some(recording(1, true)), at(151)));
    }
}
