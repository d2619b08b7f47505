//! What rounds that are over leave in the store of the rendezvous, which lives as long as the job (docs/rendezvous.md,
//! BOOT 9). Pure.

/// How many keys are removed at a time: so many requests delay no node. What is left is removed after the next round.
const KEYS_MAX: usize = 1024;

/// The keys in a round of its members: PyTorch's and ours. Others may belong to another job, whose run id is this one's
/// with a dot and a number, or to a program that has put them there.
const OF_ROUNDS: [&str; 2] = ["MASTER_ADDR", "MASTER_PORT"];
const BELOW_ROUNDS: [&str; 2] = ["torchelastic/", "c10d/"];

/// Those of `keys`, all keys of the store, that belong to rounds of `run_id` before the round `before`.
pub(crate) fn keys_before<'k>(
    keys: &'k [String],
    run_id: &str,
    before: i64,
) -> impl Iterator<Item = &'k String> {
    let prefix = format!("torch.rendezvous.{run_id}.");
    let is_old = move |key: &&String| {
        let round_and_name = key
            .strip_prefix(prefix.as_str())
            .and_then(|rest| rest.split_once('/'));
        round_and_name.is_some_and(|(round, name)| {
            round.parse().is_ok_and(|round: i64| round < before)
                && (OF_ROUNDS.contains(&name)
                    || BELOW_ROUNDS.iter().any(|below| name.starts_with(below)))
        })
    };
    keys.iter().filter(is_old).take(KEYS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/rendezvous.md, BOOT 9.
    #[test]
    fn only_keys_of_members_in_earlier_rounds_of_this_job_are_removed() {
        let table = [
            ("torch.rendezvous.job.4/MASTER_ADDR", true),
            ("torch.rendezvous.job.4/MASTER_PORT", true),
            ("torch.rendezvous.job.0/torchelastic/role_info/17", true),
            ("torch.rendezvous.job.4/c10d/relay/0/port", true),
            ("torch.rendezvous.job.5/MASTER_ADDR", false),
            ("torch.rendezvous.job.17/torchelastic/role_info/1", false),
            ("torch.rendezvous.job", false),
            ("torch.rendezvous.job.4", false),
            ("torch.rendezvous.job/notice/4", false),
            ("torch.rendezvous.other.4/MASTER_ADDR", false),
            ("torch.rendezvous.job.4.4/MASTER_ADDR", false),
            // Of the job `job.4`.
            ("torch.rendezvous.job.4/notice/1", false),
            ("torch.rendezvous.job.4/a/1", false),
            ("torch.rendezvous.job.4/of an embedder", false),
            ("torch.rendezvous.job.x/MASTER_ADDR", false),
            ("MASTER_ADDR", false),
            ("", false),
        ];
        let keys: Vec<String> = table.iter().map(|(key, _)| (*key).to_owned()).collect();
        let removed: Vec<&String> = keys_before(&keys, "job", 5).collect();
        let expected = table.iter().filter(|(_, is_old)| *is_old);
        let expected: Vec<&str> = expected.map(|(key, _)| *key).collect();
        assert_eq!(removed, expected);
    }

    #[test]
    fn a_number_of_keys_is_removed_at_a_time() {
        let key = |node| format!("torch.rendezvous.job.0/torchelastic/role_info/{node}");
        let keys: Vec<String> = (0..2 * KEYS_MAX).map(key).collect();
        assert_eq!(keys_before(&keys, "job", 1).count(), KEYS_MAX);
    }
}
