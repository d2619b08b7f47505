//! The addresses that PyTorch's debug servers publish in the store.

use std::sync::Arc;
use std::time::Duration;

use c10d_store::{PrefixStore, Store, StoreError};

use crate::http::StatusPages;
use crate::report::{RankReport, Report};

/// How long a store without status pages has to answer.
const KEYS_TIMEOUT: Duration = Duration::from_secs(5);

/// The prefix of the keys that PyTorch's debug servers use to publish their addresses.
const KEYS_PREFIX: &str = "debug_server";

/// After this many ranks without an address, no later ranks are looked up.
const GAP_MAX: usize = 64;

/// The most ranks that are looked for in a store without status pages.
const RANKS_MAX: usize = 1 << 16;

/// The most bytes of a published address.
const URL_BYTES_MAX: usize = 512;

/// The ranks whose debug servers have published an address, in a store that does not know more. Blocks for up to 5 s for
/// each request.
pub(super) fn report_from_keys(pages: &StatusPages) -> Result<Report, StoreError> {
    let store = PrefixStore::new(KEYS_PREFIX, Arc::new(pages.open_store(KEYS_TIMEOUT)?));
    let mut report = Report::default();
    let mut gap = 0;
    for rank in 0..RANKS_MAX {
        let key = format!("rank{rank}");
        let Some(value) = store.try_get(&key)? else {
            gap += 1;
            if gap >= GAP_MAX {
                break;
            }
            continue;
        };
        gap = 0;
        let url = String::from_utf8_lossy(&value[..value.len().min(URL_BYTES_MAX)]);
        report.ranks.push(RankReport {
            rank,
            debug_url: Some(url.into_owned()),
            ..RankReport::default()
        });
    }
    Ok(report)
}
