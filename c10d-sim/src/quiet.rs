//! Panics that are expected, and so print nothing.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Whether this panics, which is not printed: for histories that are expected to break a law.
pub fn panics(run: impl FnOnce()) -> bool {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !IS_QUIET.get() {
                usual(panic);
            }
        }));
    });
    let before = IS_QUIET.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    IS_QUIET.set(before);
    outcome.is_err()
}

/// Whether a panic would print nothing.
pub(crate) fn is_quiet() -> bool {
    IS_QUIET.get()
}

/// Prints a line, which the tests show if they fail.
pub(crate) fn print(line: &str) {
    #[expect(clippy::print_stderr, reason = "for the reader of a failed test")]
    {
        eprintln!("{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::panics;

    #[test]
    fn a_panic_is_noticed_in_another_one() {
        assert!(!panics(|| ()));
        assert!(panics(|| {
            assert!(panics(|| panic!("inside")));
            panic!("outside");
        }));
    }
}
