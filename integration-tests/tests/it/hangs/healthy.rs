//! Healthy jobs with long pauses cause no alarm, for 20 min per job: an hour of tests with two jobs at a time. `C10D_HANGS_SECONDS` sets another time.

use std::time::Duration;

use integration_tests::launcher::Kind;
use integration_tests::torch::script;
use integration_tests::watchdog::Watchdog;

use super::job::HangingJob;
use super::mode::Mode;

const LIMIT: Duration = Duration::from_secs(2000);

fn run(kind: &'static str) {
    if !Mode::is_healthy() {
        return;
    }
    let _watchdog = Watchdog::start(kind, LIMIT);
    let seconds = std::env::var("C10D_HANGS_SECONDS").unwrap_or_else(|_| "1200".to_owned());
    let words = [script("healthy_rank.py").into_os_string(), kind.into()];
    let variables = [("C10D_TEST_SECONDS", &*seconds)];
    let mut job = HangingJob::start_nodes([Kind::C10d; 2], Mode::Defaults, &words, &variables);
    job.expect_no_alarm();
}

macro_rules! healthy {
    ($($kind:ident)+) => {
        $(
            #[test]
            #[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
            fn $kind() {
                run(stringify!($kind));
            }
        )+
    };
}

healthy! {
    steady
    long_steps
    uneven_steps
    evaluation
    checkpoint
    compilation
}
