//! Model tests of the wait for all pending operations: `RUSTFLAGS='--cfg shuttle' cargo test --lib shuttle`.

use c10d_socket::{Cancel, Deadline};

use super::Activity;
use crate::sync::{Arc, thread};

#[test]
fn a_wait_ends_with_the_last_of_nested_operations_under_shuttle() {
    let model = || {
        let activity = Arc::new(Activity::default());
        activity.begin_call();
        let ending = thread::spawn({
            let activity = Arc::clone(&activity);
            move || {
                // The call triggers a callback on another thread.
                activity.begin();
                let calling_back = thread::spawn({
                    let activity = Arc::clone(&activity);
                    move || activity.end()
                });
                activity.end();
                calling_back.join().unwrap();
            }
        });
        // A missed wakeup is a deadlock, which the model checker reports.
        assert_eq!(activity.wait_idle(Deadline::NEVER, &Cancel::NEVER), Ok(()));
        assert_eq!(activity.under_way(), 0);
        ending.join().unwrap();
    };
    shuttle::check_dfs(model, Some(200_000));
    shuttle::check_random(model, 2000);
}

#[test]
fn two_concurrent_waits_both_end_under_shuttle() {
    let model = || {
        let activity = Arc::new(Activity::default());
        activity.begin();
        let other = thread::spawn({
            let activity = Arc::clone(&activity);
            move || activity.wait_idle(Deadline::NEVER, &Cancel::NEVER)
        });
        let ending = thread::spawn({
            let activity = Arc::clone(&activity);
            move || activity.end()
        });
        assert_eq!(activity.wait_idle(Deadline::NEVER, &Cancel::NEVER), Ok(()));
        assert_eq!(other.join().unwrap(), Ok(()));
        ending.join().unwrap();
    };
    shuttle::check_dfs(model, Some(200_000));
    shuttle::check_pct(model, 2000, 3);
}

#[test]
fn a_wait_with_a_deadline_returns_true_only_at_zero_under_shuttle() {
    shuttle::check_random(
        || {
            let activity = Arc::new(Activity::default());
            activity.begin();
            let ending = thread::spawn({
                let activity = Arc::clone(&activity);
                move || activity.end()
            });
            let later = std::time::Duration::from_secs(3600);
            let deadline = Deadline::after(std::time::Instant::now(), later);
            if activity.wait_idle(deadline, &Cancel::NEVER).is_ok() {
                assert_eq!(activity.under_way(), 0);
            }
            ending.join().unwrap();
            assert_eq!(activity.wait_idle(deadline, &Cancel::NEVER), Ok(()));
        },
        4000,
    );
}
