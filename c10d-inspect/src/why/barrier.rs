//! Barriers that some have reached and others have not.

use std::collections::BTreeSet;

use super::draft::{DRAFTS_MAX, Draft};
use super::nccl::waiters;
use crate::job::{Job, WAIT_GRACE, Waiting};
use crate::keys::{Family, is_hash};
use crate::report::FindingKind;
use crate::text;

pub(super) fn find(job: &Job<'_>, drafts: &mut Vec<Draft>) {
    let size_now = job.ranks_now().map(|ranks| ranks.len());
    for (key, waiting) in &job.waits {
        if drafts.len() > DRAFTS_MAX {
            return;
        }
        if job.ago(waiting.since) < WAIT_GRACE {
            continue;
        }
        let draft = match (waiting.barrier, job.family(key)) {
            (Some(clients), _) => {
                let name = format!("the barrier {}", text::shown(key));
                draft(job, waiting, &name, Some(clients), None)
            }
            (
                None,
                Family::InitBarrier {
                    group,
                    is_last: true,
                },
            ) => {
                let size = size_now.filter(|_| !is_hash(group));
                let name = match group {
                    b"0" => "the barrier of init_process_group".to_owned(),
                    group => format!("the barrier of new_group (group {})", text::shown(group)),
                };
                let counter = key.strip_suffix(b":last_worker").unwrap_or(key);
                draft(job, waiting, &name, size, count(job, counter))
            }
            (
                None,
                Family::Barrier {
                    name,
                    is_last: true,
                },
            ) => {
                let mut counter = key.strip_suffix(b"last_member").unwrap_or(key).to_vec();
                counter.extend(b"num_members");
                let name = format!("the barrier {}", text::shown(name));
                draft(job, waiting, &name, None, count(job, &counter))
            }
            (
                None,
                Family::InProcessBarrier {
                    name,
                    is_last: true,
                },
            ) => {
                let counter = key.strip_suffix(b":last_worker_arrived").unwrap_or(key);
                let name = format!("the barrier {} of nvidia-resiliency-ext", text::shown(name));
                draft(job, waiting, &name, None, count(job, counter))
            }
            _ => continue,
        };
        drafts.push(draft);
    }
}

/// The number that a key holds.
fn count(job: &Job<'_>, key: &[u8]) -> Option<usize> {
    let mut others = job.index.others.iter();
    let (_, record) = others.find(|(_, record)| &*record.key == key)?;
    text::decimal(&record.value_head)
}

fn draft(
    job: &Job<'_>,
    waiting: &Waiting,
    name: &str,
    expected: Option<usize>,
    counted: Option<usize>,
) -> Draft {
    let ranks: BTreeSet<usize> = waiting
        .slots
        .iter()
        .filter_map(|&slot| job.who.rank(slot))
        .collect();
    let arrived = counted.unwrap_or(waiting.slots.len());
    let who = waiters(&ranks, &waiting.slots);
    let wait = text::verb(waiting.slots.len(), "has waited", "have waited");
    let mut text = format!(
        "{who} {wait} at {name} for {}",
        text::age(job.ago(waiting.since))
    );
    match expected {
        Some(expected) => text.push_str(&format!(": {arrived} of {expected} have arrived.")),
        None => text.push_str(&format!(": {arrived} arrived.")),
    }
    // Who is absent is only sure if it is known who is not, and if the numbers agree.
    let is_known = ranks.len() == waiting.slots.len() && arrived == waiting.slots.len();
    let absent: BTreeSet<usize> = match job.ranks_now() {
        Some(all) if is_known && expected == Some(all.len()) => {
            all.difference(&ranks).copied().collect()
        }
        _ => BTreeSet::new(),
    };
    if !absent.is_empty() {
        let described: Vec<String> = absent
            .iter()
            .take(3)
            .map(|&rank| format!("rank {rank}: {}", job.status(rank)))
            .collect();
        text.push_str(&format!(
            " {} {} not ({}).",
            text::ranks_start(&absent),
            text::verb(absent.len(), "has", "have"),
            described.join("; ")
        ));
    }
    Draft::new(FindingKind::Barrier, text, waiting.since)
        .caused_by(absent)
        .waited_by(ranks)
}

#[cfg(test)]
mod tests {
    use crate::announced::AnnouncedProcess;
    use crate::report::FindingKind;
    use crate::sim::Script;

    /// Each rank is a shell that runs `c10d store barrier`, whose client sends no process id.
    #[test]
    fn ranks_of_shell_scripts_are_known_by_their_processes() {
        let mut script = Script::new();
        let processes = script.processes(4);
        let (launcher, mut node) = script.launch(&processes);
        for worker in &mut node.workers {
            worker.processes[0].command = Some("bash".to_owned());
            if worker.rank == 2 {
                continue;
            }
            let address = script.address();
            let connection = script.store.connect(address, 0xC10D_0000);
            script.store.barrier(connection, "epoch", 4);
            worker.processes.push(AnnouncedProcess {
                pid: 5000 + worker.pid,
                parent: Some(worker.pid),
                command: Some("c10d".to_owned()),
                store_connections: vec![address],
                ..AnnouncedProcess::default()
            });
        }
        script.store.announce(launcher, &node);
        script.pass(10.0);
        let cause = script.cause();
        assert_eq!(cause.kind, FindingKind::Barrier);
        assert_eq!(
            cause.text,
            "Ranks 0, 1 and 3 have waited at the barrier epoch for 10 s: 3 of 4 have arrived. Rank 2 has not (rank 2: pid 4102 on vm, \
             not connected)."
        );
        assert_eq!(cause.culprits.0.into_iter().collect::<Vec<_>>(), [2]);
    }
}
