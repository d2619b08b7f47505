//! Catches panics of user code and returns them as text.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `code`; if it panics, returns the panic message. Does not panic itself, even if the destructor of the panic's
/// payload does.
///
/// Unwind safety: callers share no state with `code` that a panic could leave inconsistent.
pub fn catch_panic<R>(code: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|payload| {
        let text = panic_text(&*payload).to_owned();
        discard(payload);
        text
    })
}

/// Drops the payload of a panic, whose destructor may also panic.
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        // This one's destructor may panic as well, and so on.
        mem::forget(another);
    }
}

/// Runs `code`; logs its panic.
pub(crate) fn contained(what: &str, code: impl FnOnce()) {
    if let Err(text) = catch_panic(code) {
        log::error!("{what} panicked: {text}");
    }
}

/// The message of a panic.
fn panic_text(payload: &(dyn Any + Send)) -> &str {
    if let Some(text) = payload.downcast_ref::<&'static str>() {
        text
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text
    } else {
        "(the panic message is not text)"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_whose_destructor_panics_is_dropped() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                std::panic::panic_any(Self);
            }
        }
        let caught = catch_panic(|| std::panic::panic_any(Bomb));
        let text = "(the panic message is not text)".to_owned();
        assert_eq!(caught, Err::<(), _>(text));
    }

    #[test]
    fn a_panic_becomes_its_text() {
        assert_eq!(catch_panic(|| 7), Ok(7));
        assert_eq!(
            catch_panic(|| panic!("plain")),
            Err::<(), _>("plain".to_owned())
        );
        let n = 3;
        assert_eq!(
            catch_panic(|| panic!("with {n}")),
            Err::<(), _>("with 3".to_owned())
        );
        let other = catch_panic(|| std::panic::panic_any(n));
        assert_eq!(
            other,
            Err::<(), _>("(the panic message is not text)".to_owned())
        );
    }
}
