//! A worker of a job in Rust: joins the group that its environment describes, takes part in a broadcast from each rank, an
//! all-gather, a barrier and finish, and prints what it got as JSON, as `python/group_member.py` does.
//!
//! With the argument `fail-once`, rank 1 fails before its first restart, in the middle of a broadcast.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a test reads what it prints")]

use std::env;
use std::error::Error;
use std::time::Duration;

use c10d::GroupOptions;

fn main() -> Result<(), Box<dyn Error>> {
    let options = GroupOptions::default().with_timeout(Duration::from_secs(60));
    let group = options.init_from_env()?;
    let restarts = env::var("TORCHELASTIC_RESTART_COUNT").unwrap_or_default();
    let fails = env::args().nth(1).as_deref() == Some("fail-once") && restarts == "0";
    let mut got = Vec::new();
    for root in 0..group.world_size() {
        if fails && root == 1 && group.rank() == 1 {
            return Err("fails once".into());
        }
        let value = format!("value of {root}");
        let given = (group.rank() == root).then_some(value.as_bytes());
        got.push(group.broadcast(root, given)?);
    }
    got.extend(group.all_gather_bytes(format!("part of {}", group.rank()).as_bytes())?);
    group.barrier()?;
    group.finish()?;
    let got: Vec<_> = got
        .iter()
        .map(|value| String::from_utf8_lossy(value))
        .collect();
    println!("{}", serde_json::json!({ "got": got }));
    Ok(())
}
