//! The terminal while `c10d top` has it: raw, on its alternate screen. Given back on every way out.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::time::Duration;

use c10d_socket::{Cancel, wait_for_input};
use ratatui::crossterm::event::KeyCode;
use ratatui::crossterm::terminal::EnterAlternateScreen;
use ratatui::crossterm::{cursor, execute};
use ratatui::layout::Rect;
use ratatui::{DefaultTerminal, Frame, TerminalOptions, Viewport};

use super::keys::Keys;
use crate::terminal::size_of;

/// For a terminal that does not know its size.
const SIZE_DEFAULT: (u16, u16) = (80, 24);

/// The terminal. Dropping it gives it back, and so does a panic.
#[derive(Debug)]
pub(super) struct Screen {
    /// Never dropped: its destructor prints to standard error if the terminal has been closed, which panics.
    terminal: ManuallyDrop<DefaultTerminal>,
    size: (u16, u16),
    input: File,
    keys: Keys,
    /// Decoded, and not taken yet.
    typed: VecDeque<KeyCode>,
}

impl Screen {
    /// Whether standard input and output are terminals.
    pub(super) fn is_possible() -> bool {
        io::stdin().is_terminal() && io::stdout().is_terminal()
    }

    pub(super) fn take() -> io::Result<Self> {
        let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let size = current_size();
        let viewport = Viewport::Fixed(Rect::new(0, 0, size.0, size.1));
        let terminal = ratatui::try_init_with_options(TerminalOptions { viewport });
        // From here on, an error gives the terminal back as well.
        let screen = Self {
            terminal: ManuallyDrop::new(terminal.inspect_err(|_| give_back())?),
            size,
            input,
            keys: Keys::default(),
            typed: VecDeque::new(),
        };
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
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
    pub(super) fn next_key(&mut self, timeout: Duration) -> io::Result<Option<KeyCode>> {
        if let Some(key) = self.typed.pop_front() {
            return Ok(Some(key));
        }
        if !wait_for_input(&self.input, timeout, &Cancel::NEVER)? {
            return Ok(self.keys.idle());
        }
        let mut buffer = [0; 256];
        match self.input.read(&mut buffer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.typed.extend(self.keys.take(&buffer[..count]));
                Ok(self.typed.pop_front())
            }
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

/// Ignores errors: a terminal that is gone cannot be given back.
fn give_back() {
    let _ = execute!(io::stdout(), cursor::Show);
    let _ = ratatui::try_restore();
}
