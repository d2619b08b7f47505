//! Where explanations are written in a process of torchrun.

use std::io::{self, Write as _};

use elastic_agent::Screen;

/// Standard error, which torchrun's log goes to. Needs no lock of Python: the agent may hold it for long.
#[derive(Debug)]
pub(crate) struct TorchrunLog;

impl Screen for TorchrunLog {
    fn message(&self, text: &str) {
        self.text(&format!("c10d-rs: {text}"));
    }

    fn text(&self, text: &str) {
        // A closed standard error takes no text.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}
