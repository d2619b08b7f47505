//! Which processes belong to which worker. Pure.

use std::collections::HashMap;

use c10d_socket::ProcessStat;

/// For each worker, by its process id, the processes that belong to it: itself, its descendants, and others
/// of its session, which are descendants that lost their parent. In the order of their ids, the worker
/// first. A process belongs to the nearest worker.
pub(super) fn by_worker(processes: &HashMap<u32, ProcessStat>, workers: &[u32]) -> Vec<Vec<u32>> {
    let positions = workers.iter().enumerate();
    let positions: HashMap<u32, usize> = positions.map(|(at, worker)| (*worker, at)).collect();
    let mut members = vec![Vec::new(); workers.len()];
    for &pid in processes.keys() {
        if let Some(position) = owner(pid, processes, &positions) {
            members[position].push(pid);
        }
    }
    for (members, worker) in members.iter_mut().zip(workers) {
        members.sort_unstable_by_key(|pid| (pid != worker, *pid));
    }
    members
}

fn owner(
    pid: u32,
    processes: &HashMap<u32, ProcessStat>,
    workers: &HashMap<u32, usize>,
) -> Option<usize> {
    let mut ancestor = pid;
    // The files are read one after the other, so a reused id can make a circle.
    for _ in 0..processes.len() {
        if let Some(&position) = workers.get(&ancestor) {
            return Some(position);
        }
        let Some(stat) = processes.get(&ancestor) else {
            break;
        };
        ancestor = stat.parent;
    }
    workers.get(&processes.get(&pid)?.session).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(parent: u32, session: u32) -> ProcessStat {
        let mut stat = ProcessStat::default();
        stat.parent = parent;
        stat.session = session;
        stat
    }

    #[test]
    fn descendants_and_orphans_of_the_session_belong_to_a_worker() {
        let processes = HashMap::from([
            (1, process(0, 1)),
            (100, process(1, 50)),
            // A shell, its Python, that one's loader, which leads a session of its own.
            (200, process(100, 200)),
            (90, process(200, 200)),
            (91, process(90, 91)),
            // Its parent has ended.
            (92, process(1, 200)),
            (300, process(100, 300)),
            // A daemon that left the session.
            (400, process(1, 400)),
        ]);
        assert_eq!(
            by_worker(&processes, &[200, 300, 500]),
            [vec![200, 90, 91, 92], vec![300], vec![]]
        );
    }

    #[test]
    fn a_circle_of_parents_ends() {
        let processes = HashMap::from([(7, process(8, 7)), (8, process(7, 8))]);
        assert_eq!(by_worker(&processes, &[9]), [Vec::<u32>::new()]);
    }
}
