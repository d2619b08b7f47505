//! Shows the output of workers on one stream of the console.
//!
//! A thread owns the stream. A slow console never delays workers whose output is kept in files; it delays those that
//! write to a pipe, as it would without the thread.

use std::io::PipeReader;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::console::Sink;
use super::pipe::{CapturedPipe, PipeState};
use super::shown_log::{LineCopy, ShownLog};
use super::thread::{READ_BYTES_MAX, wait};

/// How often files are read: often enough to look live, and 20 reads a second cost nothing.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(50);

/// The same for output in memory, which has little room: a busy worker fills it in some milliseconds.
const MEMORY_INTERVAL: Duration = Duration::from_millis(2);

/// What one stream shows.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// When the first output was read.
    pub(crate) first_read: Arc<OnceLock<Instant>>,
    pub(crate) files: Vec<ShownLog>,
    pub(crate) pipes: Vec<CapturedPipe>,
    pub(crate) copy: Option<LineCopy>,
}

impl Sources {
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.pipes.is_empty()
    }
}

/// Shows `sources` until `finish_seen` is closed, and then what is left.
pub(super) fn run(mut sources: Sources, mut sink: Sink, finish_seen: &PipeReader) {
    let mut buffer = vec![0; READ_BYTES_MAX];
    let mut is_finishing = false;
    loop {
        let mut may_have_more = false;
        for file in &mut sources.files {
            may_have_more |= file.show_once(&mut buffer, &mut sink, &mut sources.copy);
        }
        sources
            .pipes
            .retain_mut(|pipe| match pipe.read_once(&mut buffer, &mut sink) {
                PipeState::Read(_) => {
                    may_have_more = true;
                    true
                }
                PipeState::Empty => true,
                PipeState::Ended => false,
            });
        if may_have_more {
            sources.first_read.get_or_init(Instant::now);
        }
        if is_finishing {
            if may_have_more {
                continue;
            }
            break;
        }
        let timeout = if may_have_more {
            Some(Duration::ZERO)
        } else if sources.files.iter().any(|file| file.is_in_memory) {
            Some(MEMORY_INTERVAL)
        } else {
            (!sources.files.is_empty()).then_some(FOLLOW_INTERVAL)
        };
        // Checked each time, as a worker's output may never pause.
        let pipes = sources.pipes.iter().map(|it| it.pipe.descriptor());
        if wait(pipes, finish_seen, timeout) {
            is_finishing = true;
            sources.pipes.iter_mut().for_each(|it| it.pipe.finish());
        }
    }
    for file in &mut sources.files {
        file.end(&mut sink, &mut sources.copy);
    }
}
