//! The log lines of a run in which all goes well: the workers that have started, where to look at them, and the nodes
//! that are waited for, which the live line on a terminal names. Pure, except for the listeners.

use std::ffi::OsString;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::agent::{AgentEvent, AgentListener, RestartTimes, StartedWorkers};
use crate::threads::lock;
use c10d_socket::{HostPort, printable};
use elastic_rendezvous::{
    DEFAULT_PORT, Endpoint, Listener, NodeId, RanksReport, RendezvousEvent, RendezvousParameters,
    StartWarnings, WaitReport,
};

use super::feature::{Feature, JobEnd};
use super::options::{LauncherOptions, Screen};
use super::status_page::Hosted;

/// Nodes that have met within this time need no line.
const QUIET: Duration = Duration::from_millis(500);

/// Imports that take less time are not worth an option.
const IMPORTS_MIN: Duration = Duration::from_secs(1);

/// How many threads the libraries of one worker use for computations.
const THREADS: &str = "OMP_NUM_THREADS";

/// Nodes that have met within this time report the warnings when their workers start.
const LONG: Duration = Duration::from_secs(5);

/// The most characters of a line: 160 with the time and the level.
const LINE_CHARS_MAX: usize = 131;

/// The least room for process ids in a line.
const PIDS_CHARS_MIN: usize = 34;

/// The most nodes of each kind on the live line.
const NODES_MAX: usize = 16;

/// Logs the lines of a run without failures.
#[derive(Debug)]
pub(super) struct ProgressLog {
    /// A screen that can show a live line.
    live: Option<Arc<dyn Screen>>,
    hosted: Arc<Hosted>,
    warnings: StartWarnings,
    /// The place where the nodes meet, for people.
    meeting_point: String,
    /// Whether workers get a number of threads that the user has not chosen.
    has_default_threads: bool,
    is_python: bool,
    /// Whether an option that is too late once the job hangs would tell more.
    can_have_debug_server: bool,
    /// The interpreter, if users may expect a different interpreter.
    interpreter: Option<String>,
}

impl ProgressLog {
    pub(super) fn new(
        options: &LauncherOptions,
        hosted: Arc<Hosted>,
        warnings: &StartWarnings,
    ) -> Self {
        let is_set = |name: &OsString| name == THREADS;
        let environment = &options.agent.environment;
        let screen = &options.screen;
        Self {
            live: screen.is_live().then(|| Arc::clone(screen)),
            hosted,
            warnings: warnings.clone(),
            meeting_point: meeting_point(&options.rendezvous),
            has_default_threads: environment.iter().any(|(name, _)| is_set(name))
                && std::env::var_os(THREADS).is_none(),
            is_python: options.is_python(),
            can_have_debug_server: options.is_python() && !options.has_debug_servers,
            interpreter: options.interpreter.clone(),
        }
    }
}

impl Feature for ProgressLog {
    /// Shows the missing nodes of a join, unless it is over soon. The handler itself logs the progress every 30 s. A completed join
    /// hides the live line before workers start.
    fn rendezvous_listener(&self) -> Option<Listener> {
        let at = format!(" at {}", self.meeting_point);
        let live = self.live.clone();
        let warnings = self.warnings.clone();
        let said = Mutex::new(None::<Said>);
        Some(Arc::new(move |event| {
            let (waited, now, line): (_, _, &dyn Fn(&str) -> String) = match event {
                RendezvousEvent::Waiting(report) => (report.waited, Said::of(report), &|at| {
                    waiting_line(report, at)
                }),
                RendezvousEvent::WaitingForRanks(report) => {
                    (report.waited, Said::Ranks, &|at| ranks_line(report, at))
                }
                RendezvousEvent::MembershipChanged => {
                    live.iter().for_each(|screen| screen.hide());
                    return;
                }
                _ => return,
            };
            if waited < QUIET {
                // Another join.
                *lock(&said) = None;
                return;
            }
            if waited >= LONG {
                warnings.report();
            }
            if let Some(screen) = &live {
                screen.show(&(line("") + &names(event)));
            }
            if lock(&said).replace(now) != Some(now) {
                log::info!("{}", line(&at));
            }
        }))
    }

    fn workers_ended(&mut self, _: &mut JobEnd) {
        self.live.iter().for_each(|screen| screen.hide());
    }

    /// Two lines when workers start, and one when they start again at the same store. A third one if something is unusual.
    fn agent_listener(&self) -> Option<AgentListener> {
        let hosted = Arc::clone(&self.hosted);
        let warnings = self.warnings.clone();
        let is_python = self.is_python;
        let has_default_threads = self.has_default_threads;
        let can_have_debug_server = self.can_have_debug_server;
        let interpreter = self.interpreter.clone();
        let shown = Mutex::new(None::<HostPort>);
        Some(Arc::new(move |event| {
            let started = match event {
                AgentEvent::WorkersStarted(started) => started,
                AgentEvent::Restarted(times) => {
                    log::info!("{}", restarted_line(times, is_python));
                    return;
                }
                _ => return,
            };
            log::info!(
                "{}",
                started_line(started, interpreter.as_deref(), has_default_threads)
            );
            let mut shown = lock(&shown);
            if shown.as_ref() != Some(&started.master) {
                let store = hosted.on_port(started.master.port());
                let has_page = store.is_some_and(|store| store.has_status());
                if let Some(line) = store_line(started, has_page, can_have_debug_server) {
                    log::info!("{line}");
                }
                *shown = Some(started.master.clone());
            }
            warnings.report();
        }))
    }
}

/// Returns the place where the nodes meet: the endpoint with its port, or an unchanged path.
fn meeting_point(parameters: &RendezvousParameters) -> String {
    match parameters.endpoint().parse::<Endpoint>() {
        Ok(endpoint) => endpoint.with_default_port(DEFAULT_PORT).to_string(),
        Err(_) => parameters.endpoint().to_owned(),
    }
}

/// The nodes that the log has named as missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    /// The node waits for enough nodes.
    Missing,
    /// The node waits for more nodes than are needed.
    LastCall,
    /// The node waits for the next round.
    Complete,
    /// The node waits for the other nodes of a static rendezvous.
    Ranks,
}

impl Said {
    const fn of(report: &WaitReport) -> Self {
        match report {
            WaitReport {
                is_complete: true, ..
            } => Self::Complete,
            WaitReport {
                last_call_left: Some(_),
                ..
            } => Self::LastCall,
            _ => Self::Missing,
        }
    }
}

/// `started ranks 0-3 of 4: pid 17, 18, 19, 20`.
fn started_line(
    started: &StartedWorkers,
    interpreter: Option<&str>,
    has_default_threads: bool,
) -> String {
    let workers = &started.workers;
    let first = workers.first().map_or(0, |worker| worker.rank);
    let ranks = match workers.len() {
        0 | 1 => format!("rank {first}"),
        count => format!("ranks {first}-{}", first + count - 1),
    };
    let pids: Vec<String> = workers.iter().map(|it| it.pid.to_string()).collect();
    let again = match started.restarts {
        0 => "",
        _ => " again",
    };
    let mut line = format!("started {ranks} of {}{again}", started.world_size);
    if started.nodes > 1 {
        line += &format!(" on node {} of {}", started.node_rank, started.nodes);
    }
    line += ": pid ";
    let mut notes = String::new();
    if has_default_threads && started.restarts == 0 {
        notes += "; OMP_NUM_THREADS=1";
    }
    if let Some(interpreter) = interpreter.filter(|_| started.restarts == 0) {
        notes += &format!("; Python is {interpreter}");
    }
    // Several process ids, even if the notes are long.
    let room = LINE_CHARS_MAX.saturating_sub(line.len() + notes.len());
    line += &as_many_as_fit(&pids, room.max(PIDS_CHARS_MIN));
    let room = LINE_CHARS_MAX.saturating_sub(line.len());
    line + &printable(&notes, room).to_string()
}

/// `17, 18, 19 and 5 more`, in this many characters if there is room for one number.
fn as_many_as_fit(numbers: &[String], chars_max: usize) -> String {
    let text = |shown: usize| match numbers.len() - shown {
        0 => numbers.join(", "),
        more => format!("{} and {more} more", numbers[..shown].join(", ")),
    };
    let mut shown = numbers.len();
    while shown > 1 && text(shown).len() > chars_max {
        shown -= 1;
    }
    text(shown)
}

/// `restarted the workers in 14.3 s: stopping 0.3 s, joining 0.2 s, imports 13.8 s until the first output (--preload
/// avoids most of them)`.
fn restarted_line(times: &RestartTimes, is_python: bool) -> String {
    let first_sign = times.first_sign.unwrap_or_default();
    let total = times.stopping + times.joining + first_sign;
    let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
    let mut line = format!(
        "restarted the workers in {}: stopping {}, joining {}",
        seconds(total),
        seconds(times.stopping),
        seconds(times.joining),
    );
    match times.first_sign {
        None => line += "; neither output nor a step seen so far",
        Some(_) if is_python => {
            line += &format!(", imports until the first output {}", seconds(first_sign));
        }
        Some(_) => line += &format!(", first output {}", seconds(first_sign)),
    }
    let is_most = first_sign * 2 > total && first_sign >= IMPORTS_MIN;
    if is_python && is_most && !times.are_preloaded {
        line += " (--preload avoids most of it)";
    }
    line
}

/// Returns a line about where to observe the workers; `None` before there is a store.
fn store_line(
    started: &StartedWorkers,
    has_page: bool,
    can_have_debug_server: bool,
) -> Option<String> {
    if !started.is_agent_store {
        // The worker with rank 0 is PyTorch's server.
        return None;
    }
    let master = &started.master;
    let page = match has_page {
        true => format!("status page: http://{master}/; "),
        false => String::new(),
    };
    let more = match can_have_debug_server {
        true => " (--debug-server adds collectives)",
        false => "",
    };
    Some(format!(
        "{page}if the job hangs: c10d why --connect {}{more}",
        started.address
    ))
}

/// `1 of 1 to 3 nodes at node0:29400: the job starts in 29 s, or when 2 more have joined`. `at` is the place with a space
/// in front, or nothing for a short line.
fn waiting_line(report: &WaitReport, at: &str) -> String {
    let joined = report.joined;
    let wanted = match (report.min_nodes, report.max_nodes) {
        (min, max) if min == max => max.to_string(),
        (min, max) => format!("{min} to {max}"),
    };
    let left = report.time_left.as_secs();
    let at = format!("{joined} of {wanted} nodes{at}");
    if report.is_complete {
        return format!("{at} run the job: waiting for a place in it");
    }
    match report.last_call_left {
        Some(starts_in) => format!(
            "{at}: the job starts in {} s (last_call_timeout), or when {} more have joined",
            starts_in.as_secs(),
            report.max_nodes.saturating_sub(joined),
        ),
        None if report.missing() == 0 => {
            format!("{at}: the job starts when no more have joined for a while (last_call_timeout)")
        }
        None => format!(
            "{at}: waiting up to {left} s (join_timeout) for {} more",
            report.missing(),
        ),
    }
}

/// Returns the line of a static rendezvous, whose nodes have their ranks from the start.
fn ranks_line(report: &RanksReport, at: &str) -> String {
    let left = report.time_left.as_secs();
    match report.is_connected {
        true => format!(
            "{} of {} nodes{at}: waiting up to {left} s (timeout) for {} more",
            report.joined,
            report.world_size,
            report.missing(),
        ),
        false => format!(
            "waiting up to {left} s (timeout) for node rank 0 at {}",
            report.endpoint
        ),
    }
}

/// Which nodes are missing, why some do not join, and which have joined, the most important ones first, as a narrow terminal
/// truncates the live line.
fn names(event: &RendezvousEvent<'_>) -> String {
    let named = |node: &NodeId| format!("{} ({})", node.addr, node.pid);
    let of = |label: &str, names: &mut dyn Iterator<Item = String>| {
        let names: Vec<String> = names.take(NODES_MAX).collect();
        match names.is_empty() {
            true => String::new(),
            false => format!("; {label}: {}", names.join(", ")),
        }
    };
    match event {
        RendezvousEvent::Waiting(report) => {
            let why = report.not_joining.iter();
            let mut why = why.map(|it| format!("{}: {}", named(&it.node), it.why));
            of("missing", &mut report.missing_nodes().map(named))
                + &of("not joining", &mut why)
                + &of("joined", &mut report.participants.iter().map(named))
        }
        RendezvousEvent::WaitingForRanks(report) if report.is_connected && report.has_names => {
            let label = match report.missing() < report.unnamed_ranks().count() {
                // PyTorch's nodes have joined without a name.
                true => "missing of node ranks",
                false => "missing node ranks",
            };
            let joined = report.named.iter();
            let mut joined = joined.map(|(rank, node)| format!("{rank} {}", named(node)));
            of(
                label,
                &mut report.unnamed_ranks().map(|rank| rank.to_string()),
            ) + &of("joined", &mut joined)
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use crate::agent::StartedWorker;

    use crate::launcher::progress_log::*;

    fn started(count: u32) -> StartedWorkers {
        let workers = (0..count).map(|rank| {
            let index = usize::try_from(rank).unwrap();
            StartedWorker::new(4 + index, index, 17 + rank)
        });
        let mut started = StartedWorkers::alone(HostPort::new("node0", 4711), workers.collect());
        started.world_size = 8;
        started
    }

    #[test]
    fn a_start_is_one_line() {
        let mut started = started(2);
        assert_eq!(
            started_line(&started, None, true),
            "started ranks 4-5 of 8: pid 17, 18; OMP_NUM_THREADS=1"
        );
        started.nodes = 2;
        started.node_rank = 1;
        started.restarts = 3;
        assert_eq!(
            started_line(&started, Some("/v/bin/python3"), true),
            "started ranks 4-5 of 8 again on node 1 of 2: pid 17, 18"
        );
        assert_eq!(
            started_line(&self::started(1), Some("/v/bin/python3"), false),
            "started rank 4 of 8: pid 17; Python is /v/bin/python3"
        );
        let path = format!("/{}", "x".repeat(90));
        let mut many = self::started(16);
        many.workers
            .iter_mut()
            .for_each(|worker| worker.pid += 4_000_000);
        for (interpreter, expected) in [
            (None, "; OMP_NUM_THREADS=1"),
            (Some(&*path), "; OMP_NUM_THREADS=1; Python is /xxx"),
        ] {
            let line = started_line(&many, interpreter, true);
            assert!(line.chars().count() <= LINE_CHARS_MAX, "{line}");
            assert!(line.contains(" more; OMP_NUM_THREADS=1"), "{line}");
            assert!(line.contains(expected), "{line}");
        }
    }

    #[test]
    fn the_line_about_a_restart_shows_where_the_time_went() {
        let times = |first_sign: Option<u64>, are_preloaded| RestartTimes {
            stopping: Duration::from_millis(300),
            joining: Duration::from_millis(200),
            first_sign: first_sign.map(Duration::from_millis),
            are_preloaded,
        };
        let start = "restarted the workers in";
        for (times, is_python, expected) in [
            (
                times(Some(13_800), false),
                true,
                "14.3 s: stopping 0.3 s, joining 0.2 s, imports until the first output \
              13.8 s (--preload avoids most of it)",
            ),
            (
                times(Some(13_800), true),
                true,
                "14.3 s: stopping 0.3 s, joining 0.2 s, imports until the first output 13.8 s",
            ),
            (
                times(Some(400), false),
                true,
                "0.9 s: stopping 0.3 s, joining 0.2 s, imports until the first output 0.4 s",
            ),
            (
                times(Some(13_800), false),
                false,
                "14.3 s: stopping 0.3 s, joining 0.2 s, first output 13.8 s",
            ),
            (
                times(None, false),
                true,
                "0.5 s: stopping 0.3 s, joining 0.2 s; neither output nor a step seen so far",
            ),
        ] {
            let line = restarted_line(&times, is_python);
            assert_eq!(line, format!("{start} {expected}"));
            // 160 with the time and the level.
            assert!(line.len() <= 131, "{line}");
        }
    }

    #[test]
    fn the_line_about_the_store_has_a_command() {
        let mut started = started(1);
        let line = |started: &StartedWorkers, has_page| store_line(started, has_page, false);
        assert_eq!(
            line(&started, true).unwrap(),
            "status page: http://node0:4711/; if the job hangs: c10d why --connect node0:4711"
        );
        assert_eq!(
            line(&started, false).unwrap(),
            "if the job hangs: c10d why --connect node0:4711"
        );
        assert_eq!(
            store_line(&started, false, true).unwrap(),
            "if the job hangs: c10d why --connect node0:4711 (--debug-server adds collectives)"
        );
        started.is_agent_store = false;
        assert_eq!(line(&started, false), None);
    }
}
