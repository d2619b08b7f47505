//! `Debug` of errors.

/// Has `Debug` print the `Display` text: `unwrap` and a `main` that returns the error show it.
macro_rules! debug_as_display {
    ($error:ty) => {
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}
