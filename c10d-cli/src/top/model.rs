//! `c10d top` without a terminal: the selected rank, the order of the ranks, and what a key does.
//!
//! Ranks are places in the list of the report. Times count from the start of the command.

use std::time::Duration;

use c10d_inspect::report_text::{TextLine, Tone};
use c10d_inspect::{RankReport, RankState, Report};
use ratatui::crossterm::event::KeyCode as Key;

use super::grid::Grid;
use super::keys::INTERRUPT;

/// The text of the report takes at most this part of the screen.
const TEXT_SHARE: usize = 3;

/// The title, the counts, and the footer.
const FIXED_LINES: usize = 1 + 1 + 1;

/// The longest search, in characters.
const SEARCH_MAX: usize = 64;

/// Greater for ranks that need more attention.
pub(super) const fn severity(rank: &RankReport) -> u64 {
    let state = match rank.state {
        RankState::Lost => 6,
        RankState::NotSeen => 5,
        RankState::Starting => 4,
        RankState::Connecting => 3,
        RankState::Waiting => 2,
        RankState::Idle => 1,
        _ => 0,
    };
    if rank.is_suspect { state + 10 } else { state }
}

/// A report, and the store that it is from, as `host:port`.
#[derive(Debug, Clone, Default)]
pub(super) struct Answer {
    pub(super) server: String,
    pub(super) report: Report,
}

/// An order of the ranks: its name, and what is smallest for the rank that is first.
pub(super) type Order = (&'static str, fn(&RankReport) -> (u64, &str));

/// The orders, the first one by the number.
pub(super) const ORDERS: [Order; 5] = [
    ("rank", |_| (0, "")),
    ("state", |rank| (u64::MAX - severity(rank), "")),
    ("longest wait", |rank| (longest_first(rank.waits_ms), "")),
    ("last request", |rank| {
        (longest_first(rank.last_request_ms), "")
    }),
    ("host", |rank| match &rank.host {
        Some(host) => (0, host),
        None => (1, ""),
    }),
];

fn longest_first(age_ms: Option<u64>) -> u64 {
    u64::MAX - age_ms.map_or(0, |age| age.saturating_add(1))
}

/// All that `c10d top` knows.
#[derive(Debug, Default)]
pub(super) struct Top {
    pub(super) answer: Answer,
    pub(super) answered_at: Duration,
    /// Why the last request failed, until one succeeds.
    pub(super) failure: Option<String>,
    /// Whether the ranks are a table and not a grid, if that has been chosen.
    has_table: Option<bool>,
    is_detailed: bool,
    pub(super) selected: usize,
    /// The first line of the table that is shown, as an index into the order.
    pub(super) first_line: usize,
    /// One of [`ORDERS`].
    pub(super) sort: usize,
    pub(super) is_reversed: bool,
    /// In lower case.
    pub(super) search: String,
    pub(super) is_searching: bool,
    /// The keys and letters are explained instead of the ranks.
    pub(super) is_helping: bool,
    pub(super) columns: usize,
    lines: usize,
    /// The first lines of the report.
    pub(super) text: Vec<TextLine>,
    /// The ranks of the table's lines.
    pub(super) order: Vec<usize>,
}

impl Top {
    /// Takes an answer of the server, or the reason why there is none. What is selected is selected still.
    pub(super) fn take(&mut self, now: Duration, answer: Result<Answer, String>) {
        match answer {
            Ok(answer) => {
                self.failure = None;
                self.answered_at = now;
                let number = self.ranks().get(self.selected).map(|rank| rank.rank);
                self.answer = answer;
                let is_selected = |rank: &RankReport| match number {
                    Some(number) => rank.rank == number,
                    // The first answer: the rank that is to blame, if any.
                    None => rank.is_suspect,
                };
                self.selected = self.ranks().iter().position(is_selected).unwrap_or(0);
            }
            Err(reason) => self.failure = Some(reason),
        }
        self.refresh();
    }

    /// Follows the size of the screen, as columns and lines.
    pub(super) fn resize(&mut self, (columns, lines): (usize, usize)) {
        (self.columns, self.lines) = (columns, lines);
        self.refresh();
    }

    // What is shown.

    pub(super) fn ranks(&self) -> &[RankReport] {
        &self.answer.report.ranks
    }

    /// The rank whose details fill the screen.
    pub(super) fn detailed(&self) -> Option<&RankReport> {
        let rank = self.ranks().get(self.selected)?;
        self.is_detailed.then_some(rank)
    }

    /// Few ranks are a table at first, more than fit on the screen a grid.
    pub(super) fn is_table(&self) -> bool {
        let fits = self.ranks().len() < self.main_lines();
        self.has_table.unwrap_or(fits)
    }

    pub(super) fn grid(&self) -> Grid {
        Grid::new(self.ranks().len(), self.columns, self.main_lines())
    }

    /// The lines for the grid, the table or the details.
    pub(super) fn main_lines(&self) -> usize {
        let taken = FIXED_LINES + self.text.len();
        self.lines.saturating_sub(taken).max(1)
    }

    /// The table's lines without its heading.
    pub(super) fn table_lines(&self) -> usize {
        self.main_lines().saturating_sub(1).max(1)
    }

    /// Whether a rank matches the search; true without a search.
    pub(super) fn matches(&self, rank: usize) -> bool {
        let Some(rank) = self.ranks().get(rank).filter(|_| !self.search.is_empty()) else {
            return self.search.is_empty();
        };
        let (host, key, last) = (&rank.host, &rank.waits_for, &rank.last_request);
        let mut texts = [host, key, last].into_iter().flatten().chain([&rank.doing]);
        let mut numbers = rank.pid.iter().map(|pid| *pid as usize).chain([rank.rank]);
        numbers.any(|number| number.to_string() == self.search)
            || texts.any(|text| text.to_lowercase().contains(&self.search))
    }

    fn ordered(&self) -> Vec<usize> {
        let ranks = self.ranks();
        let matches = (0..ranks.len()).filter(|rank| self.matches(*rank));
        let mut order: Vec<usize> = matches.collect();
        order.sort_by_key(|rank| ORDERS[self.sort].1(&ranks[*rank]));
        if self.is_reversed {
            order.reverse();
        }
        order
    }

    // Keys.

    /// Does what a key stands for. Returns whether it ends the command.
    pub(super) fn press(&mut self, key: Key) -> bool {
        match key {
            INTERRUPT => return true,
            Key::Char('q') if !self.is_searching => return true,
            _ if self.is_searching => self.type_search(key),
            // Any key ends the help.
            _ if self.is_helping => self.is_helping = false,
            _ => self.command(key),
        }
        self.refresh();
        false
    }

    fn command(&mut self, key: Key) {
        match key {
            Key::Char('?') => self.is_helping = true,
            Key::Char('/') => {
                self.is_searching = true;
                self.is_detailed = false;
                self.search.clear();
            }
            Key::Char('s') => {
                self.show_table((self.sort + 1) % ORDERS.len(), false);
                self.order = self.ordered();
                self.selected = self.order.first().copied().unwrap_or(self.selected);
            }
            Key::Char('r') => self.show_table(self.sort, !self.is_reversed),
            Key::Char('n') => self.select_match(false),
            Key::Char('N') => self.select_match(true),
            Key::Char('g') => self.has_table = Some(false),
            Key::Tab if self.is_table() => self.has_table = Some(false),
            Key::Char('t') | Key::Tab => self.show_table(self.sort, self.is_reversed),
            Key::Enter => self.open(),
            Key::Esc | Key::Backspace => self.leave(),
            Key::Char('k') => self.move_by(Key::Up),
            Key::Char('j') => self.move_by(Key::Down),
            Key::Char('h') => self.move_by(Key::Left),
            Key::Char('l') => self.move_by(Key::Right),
            _ => self.move_by(key),
        }
    }

    fn show_table(&mut self, sort: usize, is_reversed: bool) {
        self.has_table = Some(true);
        self.is_detailed = false;
        (self.sort, self.is_reversed) = (sort, is_reversed);
    }

    fn type_search(&mut self, key: Key) {
        match key {
            Key::Enter => self.is_searching = false,
            Key::Esc => {
                self.is_searching = false;
                self.search.clear();
            }
            Key::Backspace => {
                self.search.pop();
            }
            Key::Char(char) if self.search.chars().count() < SEARCH_MAX => {
                self.search.extend(char.to_lowercase());
            }
            _ => return,
        }
        if !self.matches(self.selected) {
            self.select_match(false);
        }
    }

    /// Selects the next match, or the previous one, from the start again after the end.
    fn select_match(&mut self, is_backward: bool) {
        let count = self.ranks().len();
        let step = if is_backward { count - count.min(1) } else { 1 };
        let mut others = (1..=count).map(|distance| (self.selected + distance * step) % count);
        if let Some(rank) = others.find(|rank| self.matches(*rank)) {
            self.selected = rank;
        }
    }

    /// Opens the selected rank; in a grid whose cells stand for several ranks, the table at the first one of
    /// those that need attention most.
    fn open(&mut self) {
        let grid = self.grid();
        if !self.is_table() && grid.ranks_per_cell > 1 && !self.is_detailed {
            let beside = grid.ranks_in(grid.cell_of(self.selected)).rev();
            let worst = beside.max_by_key(|rank| self.ranks().get(*rank).map(severity));
            self.selected = worst.unwrap_or(self.selected);
            self.show_table(0, false);
        } else {
            self.is_detailed = !self.ranks().is_empty();
        }
    }

    /// Undoes one thing: the details, the search, the table.
    fn leave(&mut self) {
        if self.is_detailed {
            self.is_detailed = false;
        } else if !self.search.is_empty() {
            self.search.clear();
        } else {
            self.has_table = None;
        }
    }

    fn move_by(&mut self, key: Key) {
        let grid = self.grid();
        // The ranks to move along; a step to the side, a line, and a page.
        let (ranks, step, line, page) = match self.is_table() || self.is_detailed {
            true => (self.order.clone(), 1, 1, self.table_lines()),
            false => {
                let step = grid.ranks_per_cell;
                let all = (0..self.ranks().len()).collect();
                (all, step, step * grid.cells_per_line, usize::MAX)
            }
        };
        let last = ranks.len().saturating_sub(1);
        let at = ranks.iter().position(|rank| *rank == self.selected);
        let at = at.unwrap_or(0);
        let to = match key {
            Key::Left => at.saturating_sub(step),
            Key::Right => at + step,
            Key::Up => at.checked_sub(line).unwrap_or(at),
            Key::Down if at + line > last => at,
            Key::Down => at + line,
            Key::PageUp => at.saturating_sub(page),
            Key::PageDown => at.saturating_add(page),
            Key::Home => 0,
            Key::End => last,
            _ => at,
        };
        self.selected = ranks.get(to.min(last)).copied().unwrap_or(self.selected);
    }

    /// Makes again what follows from the report, the size and the keys.
    fn refresh(&mut self) {
        self.text = self.answer.report.lines(self.columns);
        let lines_max = (self.lines / TEXT_SHARE).max(1);
        if self.text.len() > lines_max {
            self.text.truncate(lines_max - 1);
            let rest = "  … c10d why prints the rest".to_owned();
            self.text.push(vec![(Tone::Dim, rest)]);
        }
        self.order = self.ordered();
        if self.is_table() {
            self.keep_selection_visible();
        }
    }

    /// Scrolls the table to the selected rank, or selects the first one if the search hides that.
    fn keep_selection_visible(&mut self) {
        let at = self.order.iter().position(|rank| *rank == self.selected);
        let at = at.unwrap_or(0);
        self.selected = self.order.get(at).copied().unwrap_or(self.selected);
        let lines = self.table_lines();
        let first_max = self.order.len().saturating_sub(lines);
        let lowest = (at + 1).saturating_sub(lines);
        self.first_line = self.first_line.clamp(lowest, at).min(first_max.max(lowest));
    }
}
