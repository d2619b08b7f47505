//! What the ranks of a large job ask for when PyTorch 2.15's `nccl` begins: the first rank of each block of ranks sets an id of
//! NCCL, and all ranks wait for all ids and get them (`TORCH_NCCL_RANKS_PER_ROOT`).

use super::requests;

/// How many ranks share an id, by PyTorch's default.
const RANKS_PER_ROOT: usize = 128;

/// The length of `ncclUniqueId`.
const ID_BYTES: usize = 128;

/// The requests of such a job.
#[derive(Debug)]
pub(crate) struct NcclRoots {
    keys: Vec<String>,
    /// WAIT on all keys.
    pub(crate) wait: Vec<u8>,
    /// MULTI_GET of all keys.
    pub(crate) get: Vec<u8>,
    /// The answer to it.
    pub(crate) ids: Vec<u8>,
}

impl NcclRoots {
    /// The names of the keys are as long as PyTorch's, and begin with `prefix`.
    pub(crate) fn new(ranks: usize, prefix: &str) -> Self {
        let key = |block| format!("{prefix}/default_pg/0//cuda//0/nccl_storekey_0_{block}");
        let keys: Vec<String> = (0..ranks.div_ceil(RANKS_PER_ROOT)).map(key).collect();
        let names: Vec<&str> = keys.iter().map(String::as_str).collect();
        Self {
            wait: requests::wait_all(&names),
            get: requests::multi_get(&names),
            ids: requests::blob(&id()).repeat(names.len()),
            keys,
        }
    }

    /// The keys, to delete them.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(String::as_str)
    }

    /// What a rank sets before it waits, if it is the first of a block.
    pub(crate) fn set(&self, rank: usize) -> Option<Vec<u8>> {
        let is_root = rank.is_multiple_of(RANKS_PER_ROOT);
        is_root.then(|| requests::set(&self.keys[rank / RANKS_PER_ROOT], &id()))
    }
}

const fn id() -> [u8; ID_BYTES] {
    [7; ID_BYTES]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rank_of_each_block_sets_its_id() {
        let roots = NcclRoots::new(300, "bench");
        let who: Vec<usize> = (0..300).filter(|rank| roots.set(*rank).is_some()).collect();
        assert_eq!(who, [0, 128, 256]);
        assert_eq!(roots.keys().count(), 3);
        assert_eq!(roots.ids.len(), 3 * (8 + 128));
    }
}
