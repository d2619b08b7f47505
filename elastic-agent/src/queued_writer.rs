//! Writes to a stream that may accept nothing, on a separate thread, so that nothing else waits for the stream.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::threads::lock;

/// How many bytes wait for the stream before later items are dropped: thousands of log lines, or the output of many
/// failed workers.
const BACKLOG_BYTES_MAX: usize = 1 << 20;

/// How long [`finish`](QueuedWriter::finish) waits for a stream that is slow, but accepts bytes.
const FINISH_MAX: Duration = Duration::from_secs(60);

/// A function that converts queued items into bytes.
pub type Render<T> = dyn FnMut(Next<T>) -> Vec<u8> + Send;

/// A queue, and the thread that writes its items to a stream. Dropping it joins the thread if everything is written,
/// and abandons the thread otherwise, because a write that the stream does not accept cannot be cancelled.
///
/// ```
/// use std::io;
/// use std::time::Duration;
///
/// use elastic_agent::{Next, QueuedWriter};
///
/// let render = |next| match next {
///     Next::Item(line) => line,
///     Next::Gap(count) => format!("({count} lines were dropped)\n").into_bytes(),
/// };
/// let writer = QueuedWriter::start("log", io::stderr(), Box::new(render), drop)?;
/// let line = b"a line\n".to_vec();
/// writer.push(line.len(), line);
/// assert!(writer.finish(Duration::from_secs(1)));
/// # Ok::<(), io::Error>(())
/// ```
#[derive(Debug)]
pub struct QueuedWriter<T> {
    shared: Arc<Shared<T>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    backlog: Backlog<T>,
    /// When the stream last accepted bytes of the current item, or when writing began; `None` while idle.
    stuck_since: Option<Instant>,
    is_closed: bool,
}

impl<T: Send + 'static> QueuedWriter<T> {
    /// Starts the thread `name`. If an item cannot be written, `on_error` gets the error, and the thread continues with
    /// the next item.
    ///
    /// # Errors
    /// An error of the operating system if it has no thread left.
    pub fn start(
        name: &str,
        mut stream: impl Write + AsFd + Send + 'static,
        mut render: Box<Render<T>>,
        mut on_error: impl FnMut(io::Error) + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                backlog: Backlog::new(BACKLOG_BYTES_MAX),
                stuck_since: None,
                is_closed: false,
            }),
            changed: Condvar::new(),
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                while let Some(next) = of_thread.next() {
                    let bytes = render(next);
                    if let Err(error) = of_thread.write(&mut stream, &bytes) {
                        on_error(error);
                    }
                }
            })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }
}

impl<T> QueuedWriter<T> {
    /// Queues an item of about this length. Drops it if the stream is too far behind; the next written item reports it.
    pub fn push(&self, bytes: usize, item: T) {
        lock(&self.shared.state).backlog.push(bytes, item);
        self.shared.changed.notify_all();
    }

    /// Waits until everything is written, and returns whether it is. Returns false when the stream has accepted nothing
    /// for `stuck_max`, which counts from before this call, or after a minute in total.
    pub fn finish(&self, stuck_max: Duration) -> bool {
        let started = Instant::now();
        let mut state = lock(&self.shared.state);
        loop {
            if state.backlog.is_empty() && state.stuck_since.is_none() {
                return true;
            }
            let stuck = state.stuck_since.unwrap_or(started).elapsed();
            let left = stuck_max
                .saturating_sub(stuck)
                .min(FINISH_MAX.saturating_sub(started.elapsed()));
            if left.is_zero() {
                return false;
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Drop for QueuedWriter<T> {
    fn drop(&mut self) {
        let is_written = self.finish(Duration::ZERO);
        lock(&self.shared.state).is_closed = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take().filter(|_| is_written)
            && thread.join().is_err()
        {
            log::error!("a thread that writes queued text panicked");
        }
    }
}

impl<T> Shared<T> {
    /// Waits for the next item, which then counts as being written; `None` when the queue is closed and empty.
    fn next(&self) -> Option<Next<T>> {
        let mut state = lock(&self.state);
        state.stuck_since = None;
        loop {
            if let Some(next) = state.backlog.pop() {
                state.stuck_since = Some(Instant::now());
                return Some(next);
            }
            self.changed.notify_all();
            if state.is_closed {
                return None;
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn write(&self, stream: &mut (impl Write + AsFd), mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match stream.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    bytes = &bytes[count..];
                    lock(&self.state).stuck_since = Some(Instant::now());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Another program has made the stream non-blocking.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let mut entries = [PollFd::new(stream, PollFlags::OUT)];
                    match poll(&mut entries, None) {
                        Ok(_) | Err(rustix::io::Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                Err(error) => return Err(error),
            }
        }
        stream.flush()
    }
}

/// The queue. Adding never waits.
///
/// Once it has dropped an item, it drops all until it is half empty: a stream that is slow, rather than stopped, gets
/// long runs of items with few gaps.
#[derive(Debug)]
struct Backlog<T> {
    entries: VecDeque<Entry<T>>,
    bytes: usize,
    bytes_max: usize,
    /// The number of items that were dropped after the last gap.
    dropped: u64,
}

#[derive(Debug)]
enum Entry<T> {
    Item { bytes: usize, item: T },
    Gap(u64),
}

/// The next part of the stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// The oldest item that was not written yet.
    Item(T),
    /// A gap in which this many items were dropped.
    Gap(u64),
}

impl<T> Backlog<T> {
    /// An empty queue for items of `bytes_max` bytes in all, each of at least one byte. An empty queue also takes a longer item.
    const fn new(bytes_max: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: 0,
            bytes_max,
            dropped: 0,
        }
    }

    /// Adds an item of this length, or drops it.
    fn push(&mut self, bytes: usize, item: T) {
        let room = if self.dropped == 0 {
            self.bytes_max
        } else {
            self.bytes_max / 2
        };
        if self.bytes > 0 && self.bytes.saturating_add(bytes) > room {
            self.dropped += 1;
            return;
        }
        if self.dropped > 0 {
            self.entries.push_back(Entry::Gap(self.dropped));
            self.dropped = 0;
        }
        self.bytes += bytes;
        self.entries.push_back(Entry::Item { bytes, item });
    }

    /// Removes the oldest.
    fn pop(&mut self) -> Option<Next<T>> {
        match self.entries.pop_front() {
            Some(Entry::Item { bytes, item }) => {
                self.bytes -= bytes;
                Some(Next::Item(item))
            }
            Some(Entry::Gap(dropped)) => Some(Next::Gap(dropped)),
            None if self.dropped > 0 => Some(Next::Gap(std::mem::take(&mut self.dropped))),
            None => None,
        }
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.dropped == 0
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Read};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn writer() -> (QueuedWriter<Vec<u8>>, PipeReader) {
        let (reader, stream) = io::pipe().unwrap();
        let render = |next| match next {
            Next::Item(bytes) => bytes,
            Next::Gap(dropped) => format!("{dropped} dropped\n").into_bytes(),
        };
        let writer =
            QueuedWriter::start("test", stream, Box::new(render), |error| panic!("{error}"));
        (writer.unwrap(), reader)
    }

    #[test]
    fn a_stream_that_accepts_nothing_delays_no_author_and_gets_the_rest_later() {
        const LINE: &[u8; 1024] = &[b'\n'; 1024];
        let (writer, mut reader) = writer();
        let lines = 4 * BACKLOG_BYTES_MAX / LINE.len();
        for _ in 0..lines {
            writer.push(LINE.len(), LINE.to_vec());
        }
        // The thread writes as much as the pipe takes, and is then stuck.
        while lock(&writer.shared.state).stuck_since.is_none() {
            std::thread::yield_now();
        }
        assert!(!writer.finish(Duration::from_millis(1)));

        let reading = std::thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).unwrap();
            text
        });
        assert!(writer.finish(LONG));
        writer.push(4, b"end\n".to_vec());
        drop(writer);
        let text = reading.join().unwrap();
        let (written, rest) = text.split_once(|it: char| it.is_ascii_digit()).map_or_else(
            || panic!("nothing was dropped: {} bytes", text.len()),
            |(written, _)| (written.len() / LINE.len(), &text[written.len()..]),
        );
        let (dropped, rest) = rest.split_once(" dropped\n").unwrap();
        assert_eq!(written + dropped.parse::<usize>().unwrap(), lines);
        assert_eq!(rest, "end\n");
    }

    #[test]
    fn an_error_concerns_one_item() {
        let (reader, stream) = io::pipe().unwrap();
        drop(reader);
        let (failed, failures) = std::sync::mpsc::channel();
        let render = |next| match next {
            Next::Item(bytes) => bytes,
            Next::Gap(_) => Vec::new(),
        };
        let writer = QueuedWriter::start("test", stream, Box::new(render), move |error| {
            failed.send(error.kind()).unwrap();
        });
        let writer = writer.unwrap();
        for _ in 0..2 {
            writer.push(1, b"x".to_vec());
            assert_eq!(failures.recv().unwrap(), io::ErrorKind::BrokenPipe);
        }
        assert!(writer.finish(LONG));
    }

    fn drain<T>(backlog: &mut Backlog<T>) -> Vec<Next<T>> {
        std::iter::from_fn(|| backlog.pop()).collect()
    }

    #[test]
    fn what_does_not_fit_is_counted_where_it_is_missing() {
        let mut backlog = Backlog::new(40);
        for item in 0..6 {
            backlog.push(10, item);
        }
        assert_eq!(backlog.pop(), Some(Next::Item(0)));
        // The queue is less than half empty.
        backlog.push(10, 6);
        assert_eq!(backlog.pop(), Some(Next::Item(1)));
        assert_eq!(backlog.pop(), Some(Next::Item(2)));
        backlog.push(10, 7);
        backlog.push(10, 8);
        let rest = drain(&mut backlog);
        let expected = [Next::Item(3), Next::Gap(3), Next::Item(7), Next::Item(8)];
        assert_eq!(rest, expected);
        assert!(backlog.is_empty());
    }

    #[test]
    fn a_gap_at_the_end_is_reported_without_another_item() {
        let mut backlog = Backlog::new(10);
        backlog.push(10, 0);
        backlog.push(1, 1);
        assert!(!backlog.is_empty());
        assert_eq!(drain(&mut backlog), [Next::Item(0), Next::Gap(1)]);
        backlog.push(10, 2);
        assert_eq!(drain(&mut backlog), [Next::Item(2)]);
    }

    #[test]
    fn an_empty_queue_takes_an_item_of_any_length() {
        let mut backlog = Backlog::new(10);
        backlog.push(usize::MAX, 0);
        backlog.push(1, 1);
        assert_eq!(drain(&mut backlog), [Next::Item(0), Next::Gap(1)]);
    }

    #[test]
    fn every_item_is_written_or_counted() {
        let mut random = fastrand::Rng::with_seed(c10d_sim::seed());
        let mut backlog = Backlog::new(100);
        let (mut pushed, mut seen) = (0_u64, 0);
        for _ in 0..10_000 {
            if random.bool() {
                backlog.push(random.usize(1..40), pushed);
                pushed += 1;
            } else {
                match backlog.pop() {
                    Some(Next::Item(item)) => {
                        assert_eq!(item, seen);
                        seen += 1;
                    }
                    Some(Next::Gap(dropped)) => seen += dropped,
                    None => assert_eq!(seen, pushed),
                }
            }
            assert!(backlog.bytes <= 100);
        }
    }
}
