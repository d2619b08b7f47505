//! Lists of workers for messages, of bounded length.

/// How many workers a list names: a line of the log.
const SHOWN_MAX: usize = 16;

/// `local rank 0 (pid 17), 1 (pid 18)`; empty for none.
pub(crate) fn local_ranks_with_pids(workers: impl Iterator<Item = (usize, u32)>) -> String {
    let names = workers.map(|(local_rank, pid)| format!("{local_rank} (pid {pid})"));
    let names: Vec<String> = names.collect();
    if names.is_empty() {
        return String::new();
    }
    format!("local rank {}", bounded(&names))
}

/// `rank 4-7 = local rank 0-3, pid 17, 18, 19, 20`, so that a process shown by `ps` can be matched to its
/// rank.
pub(crate) fn ranks_with_pids(first_rank: usize, pids: &[u32]) -> String {
    let span = |first: usize| match pids.len() {
        0 | 1 => first.to_string(),
        count => format!("{first}-{}", first + count - 1),
    };
    let names: Vec<String> = pids.iter().map(u32::to_string).collect();
    format!(
        "rank {} = local rank {}, pid {}",
        span(first_rank),
        span(0),
        bounded(&names)
    )
}

/// `1, 2, 3 and 4 more`.
pub(crate) fn ranks(ranks: &[usize]) -> String {
    let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
    bounded(&ranks)
}

fn bounded(names: &[String]) -> String {
    let shown = names.len().min(SHOWN_MAX);
    let mut text = names[..shown].join(", ");
    if names.len() > shown {
        text.push_str(&format!(" and {} more", names.len() - shown));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_each_worker_up_to_a_bound() {
        assert_eq!(local_ranks_with_pids([].into_iter()), "");
        let two = local_ranks_with_pids([(0, 17), (2, 19)].into_iter());
        assert_eq!(two, "local rank 0 (pid 17), 2 (pid 19)");
        assert_eq!(ranks_with_pids(3, &[9]), "rank 3 = local rank 0, pid 9");
        assert_eq!(
            ranks_with_pids(4, &[7, 9]),
            "rank 4-5 = local rank 0-1, pid 7, 9"
        );
        let many: Vec<u32> = (100..1100).collect();
        let text = ranks_with_pids(0, &many);
        assert!(text.starts_with("rank 0-999 = local rank 0-999, pid 100, 101, "));
        assert!(text.ends_with(", 115 and 984 more"), "{text}");
    }
}
