//! Options that a benchmark refuses before it starts.

use crate::process::run;

#[test]
fn invalid_options_have_exit_code_2() {
    for words in [
        "store --ranks=0",
        "store --seconds=0",
        "store --seconds=nan",
        "store --only=nothing",
        "store --server-pid=1",
        "relay --ranks-per-node=1025",
        "rendezvous --nodes=0",
        "rpc --rounds=0",
        "rpc --seconds=-1",
        "rref --live=10000001",
    ] {
        let ended = run(words.split(' '));
        assert_eq!(ended.code, Some(2), "{words}: {ended:?}");
    }
}
