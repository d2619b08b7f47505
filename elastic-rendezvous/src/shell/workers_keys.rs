//! Which keys are the workers', where they use the rendezvous' store. Pure.

/// Ours: the run id of the job whose workers use the store.
pub(crate) const OWNER_KEY: &str = "c10d/workers_of";

const RENDEZVOUS_PREFIX: &str = "torch.rendezvous.";

/// The key of the state of a rendezvous.
pub(crate) fn state_key(run_id: &str) -> String {
    format!("{RENDEZVOUS_PREFIX}{run_id}")
}

/// The part after the run id in the names of a static rendezvous.
pub(crate) const STATIC_NAMES: &str = "/c10d/static/";

/// The run id in the key of a state, or of a node's name in a static rendezvous.
pub(crate) fn run_of(key: &str) -> Option<&str> {
    match key.strip_prefix(RENDEZVOUS_PREFIX) {
        Some(rest) => (!rest.contains('/')).then_some(rest),
        None => key.rsplit_once(STATIC_NAMES).map(|(run_id, _)| run_id),
    }
}

/// Whether a key stays when those of the workers are removed.
pub(crate) fn is_kept(key: &str) -> bool {
    key.starts_with(RENDEZVOUS_PREFIX) || key == OWNER_KEY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_keys_name_a_run() {
        for (key, run) in [
            ("torch.rendezvous.job", Some("job")),
            ("torch.rendezvous.job.3/MASTER_ADDR", None),
            ("job.5/c10d/static/17", Some("job.5")),
            ("job/torchelastic/agent/0", None),
            ("default_pg/0//cpu//0/1", None),
            ("", None),
        ] {
            assert_eq!(run_of(key), run, "{key}");
        }
    }

    #[test]
    fn keys_of_every_rendezvous_are_kept() {
        for (key, kept) in [
            ("torch.rendezvous.job", true),
            ("torch.rendezvous.other.3/MASTER_ADDR", true),
            ("c10d/workers_of", true),
            ("default_pg/0//cpu//0/1", false),
            ("", false),
        ] {
            assert_eq!(is_kept(key), kept, "{key}");
        }
    }
}
