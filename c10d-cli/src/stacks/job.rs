//! The job behind a store.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use c10d_inspect::workers::Job;
use c10d_inspect::{RankReport, Report};
use c10d_socket::{Deadline, resolve};
use c10d_store::{PrefixStore, Store, TcpStore};

use crate::failure::Failure;
use crate::status::{StatusArgs, StatusPages};
use crate::status_error::StatusError;

/// How long looking up the name of the store may take.
const NAME_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a store without status pages has to answer.
const KEYS_TIMEOUT: Duration = Duration::from_secs(5);

/// The prefix of the keys under which PyTorch's debug servers publish their addresses.
const KEYS_PREFIX: &str = "debug_server";

/// After this many ranks without an address, no later ones are looked for.
const GAP_MAX: usize = 64;

/// The most ranks that are looked for in a store without status pages.
const RANKS_MAX: usize = 1 << 16;

/// The most bytes of a published address.
const URL_BYTES_MAX: usize = 512;

/// Reads the ranks from the status pages of the store, or their addresses from the keys of a store without them.
///
/// # Errors
/// The store cannot be asked, or knows no rank.
pub(crate) fn load(args: &StatusArgs) -> Result<Job, Failure> {
    let pages = args.open_job()?;
    let deadline = Deadline::after(Instant::now(), NAME_TIMEOUT);
    let addresses = resolve(pages.server(), deadline).unwrap_or_default();
    let (report, nobody) = match pages.get::<Report>("/why.json?ranks=all") {
        Ok(report) => (report, "the store knows no rank yet"),
        Err(StatusError::PyTorchs { .. } | StatusError::TurnedOff { .. }) => (
            report_from_keys(&pages)?,
            "the store has no status pages, and no debug server has published its address in it: start the ranks with \
             `c10d run --debug-server`, or call torch.distributed.debug.start_debug_server() in them",
        ),
        Err(error) => return Err(error.into()),
    };
    if report.ranks.is_empty() {
        return Err(Failure::No(nobody.to_owned()));
    }
    let address = addresses.first().map(SocketAddr::ip);
    Ok(Job::new(report, address, pages.token()))
}

/// The ranks whose debug servers have published an address, in a store that does not know more.
fn report_from_keys(pages: &StatusPages) -> Result<Report, Failure> {
    let server = pages.server();
    let options = pages.client_options().with_timeout(KEYS_TIMEOUT);
    let store = TcpStore::open(server.host(), server.port(), options)?;
    let store = PrefixStore::new(KEYS_PREFIX, store);
    let mut report = Report::default();
    let mut gap = 0;
    for rank in 0..RANKS_MAX {
        let key = format!("rank{rank}");
        // A GET of a missing key would wait.
        if !store.check(&[key.as_str()])? {
            gap += 1;
            if gap >= GAP_MAX {
                break;
            }
            continue;
        }
        gap = 0;
        let value = store.get(&key)?;
        let mut found = RankReport::default();
        found.rank = rank;
        let url = String::from_utf8_lossy(&value[..value.len().min(URL_BYTES_MAX)]);
        found.debug_url = Some(url.into_owned());
        report.ranks.push(found);
    }
    Ok(report)
}
