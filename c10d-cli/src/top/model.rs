//! `c10d top` without a terminal: what is shown, what a key does, and what to fetch next.
//!
//! Times count from the start of the command. At most one request is in progress.

use std::collections::BTreeMap;
use std::time::Duration;

use c10d_inspect::http::{RankCell, StatusOverview};
use c10d_inspect::{RankReport, RankState};

use super::cause::{CauseLine, cause_lines};
use super::grid::Grid;

/// How often the state of all ranks is fetched.
const OVERVIEW_EVERY: Duration = Duration::from_secs(1);

/// The ranks in one request for rows.
pub(super) const CHUNK: usize = 512;

/// How old the rows on the screen get.
const ROWS_EVERY: Duration = Duration::from_secs(1);

/// How old rows get that are only sorted or searched: a job of 16,384 ranks takes 32 requests.
const ALL_ROWS_EVERY: Duration = Duration::from_secs(5);

/// The pause after a failed request.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The longest search, in characters.
const SEARCH_MAX: usize = 64;

/// What the server says about all ranks.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Overview {
    /// The store that was asked, as `host:port`.
    pub(super) target: String,
    pub(super) status: StatusOverview,
}

/// Greater for ranks that need more attention.
pub(super) const fn severity(cell: &RankCell) -> u8 {
    let state = match cell.state {
        RankState::Lost => 6,
        RankState::NotSeen => 5,
        RankState::Starting => 4,
        RankState::Connecting => 3,
        RankState::Waiting => 2,
        RankState::Idle => 1,
        _ => 0,
    };
    if cell.is_suspect { state + 10 } else { state }
}

/// Something to fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    Overview,
    /// The rows of [`CHUNK`] ranks, from rank `chunk * CHUNK` on.
    Rows {
        chunk: usize,
    },
}

/// What came of a request.
#[derive(Debug)]
pub(super) enum Answer {
    Overview(Overview),
    Rows { chunk: usize, rows: Vec<RankReport> },
    Failed(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Tab,
    Backspace,
    /// Ctrl-C.
    Interrupt,
    Char(char),
}

#[derive(Debug)]
pub(super) enum Input {
    Key(Key),
    Answer(Answer),
    /// The size of the terminal.
    Resize {
        columns: usize,
        rows: usize,
    },
    /// Time has passed.
    Tick,
}

/// What to do after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Wait,
    Fetch(Request),
    Quit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    Grid,
    Table,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Rank,
    /// Those that need attention first.
    State,
    /// The longest wait first.
    Wait,
    /// The longest silence first.
    LastRequest,
    Host,
}

impl Sort {
    /// With their names, in the order of the variants.
    const ALL: [(Self, &'static str); 5] = [
        (Self::Rank, "rank"),
        (Self::State, "state"),
        (Self::Wait, "longest wait"),
        (Self::LastRequest, "last request"),
        (Self::Host, "host"),
    ];

    const fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % Self::ALL.len()].0
    }

    /// Whether the overview is not enough to sort.
    const fn needs_rows(self) -> bool {
        !matches!(self, Self::Rank | Self::State)
    }

    pub(super) const fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// What is known of a rank.
#[derive(Debug)]
struct Row {
    report: RankReport,
    /// The texts that a search looks into, in lower case.
    searched: String,
}

impl Row {
    fn new(report: RankReport) -> Self {
        let texts = [
            report.host.as_deref(),
            report.waits_for.as_deref(),
            report.last_request.as_deref(),
            Some(&*report.doing),
        ];
        // A search does not go from one text into the next.
        let texts: Vec<&str> = texts.into_iter().flatten().collect();
        let searched = texts.join("\n").to_lowercase();
        Self { report, searched }
    }
}

/// All that `c10d top` knows.
#[derive(Debug, Default)]
pub(super) struct Top {
    pub(super) overview: Option<Overview>,
    overview_at: Duration,
    /// By rank.
    rows: BTreeMap<usize, Row>,
    /// When each chunk was fetched.
    chunks: BTreeMap<usize, Duration>,
    in_progress: Option<Request>,
    not_before: Duration,
    /// Why the last request failed, until one succeeds.
    pub(super) failure: Option<String>,
    view: Option<View>,
    is_detailed: bool,
    /// The selected rank.
    pub(super) selected: usize,
    /// The first line of the table that is shown, as an index into the order.
    pub(super) first_line: usize,
    sort: Sort,
    is_reversed: bool,
    /// In lower case.
    pub(super) search: String,
    pub(super) is_searching: bool,
    /// The keys and letters are explained instead of the ranks.
    pub(super) is_helping: bool,
    columns: usize,
    lines: usize,
    /// The ranks of the table's lines, as of the last change while the table was shown.
    pub(super) order: Vec<usize>,
    wanted: (Vec<usize>, Duration),
}

/// The title, the counts, and the footer.
const FIXED_LINES: usize = 1 + 1 + 1;

impl Top {
    pub(super) fn new(columns: usize, lines: usize) -> Self {
        Self {
            columns,
            lines,
            ..Self::default()
        }
    }

    /// Takes an input and says what to do next.
    pub(super) fn step(&mut self, now: Duration, input: Input) -> Next {
        let is_change = !matches!(input, Input::Tick);
        match input {
            Input::Key(Key::Interrupt) => return Next::Quit,
            Input::Key(Key::Char('q')) if !self.is_searching => return Next::Quit,
            Input::Key(key) => self.press(key),
            Input::Answer(answer) => self.take(now, answer),
            Input::Resize { columns, rows } => {
                self.columns = columns;
                self.lines = rows;
            }
            Input::Tick => {}
        }
        if is_change {
            self.refresh();
        }
        if self.in_progress.is_none()
            && let Some(request) = self.due(now)
        {
            self.in_progress = Some(request);
            return Next::Fetch(request);
        }
        Next::Wait
    }

    // What is shown.

    /// How long ago the overview was fetched.
    pub(super) fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.overview_at)
    }

    pub(super) fn cells(&self) -> &[RankCell] {
        self.overview
            .as_ref()
            .map_or(&[], |overview| &overview.status.cells)
    }

    pub(super) fn row(&self, rank: usize) -> Option<&RankReport> {
        self.rows.get(&rank).map(|row| &row.report)
    }

    /// Whether the server has been asked for the row of a rank.
    pub(super) fn has_asked_for(&self, rank: usize) -> bool {
        self.chunks.contains_key(&(rank / CHUNK))
    }

    /// The rank whose details fill the screen.
    pub(super) fn detailed(&self) -> Option<(usize, &RankCell)> {
        let cell = self.cells().get(self.selected)?;
        self.is_detailed.then_some((self.selected, cell))
    }

    /// Few ranks are a table at first, more than fit on the screen a grid.
    pub(super) fn view(&self) -> View {
        let fits = self.cells().len() < self.main_lines();
        self.view
            .unwrap_or(if fits { View::Table } else { View::Grid })
    }

    pub(super) const fn sort(&self) -> (Sort, bool) {
        (self.sort, self.is_reversed)
    }

    /// The headline, and the findings that say something else.
    pub(super) fn cause_lines(&self) -> Vec<CauseLine> {
        let status = self.overview.as_ref().map(|overview| &overview.status);
        let none = StatusOverview::default();
        cause_lines(status.unwrap_or(&none), self.columns, self.lines)
    }

    pub(super) fn grid(&self) -> Grid {
        Grid::new(self.cells().len(), self.columns, self.main_lines())
    }

    /// Whether a rank matches the search; true without a search. A rank whose row has not been fetched is
    /// compared by its number only.
    pub(super) fn matches(&self, rank: usize) -> bool {
        if self.search.is_empty() {
            return true;
        }
        let number = self.search.parse().ok();
        let row = self.rows.get(&rank);
        number == Some(rank as u64)
            || row.is_some_and(|row| {
                row.searched.contains(&self.search)
                    || (number.is_some() && row.report.pid.map(u64::from) == number)
            })
    }

    fn ordered(&self) -> Vec<usize> {
        let cells = self.cells();
        let mut order: Vec<usize> = (0..cells.len())
            .filter(|rank| self.matches(*rank))
            .collect();
        let row = |rank: usize| self.row(rank);
        // Largest first, unknown last.
        let descending = |value: Option<u64>| value.map_or(u64::MAX, |value| u64::MAX - 1 - value);
        let waits = |rank: &usize| descending(row(*rank).and_then(|row| row.waits_ms));
        let silent = |rank: &usize| descending(row(*rank).and_then(|row| row.last_request_ms));
        match self.sort {
            Sort::Rank => {}
            Sort::State => order.sort_by_key(|rank| u8::MAX - severity(&cells[*rank])),
            Sort::Wait => order.sort_by_cached_key(waits),
            Sort::LastRequest => order.sort_by_cached_key(silent),
            Sort::Host => order.sort_by_cached_key(|rank| {
                let host = row(*rank).and_then(|row| row.host.as_deref());
                (host.is_none(), host)
            }),
        }
        if self.is_reversed {
            order.reverse();
        }
        order
    }

    /// The lines for the grid, the table or the details.
    pub(super) fn main_lines(&self) -> usize {
        let taken = FIXED_LINES + self.cause_lines().len();
        self.lines.saturating_sub(taken).max(1)
    }

    /// The table's lines without its heading.
    fn table_lines(&self) -> usize {
        self.main_lines().saturating_sub(1).max(1)
    }

    // Keys.

    fn press(&mut self, key: Key) {
        if self.is_searching {
            return self.type_search(key);
        }
        // Any key ends the help.
        if std::mem::take(&mut self.is_helping) {
            return;
        }
        match key {
            Key::Char('?') => self.is_helping = true,
            Key::Char('/') => {
                self.is_searching = true;
                self.is_detailed = false;
                self.search.clear();
            }
            Key::Char('s') => self.sort_by(self.sort.next()),
            Key::Char('r') => {
                self.is_reversed = !self.is_reversed;
                self.show_table();
            }
            Key::Char('n') => self.select_match(1),
            Key::Char('N') => self.select_match(-1),
            Key::Char('g') => self.view = Some(View::Grid),
            Key::Char('t') => self.show_table(),
            Key::Tab => match self.view() {
                View::Grid => self.show_table(),
                View::Table => self.view = Some(View::Grid),
            },
            Key::Enter => self.open(),
            Key::Escape => self.leave(),
            Key::Backspace => self.is_detailed = false,
            Key::Char('k') => self.move_by(Key::Up),
            Key::Char('j') => self.move_by(Key::Down),
            Key::Char('h') => self.move_by(Key::Left),
            Key::Char('l') => self.move_by(Key::Right),
            _ => self.move_by(key),
        }
    }

    fn sort_by(&mut self, sort: Sort) {
        self.sort = sort;
        self.is_reversed = false;
        self.show_table();
        self.order = self.ordered();
        if let Some(first) = self.order.first() {
            self.selected = *first;
        }
    }

    fn show_table(&mut self) {
        self.view = Some(View::Table);
        self.is_detailed = false;
    }

    fn type_search(&mut self, key: Key) {
        match key {
            Key::Enter => self.is_searching = false,
            Key::Escape => {
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
        self.follow_search();
    }

    /// Selects a match if the selected rank is none.
    fn follow_search(&mut self) {
        if !self.matches(self.selected) {
            self.select_match(1);
        }
    }

    /// Selects the next match, or the one before, from the start again after the end.
    fn select_match(&mut self, direction: isize) {
        let count = self.cells().len();
        let at = |distance: usize| match direction {
            ..0 => (self.selected + count - distance % count) % count,
            _ => (self.selected + distance) % count,
        };
        if let Some(rank) = (1..=count).map(at).find(|rank| self.matches(*rank)) {
            self.selected = rank;
        }
    }

    /// Opens the selected rank; in a grid whose cells stand for several ranks, the table at the first one of
    /// those that need attention most.
    fn open(&mut self) {
        let grid = self.grid();
        if self.view() == View::Grid && grid.ranks_per_cell > 1 && !self.is_detailed {
            let ranks = grid.ranks_beside(self.selected);
            let worst = ranks
                .rev()
                .max_by_key(|rank| self.cells().get(*rank).map(severity));
            self.selected = worst.unwrap_or(self.selected);
            self.sort = Sort::Rank;
            self.is_reversed = false;
            self.show_table();
        } else {
            self.is_detailed = !self.cells().is_empty();
        }
    }

    /// Undoes one thing: the details, the search, the table.
    fn leave(&mut self) {
        if self.is_detailed {
            self.is_detailed = false;
        } else if !self.search.is_empty() {
            self.search.clear();
        } else {
            self.view = None;
        }
    }

    fn move_by(&mut self, key: Key) {
        if self.view() == View::Grid && !self.is_detailed {
            let grid = self.grid();
            let line = grid.cells_per_line * grid.ranks_per_cell;
            let last = self.cells().len().saturating_sub(1);
            let rank = self.selected;
            self.selected = match key {
                Key::Left => rank.saturating_sub(grid.ranks_per_cell),
                Key::Right => (rank + grid.ranks_per_cell).min(last),
                Key::Up => rank.checked_sub(line).unwrap_or(rank),
                Key::Down if rank + line <= last => rank + line,
                Key::PageUp | Key::Home => 0,
                Key::PageDown | Key::End => last,
                _ => rank,
            };
            return;
        }
        let order = &self.order;
        let at = order.iter().position(|rank| *rank == self.selected);
        let at = at.unwrap_or(0);
        let page = self.table_lines();
        let to = match key {
            Key::Up | Key::Left => at.saturating_sub(1),
            Key::Down | Key::Right => at + 1,
            Key::PageUp => at.saturating_sub(page),
            Key::PageDown => at + page,
            Key::Home => 0,
            Key::End => usize::MAX,
            _ => at,
        };
        if let Some(rank) = order.get(to.min(order.len().saturating_sub(1))) {
            self.selected = *rank;
        }
    }

    fn refresh(&mut self) {
        let last = self.cells().len().saturating_sub(1);
        self.selected = self.selected.min(last);
        if self.view() == View::Table || self.is_detailed {
            self.order = self.ordered();
        }
        if self.view() == View::Table {
            self.keep_selection_visible();
        }
        self.wanted = self.wanted_chunks();
    }

    fn keep_selection_visible(&mut self) {
        let order = &self.order;
        let at = order.iter().position(|rank| *rank == self.selected);
        let at = match (at, order.first()) {
            (Some(at), _) => at,
            // The search hides it.
            (None, Some(first)) => {
                self.selected = *first;
                0
            }
            (None, None) => 0,
        };
        let lines = self.table_lines();
        let first_max = order.len().saturating_sub(lines);
        let lowest = (at + 1).saturating_sub(lines);
        self.first_line = self.first_line.clamp(lowest, at).min(first_max.max(lowest));
    }

    // Data.

    fn take(&mut self, now: Duration, answer: Answer) {
        self.in_progress = None;
        match answer {
            Answer::Overview(overview) => {
                self.failure = None;
                self.overview_at = now;
                self.not_before = now;
                if self.cells().len() != overview.status.cells.len() {
                    self.rows.clear();
                    self.chunks.clear();
                }
                if self.overview.is_none() {
                    // The rank that is to blame, if any.
                    let mut cells = overview.status.cells.iter();
                    self.selected = cells.position(|cell| cell.is_suspect).unwrap_or(0);
                }
                self.overview = Some(overview);
            }
            Answer::Rows { chunk, rows } => {
                self.failure = None;
                self.chunks.insert(chunk, now);
                let known = self.cells().len();
                let is_asked = |rank: usize| rank < known && rank / CHUNK == chunk;
                self.rows.retain(|rank, _| rank / CHUNK != chunk);
                let rows = rows.into_iter().filter(|row| is_asked(row.rank));
                self.rows.extend(rows.map(|row| (row.rank, Row::new(row))));
                self.follow_search();
            }
            Answer::Failed(reason) => {
                self.failure = Some(reason);
                self.not_before = now + RETRY_AFTER;
            }
        }
    }

    /// The request whose answer is missing or too old.
    fn due(&self, now: Duration) -> Option<Request> {
        if now < self.not_before {
            return None;
        }
        if self.overview.is_none() || self.age(now) >= OVERVIEW_EVERY {
            return Some(Request::Overview);
        }
        let (chunks, every) = &self.wanted;
        let is_due = |chunk: &usize| {
            let at = self.chunks.get(chunk);
            at.is_none_or(|at| now.saturating_sub(*at) >= *every)
        };
        let chunk = chunks.iter().copied().find(is_due)?;
        Some(Request::Rows { chunk })
    }

    /// The chunks of rows that the screen needs, and how old they may be.
    fn wanted_chunks(&self) -> (Vec<usize>, Duration) {
        let cells = self.cells().len();
        if cells == 0 {
            return (Vec::new(), ROWS_EVERY);
        }
        if self.detailed().is_some() {
            return (vec![self.selected / CHUNK], ROWS_EVERY);
        }
        let is_table = self.view() == View::Table;
        if !self.search.is_empty() || (is_table && self.sort.needs_rows()) {
            let every = match cells <= CHUNK {
                true => ROWS_EVERY,
                false => ALL_ROWS_EVERY,
            };
            return ((0..cells.div_ceil(CHUNK)).collect(), every);
        }
        let mut chunks = vec![self.selected / CHUNK];
        if is_table {
            let shown = self.order.iter();
            let shown = shown.skip(self.first_line).take(self.table_lines());
            chunks.extend(shown.map(|rank| rank / CHUNK));
        }
        chunks.sort_unstable();
        chunks.dedup();
        (chunks, ROWS_EVERY)
    }
}
