//! Any text as a `host:port`: what is accepted prints as a text that means the same.
#![no_main]

use c10d_socket::{HostPort, is_loopback_name};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match text.parse::<HostPort>() {
        Ok(target) => {
            assert_eq!(target.to_string().parse(), Ok(target.clone()));
            assert!(!target.host().is_empty());
            _ = is_loopback_name(target.host());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
