//! Catches panics of user code and returns them as text.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `code`; if it panics, returns the panic message.
///
/// Unwind safety: callers share no state with `code` that a panic could leave inconsistent.
pub(crate) fn caught<R>(code: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|payload| panic_text(&*payload).to_owned())
}

/// Runs `code`; logs its panic.
pub(crate) fn contained(what: &str, code: impl FnOnce()) {
    if let Err(text) = caught(code) {
        log::error!("{what} panicked: {text}");
    }
}

/// The message of a panic.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> &str {
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
    fn a_panic_becomes_its_text() {
        assert_eq!(caught(|| 7), Ok(7));
        assert_eq!(caught(|| panic!("plain")), Err::<(), _>("plain".to_owned()));
        let n = 3;
        assert_eq!(
            caught(|| panic!("with {n}")),
            Err::<(), _>("with 3".to_owned())
        );
        let other = caught(|| std::panic::panic_any(n));
        assert_eq!(
            other,
            Err::<(), _>("(the panic message is not text)".to_owned())
        );
    }
}
