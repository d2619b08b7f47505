//! The thread that asks the server, so that keys are answered while it is slow.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::{self, JoinHandle};

use super::model::{Answer, Request};

const THREAD: &str = "top-fetch";

/// Executes requests one after the other.
#[derive(Debug)]
pub(super) struct Fetcher {
    requests: Option<Sender<Request>>,
    answers: Receiver<Answer>,
    thread: Option<JoinHandle<()>>,
    waiting: usize,
}

impl Fetcher {
    pub(super) fn start(
        mut fetch: impl FnMut(Request) -> Answer + Send + 'static,
    ) -> io::Result<Self> {
        let (requests, inbox) = mpsc::channel();
        let (outbox, answers) = mpsc::channel();
        let thread = thread::Builder::new()
            .name(THREAD.to_owned())
            .spawn(move || {
                while let Ok(request) = inbox.recv() {
                    if outbox.send(fetch(request)).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self {
            requests: Some(requests),
            answers,
            thread: Some(thread),
            waiting: 0,
        })
    }

    pub(super) fn request(&mut self, request: Request) {
        let sent = self.requests.as_ref().map(|to| to.send(request));
        if matches!(sent, Some(Ok(()))) {
            self.waiting += 1;
        }
    }

    /// An answer that has arrived; an error if there will be none any more.
    pub(super) fn take(&mut self) -> io::Result<Option<Answer>> {
        match self.answers.try_recv() {
            Ok(answer) => {
                self.waiting -= 1;
                Ok(Some(answer))
            }
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
        self.requests = None;
        if self.waiting == 0
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn wait_for(fetcher: &mut Fetcher) -> io::Result<Answer> {
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
    fn answers_come_in_order() {
        let fetch = |request| Answer::Failed(format!("{request:?}"));
        let mut fetcher = Fetcher::start(fetch).unwrap();
        fetcher.request(Request::Overview);
        fetcher.request(Request::Rows { chunk: 1 });
        for expected in ["Overview", "Rows { chunk: 1 }"] {
            let answer = wait_for(&mut fetcher).unwrap();
            assert!(matches!(answer, Answer::Failed(text) if text == expected));
        }
    }

    #[test]
    fn a_request_that_hangs_does_not_delay_the_end() {
        let (release, held) = mpsc::channel::<()>();
        let held = std::sync::Mutex::new(held);
        let mut fetcher = Fetcher::start(move |_| {
            let _ = held.lock().unwrap().recv();
            Answer::Failed(String::new())
        })
        .unwrap();
        fetcher.request(Request::Overview);
        drop(fetcher);
        drop(release);
    }

    #[test]
    fn a_panic_of_the_thread_is_an_error() {
        let mut fetcher = Fetcher::start(|_| panic!("a panic of this test")).unwrap();
        fetcher.request(Request::Overview);
        assert!(wait_for(&mut fetcher).is_err());
    }
}
