//! The terminal while `c10d top` has it: raw, on its alternate screen. Given back on every way out.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Stdout};
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use c10d_socket::{Cancel, wait_for_input};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, execute};
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};

use super::keys::Keys;
use super::model::Key;
use crate::terminal::size_of;

/// For a terminal that does not know its size.
const SIZE_DEFAULT: (u16, u16) = (80, 24);

/// Whether the terminal has to be given back.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal. Dropping it gives it back, and so does a panic.
#[derive(Debug)]
pub(super) struct Screen {
    /// Never dropped: its destructor prints to standard error if the terminal has been closed, which panics.
    terminal: ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>,
    size: (u16, u16),
    input: File,
    keys: Keys,
    /// Decoded, and not taken yet.
    typed: VecDeque<Key>,
}

impl Screen {
    /// Whether standard input and output are terminals.
    pub(super) fn is_possible() -> bool {
        io::stdin().is_terminal() && io::stdout().is_terminal()
    }

    pub(super) fn take() -> io::Result<Self> {
        give_back_on_panic();
        IS_TAKEN.store(true, Ordering::SeqCst);
        // From here on, an error gives the terminal back as well.
        let result = enable_raw_mode()
            .and_then(|()| execute!(io::stdout(), EnterAlternateScreen, cursor::Hide))
            .and_then(|()| {
                let size = current_size();
                let viewport = Viewport::Fixed(Rect::new(0, 0, size.0, size.1));
                let options = TerminalOptions { viewport };
                let terminal =
                    Terminal::with_options(CrosstermBackend::new(io::stdout()), options)?;
                Ok(Self {
                    terminal: ManuallyDrop::new(terminal),
                    size,
                    input: File::from(io::stdin().as_fd().try_clone_to_owned()?),
                    keys: Keys::default(),
                    typed: VecDeque::new(),
                })
            });
        if result.is_err() {
            give_back();
        }
        result
    }

    /// Columns and rows.
    pub(super) fn size(&self) -> (usize, usize) {
        (usize::from(self.size.0), usize::from(self.size.1))
    }

    /// Follows the terminal's size; returns whether it has changed.
    pub(super) fn resize(&mut self) -> io::Result<bool> {
        let size = current_size();
        if size == self.size {
            return Ok(false);
        }
        self.size = size;
        self.terminal.resize(Rect::new(0, 0, size.0, size.1))?;
        Ok(true)
    }

    /// The next key, or `None` if none is pressed for `timeout`. (Crossterm's reader is not used: it never
    /// returns when the terminal has been closed.)
    pub(super) fn next_key(&mut self, timeout: Duration) -> io::Result<Option<Key>> {
        if let Some(key) = self.typed.pop_front() {
            return Ok(Some(key));
        }
        if !wait_for_input(&self.input, timeout, &Cancel::NEVER)? {
            return Ok(self.keys.idle());
        }
        let mut buffer = [0; 256];
        match self.input.read(&mut buffer) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.typed.extend(self.keys.take(&buffer[..count]));
                Ok(self.typed.pop_front())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw).map(|_| ())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// The size of the terminal that is written to, which need not be the controlling one.
fn current_size() -> (u16, u16) {
    let size = size_of(io::stdout()).filter(|(_, rows)| *rows > 0);
    size.unwrap_or(SIZE_DEFAULT)
}

/// Gives the terminal back before the message of a panic is printed, which would be lost otherwise.
fn give_back_on_panic() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            give_back();
            before(info);
        }));
    });
}

/// Does nothing if it is not taken. Ignores errors: a terminal that is gone cannot be given back.
fn give_back() {
    if IS_TAKEN.swap(false, Ordering::SeqCst) {
        let _ = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
        let _ = disable_raw_mode();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_gives_the_terminal_back_before_its_message() {
        give_back_on_panic();
        IS_TAKEN.store(true, Ordering::SeqCst);
        let result = panic::catch_unwind(|| panic!("a panic of this test"));
        assert!(result.is_err());
        assert!(!IS_TAKEN.load(Ordering::SeqCst));
    }
}
