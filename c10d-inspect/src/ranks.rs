//! The activity of each rank.

use std::collections::{BTreeSet, HashMap};

use c10d_store::ConnectionRecord;

use crate::hang::Verdict;
use crate::identity::shown_name;
use crate::index::Slot;
use crate::job::{Job, MemberState};
use crate::keys::Family;
use crate::progress::Progress;
use crate::report::{Finding, FindingKind, RankReport, RankState, Sureness, milliseconds};
use crate::text;

/// The ranks of the job, in order. If the number of ranks is known, they include ranks that have never
/// connected.
pub(crate) fn ranks(
    job: &Job<'_>,
    findings: &[Finding],
    verdict: Option<&Verdict>,
) -> Vec<RankReport> {
    let suspects: BTreeSet<usize> = findings
        .iter()
        .filter(|finding| !finding.is_consequence && finding.kind != FindingKind::WaitsForBusyRank)
        .flat_map(|finding| finding.culprits.0.iter().copied())
        .collect();
    let mut ranks: BTreeSet<usize> = (0..job.world_size.unwrap_or(0)).collect();
    ranks.extend(job.who.seen());
    ranks.extend(job.launched.workers().map(|worker| worker.worker.rank));
    let debug_urls = debug_urls(job);
    let progress = latest_progress(job);
    ranks
        .into_iter()
        .map(|rank| {
            let mut report = report(job, rank, progress.get(&rank).copied());
            let observed = verdict.and_then(|verdict| verdict.doing.get(&rank));
            if let Some(observed) = observed {
                match report.state {
                    RankState::Idle => report.doing.clone_from(observed),
                    _ => report.doing.push_str(&format!("; {observed}")),
                }
            }
            RankReport {
                is_suspect: suspects.contains(&rank),
                debug_url: debug_urls.get(&rank).cloned(),
                ..report
            }
        })
        .collect()
}

/// The member of each connection in the group that it joined last.
type Latest<'j> = (&'j MemberState<'j>, Option<usize>);

fn latest_progress<'j>(job: &'j Job<'_>) -> HashMap<usize, Latest<'j>> {
    let mut latest: HashMap<usize, Latest<'j>> = HashMap::new();
    for state in &job.groups {
        for member in &state.members {
            let Some(rank) = member.rank else { continue };
            let is_newer = latest.get(&rank).is_none_or(|(other, _)| {
                other.published.key.version < member.published.key.version
            });
            if is_newer && !state.group.is_of_savers() {
                latest.insert(rank, (member, state.size));
            }
        }
    }
    latest
}

fn report(job: &Job<'_>, rank: usize, latest: Option<Latest<'_>>) -> RankReport {
    let worker = job.launched.worker(rank);
    let slots = job.who.connections(rank);
    let open: Vec<Slot> = slots
        .iter()
        .copied()
        .filter(|&slot| job.index.is_open(slot))
        .collect();
    let main = job.main_connection(rank);
    let waiting = open
        .iter()
        .filter_map(|&slot| Some((job.index.connections[slot].wait.as_ref()?.since, slot)))
        .min()
        .map(|(_, slot)| slot);
    let shown = waiting.or(main).map(|slot| job.index.connections[slot]);
    let wait = waiting.and_then(|slot| job.index.connections[slot].wait.as_ref());
    let last = shown.and_then(|connection| connection.last.as_ref());
    let (state, mut doing) = state(job, rank, &open, main, latest);
    if job.is_left_out(rank) {
        doing.push_str("; its group works without it");
    }
    let sureness = slots.iter().filter_map(|&slot| job.who.identity(slot));
    let by_store = sureness.map(|identity| identity.sureness).max();
    let host = worker.map(|worker| shown_name(&worker.node.announced.host));
    RankReport {
        rank,
        state,
        doing,
        host: main.map(|slot| job.who.host(job.index, slot)).or(host),
        node_rank: worker.and_then(|worker| worker.node.announced.node_rank),
        pid: main
            .and_then(|slot| job.index.process(slot))
            .map(|(_, pid)| pid)
            .or(worker.map(|worker| worker.worker.pid)),
        sureness: match (by_store, worker) {
            (Some(sureness), _) => sureness,
            (None, Some(_)) => Sureness::Launched,
            (None, None) => Sureness::Unknown,
        },
        connections: open
            .iter()
            .map(|&slot| job.index.connections[slot].peer)
            .collect(),
        last_request: shown.and_then(last_request),
        last_request_ms: last.map(|last| milliseconds(job.ago(last.at))),
        waits_for: wait
            .and_then(|wait| wait.missing.first())
            .map(|key| text::shown(key)),
        waits_ms: wait.map(|wait| milliseconds(job.ago(wait.since))),
        debug_socket: worker.and_then(|worker| worker.worker.debug_socket.clone()),
        ..RankReport::default()
    }
}

fn state(
    job: &Job<'_>,
    rank: usize,
    open: &[Slot],
    main: Option<Slot>,
    latest: Option<Latest<'_>>,
) -> (RankState, String) {
    if let Some(worker) = job.launched.worker(rank) {
        if let Some((end, at)) = worker.end() {
            let is_in_order = end.exit_code == Some(0) && end.signal.is_none();
            let state = if is_in_order {
                RankState::Ended
            } else {
                RankState::Lost
            };
            let how = match (end.exit_code, end.signal) {
                (_, Some(signal)) => format!("was ended by signal {signal}"),
                (Some(code), None) => format!("exited with code {code}"),
                (None, None) => "ended".to_owned(),
            };
            return (state, format!("{how} {} ago", text::age(job.ago(at))));
        }
        if open.is_empty() && worker.is_node_lost() {
            return (RankState::Lost, "its launcher is lost".to_owned());
        }
    }
    let Some(main) = main else {
        return match job.launched.worker(rank) {
            Some(worker) => {
                let age = text::age(job.ago(worker.started()));
                (
                    RankState::Starting,
                    format!("started {age} ago, not connected"),
                )
            }
            None => (RankState::NotSeen, "has never connected".to_owned()),
        };
    };
    let progress = latest
        .filter(|(member, _)| member.published.writer == Some(main) || !open.is_empty())
        .map(|(member, _)| member.progress);
    if open.is_empty() {
        return closed_state(job, main, progress);
    }
    let (state, doing) = open_state(job, open, main, progress);
    match job.away_since(rank) {
        Some((since, _)) => {
            let age = text::age(job.ago(since));
            (state, format!("away for {age} with its relay; {doing}"))
        }
        None => (state, doing),
    }
}

fn closed_state(job: &Job<'_>, main: Slot, progress: Option<Progress>) -> (RankState, String) {
    let closed = job.index.connections[main].closed.map(|closed| closed.at);
    let ago = text::age(job.ago(closed.unwrap_or_default()));
    match progress {
        Some(Progress::Past) => (RankState::Ended, format!("closed its connection {ago} ago")),
        Some(Progress::GaveUp { member }) => (
            RankState::Lost,
            format!("gave up waiting for rank {member}, and left {ago} ago"),
        ),
        _ => (
            RankState::Lost,
            format!("closed its connection {ago} ago in init_process_group"),
        ),
    }
}

fn open_state(
    job: &Job<'_>,
    open: &[Slot],
    main: Slot,
    progress: Option<Progress>,
) -> (RankState, String) {
    let waits = open
        .iter()
        .filter_map(|&slot| job.index.connections[slot].wait.as_ref());
    if let Some(wait) = waits.min_by_key(|wait| wait.since) {
        let what = wait
            .missing
            .first()
            .map_or_else(|| "others".to_owned(), |key| job.meaning(key));
        let more = match wait.missing_count {
            0 | 1 => String::new(),
            count => format!(" and {} more", text::count(count - 1, "key")),
        };
        let age = text::age(job.ago(wait.since));
        return (
            RankState::Waiting,
            format!("waits for {what}{more} for {age}"),
        );
    }
    let idle = text::age(job.ago(job.index.last_active(main)));
    match progress {
        Some(Progress::Published) => (
            RankState::Connecting,
            format!("published its address {idle} ago and has read none"),
        ),
        Some(Progress::Reading { read }) => (
            RankState::Connecting,
            format!(
                "has read {} and nothing since {idle}",
                text::count(read, "address")
            ),
        ),
        Some(Progress::GaveUp { member }) => (
            RankState::Idle,
            format!("gave up waiting for rank {member} {idle} ago"),
        ),
        Some(Progress::Past) => (RankState::Idle, format!("idle for {idle}")),
        _ if job.index.is_joining(main) || job.index.connections[main].last.is_none() => (
            RankState::Connecting,
            format!("connected, has not published its address; idle for {idle}"),
        ),
        _ => (RankState::Idle, format!("idle for {idle}")),
    }
}

/// The command and key of a connection's last request.
pub(crate) fn last_request(connection: &ConnectionRecord) -> Option<String> {
    let last = connection.last.as_ref()?;
    let command = format!("{:?}", last.command);
    if last.key.is_empty() {
        return Some(command);
    }
    let cut = if last.is_key_cut { "…" } else { "" };
    let more = match last.key_count {
        0 | 1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    Some(format!("{command} {}{cut}{more}", text::shown(&last.key)))
}

/// The addresses of debug servers, built from the published keys of the ranks: `http://<host>:<port>`.
fn debug_urls(job: &Job<'_>) -> HashMap<usize, String> {
    let servers = job
        .index
        .others
        .iter()
        .filter_map(|(family, key)| match *family {
            Family::DebugServer { rank } => Some((rank, key)),
            _ => None,
        });
    servers
        .filter_map(|(rank, key)| {
            let text = str::from_utf8(&key.value_head).ok()?;
            let (host, port) = text
                .strip_prefix("http://")?
                .trim_end_matches('/')
                .rsplit_once(':')?;
            let port: u16 = port.parse().ok()?;
            let is_plain = !host.is_empty()
                && host.len() <= 253
                && host
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte));
            is_plain.then(|| (rank, format!("http://{host}:{port}")))
        })
        .collect()
}
