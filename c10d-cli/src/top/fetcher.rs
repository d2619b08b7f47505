//! The thread that asks the server, so that keys are answered while it is slow.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::model::Answer;

const THREAD: &str = "top-fetch";

/// The pause after an answer, and how many times as long as the answer took it is at least: a report on 16,384 ranks
/// has some MiB.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_SHARE: u32 = 9;

/// How long the end waits for the thread, which has nothing to do but to notice it.
const END_MAX: Duration = Duration::from_millis(50);

/// Asks again and again.
#[derive(Debug)]
pub(super) struct Fetcher {
    /// Ends the thread when it is dropped.
    end: Option<Sender<()>>,
    answers: Receiver<Result<Answer, String>>,
    thread: Option<JoinHandle<()>>,
}

impl Fetcher {
    /// Asks by `fetch`, the first time after a pause.
    pub(super) fn start(
        mut fetch: impl FnMut() -> Result<Answer, String> + Send + 'static,
    ) -> io::Result<Self> {
        let (end, ended) = mpsc::channel();
        let (outbox, answers) = mpsc::channel();
        let run = move || {
            let mut pause = PAUSE_MIN;
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let started = Instant::now();
                if outbox.send(fetch()).is_err() {
                    return;
                }
                pause = PAUSE_MIN.max(started.elapsed() * PAUSE_SHARE);
            }
        };
        Ok(Self {
            end: Some(end),
            answers,
            thread: Some(thread::Builder::new().name(THREAD.to_owned()).spawn(run)?),
        })
    }

    /// An answer that has arrived; an error if there will be none any more.
    pub(super) fn take(&self) -> io::Result<Option<Result<Answer, String>>> {
        match self.answers.try_recv() {
            Ok(answer) => Ok(Some(answer)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => {
                Err(io::Error::other(format!("thread {THREAD} panicked")))
            }
        }
    }
}

impl Drop for Fetcher {
    /// Leaves the thread behind if it waits for a slow server, so that the command ends at once.
    fn drop(&mut self) {
        self.end = None;
        let ended = self.answers.recv_timeout(END_MAX).err();
        if ended == Some(RecvTimeoutError::Disconnected)
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_for(fetcher: &Fetcher) -> io::Result<Result<Answer, String>> {
        let started = Instant::now();
        loop {
            match fetcher.take() {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => thread::sleep(Duration::from_millis(1)),
                Err(error) => return Err(error),
            }
            assert!(started.elapsed() < Duration::from_secs(60));
        }
    }

    #[test]
    fn it_asks_again_after_each_answer() {
        let mut asked = 0;
        let fetcher = Fetcher::start(move || {
            asked += 1;
            Err(asked.to_string())
        })
        .unwrap();
        for expected in ["1", "2"] {
            let answer = wait_for(&fetcher).unwrap();
            assert_eq!(answer.unwrap_err(), expected);
        }
    }

    #[test]
    fn a_request_that_hangs_does_not_delay_the_end() {
        let (release, held) = mpsc::channel::<()>();
        let (asks, asked) = mpsc::channel();
        let fetcher = Fetcher::start(move || {
            asks.send(()).unwrap();
            let _ = held.recv();
            Err(String::new())
        })
        .unwrap();
        asked.recv().unwrap();
        drop(fetcher);
        drop(release);
    }

    #[test]
    fn a_panic_of_the_thread_is_an_error() {
        let fetcher = Fetcher::start(|| panic!("a panic of this test")).unwrap();
        assert!(wait_for(&fetcher).is_err());
    }
}
