//! Draws `c10d top`.

use std::time::Duration;

use c10d_inspect::http::RankCell;
use c10d_inspect::report_text::age_text;
use c10d_inspect::{RankReport, RankState, Sureness};
use c10d_socket::printable;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::grid::LABEL_COLUMNS;
use super::model::{Top, View, severity};

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, top: &Top, now: Duration, has_colors: bool) {
    let mut painter = Painter {
        area: frame.area(),
        frame,
        used: 0,
        has_colors,
    };
    painter.title(top, now);
    painter.cause(top);
    painter.counts(top);
    let main_lines = top.main_lines();
    let end = painter.used + main_lines;
    if top.is_helping {
        painter.help(end);
    } else if let Some((rank, cell)) = top.detailed() {
        painter.details(top, rank, cell, end);
    } else {
        match top.view() {
            View::Grid => painter.grid(top),
            View::Table => painter.table(top, end),
        }
    }
    painter.used = end;
    painter.footer(top);
}

/// The letter of a state, and its name.
const fn letter_of(state: RankState) -> (char, &'static str) {
    match state {
        RankState::NotSeen => ('?', "not seen"),
        RankState::Starting => ('s', "starting"),
        RankState::Connecting => ('c', "connecting"),
        RankState::Waiting => ('w', "waiting"),
        RankState::Idle => ('.', "idle"),
        RankState::Ended => ('e', "ended"),
        RankState::Lost => ('x', "lost"),
        _ => ('*', "other"),
    }
}

const fn meaning_of(state: RankState) -> &'static str {
    match state {
        RankState::NotSeen => "nothing is known of it: it has never connected",
        RankState::Starting => "its launcher has started it; it has not connected",
        RankState::Connecting => "connected, and not yet in its group",
        RankState::Waiting => "waits on the store for others",
        RankState::Idle => {
            "connected, and asks the store for nothing: it computes, or hangs elsewhere"
        }
        RankState::Ended => "ended in order",
        RankState::Lost => "ended otherwise, or left while others needed it",
        _ => "",
    }
}

/// What the keys do.
const KEYS: [(&str, &str); 8] = [
    ("arrows, hjkl", "select a rank"),
    ("Enter, Esc", "open the rank, go back"),
    ("Tab", "change between grid and table"),
    ("/", "search a rank, host, pid or key"),
    ("n, N", "go to the next match, to the one before"),
    ("s", "sort by rank, state, wait, last request, host"),
    ("r", "reverse the order"),
    ("q", "quit"),
];

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);

/// The longest part of a host name in a table.
const HOST_COLUMNS_MAX: usize = 20;

/// More characters than any line of a terminal has.
const TEXT_CHARS_MAX: usize = 4096;

/// The order in which states are counted.
const STATES: [RankState; 7] = [
    RankState::NotSeen,
    RankState::Starting,
    RankState::Connecting,
    RankState::Waiting,
    RankState::Idle,
    RankState::Ended,
    RankState::Lost,
];

/// Writes lines from the top to the bottom. All text is made printable here.
struct Painter<'p, 'f> {
    frame: &'p mut Frame<'f>,
    area: Rect,
    used: usize,
    has_colors: bool,
}

impl Painter<'_, '_> {
    fn title(&mut self, top: &Top, now: Duration) {
        let age = u64::try_from(top.age(now).as_millis()).unwrap_or(u64::MAX);
        let age = age_text(age);
        let (text, style) = match (top.failure.as_deref(), top.overview.as_ref()) {
            (Some(reason), None) => (reason.to_owned(), self.bad()),
            (Some(reason), Some(_)) => (format!("state of {age} ago: {reason}"), self.bad()),
            (None, None) => ("connecting".to_owned(), Style::new()),
            (None, Some(_)) => (format!("updated {age} ago"), DIM),
        };
        let target = top
            .overview
            .as_ref()
            .map_or("", |overview| &overview.target);
        let name = format!("c10d top  {target}  ");
        self.line(vec![span(&name, BOLD), span(&text, style)]);
    }

    fn cause(&mut self, top: &Top) {
        let overview = top.overview.as_ref();
        let headline = match overview.is_some_and(|overview| overview.status.is_stuck) {
            true => self.bad(),
            false => self.good(),
        };
        for line in top.cause_lines() {
            let style = match (line.is_headline, line.is_consequence) {
                (true, _) => headline,
                (false, true) => DIM,
                (false, false) => Style::new(),
            };
            self.line(vec![span(&line.mark, DIM), span(&line.text, style)]);
        }
    }

    /// What the keys do, and what the letters are.
    fn help(&mut self, end: usize) {
        let mut lines: Vec<(String, &str)> = Vec::new();
        lines.extend(KEYS.map(|(key, what)| (key.to_owned(), what)));
        lines.push((String::new(), ""));
        lines.extend(STATES.map(|state| {
            let (letter, name) = letter_of(state);
            (format!("{letter} {name}"), meaning_of(state))
        }));
        let suspect =
            "what the others wait for, or where something went wrong: see the cause above";
        lines.push(("underlined".to_owned(), suspect));
        for (name, what) in lines {
            if self.used >= end {
                return;
            }
            let name = span(&format!("  {name:<16}"), BOLD);
            self.line(vec![name, span(what, Style::new())]);
        }
    }

    /// How many ranks are in which state: this is also the legend of the grid.
    fn counts(&mut self, top: &Top) {
        let cells = top.cells();
        let per_cell = match top.view() {
            View::Grid if top.grid().ranks_per_cell > 1 => {
                format!(" (worst of {} a cell)", top.grid().ranks_per_cell)
            }
            _ => String::new(),
        };
        let text = format!("{} ranks{per_cell}: ", cells.len());
        let mut spans = vec![span(&text, BOLD)];
        for state in STATES {
            let count = cells.iter().filter(|cell| cell.state == state).count();
            if count > 0 {
                let (letter, name) = letter_of(state);
                let style = self.style_of(state);
                spans.push(span(&letter.to_string(), style));
                spans.push(span(&format!(" {count} {name}  "), Style::new()));
            }
        }
        if let Some(suspects) = suspects_text(cells) {
            spans.push(span(&suspects, self.bad()));
        }
        self.line(spans);
    }

    fn grid(&mut self, top: &Top) {
        let grid = top.grid();
        let cells = top.cells();
        let selected = grid.cell_of(top.selected);
        let is_searched = !top.search.is_empty();
        for line in 0..grid.cells().div_ceil(grid.cells_per_line) {
            let first = line * grid.cells_per_line;
            let last = (first + grid.cells_per_line).min(grid.cells());
            let label = grid.ranks_in(first).start;
            let width = LABEL_COLUMNS - 1;
            let mut spans = vec![span(&format!("{label:>width$} "), DIM)];
            for at in first..last {
                let ranks = grid.ranks_in(at);
                // The first of the worst.
                let members = cells[ranks.clone()].iter().rev();
                let Some(worst) = members.max_by_key(|cell| severity(cell)) else {
                    continue;
                };
                let mut style = self.style_of_cell(worst);
                if is_searched {
                    let is_match = ranks.into_iter().any(|rank| top.matches(rank));
                    style = style.add_modifier(match is_match {
                        true => Modifier::BOLD | Modifier::UNDERLINED,
                        false => Modifier::DIM,
                    });
                }
                if at == selected {
                    style = style.add_modifier(Modifier::REVERSED);
                }
                let letter = letter_of(worst.state).0;
                spans.push(Span::styled(letter.to_string(), style));
            }
            self.line(spans);
        }
    }

    fn table(&mut self, top: &Top, end: usize) {
        let order = &top.order;
        let cells = top.cells();
        let lines = end.saturating_sub(self.used + 1);
        let shown = order.iter().copied().skip(top.first_line).take(lines);
        let shown: Vec<usize> = shown.collect();
        let hosts = shown
            .iter()
            .filter_map(|rank| top.row(*rank)?.host.as_ref());
        let widths = hosts.map(|host| host.chars().count());
        let host_width = widths.max().unwrap_or(0).clamp(4, HOST_COLUMNS_MAX);
        let heading = format!(
            "{:>8} {:<12} {:>11} {:>12} {:>8} {:<host_width$} {}",
            "RANK", "STATE", "WAITS FOR", "LAST REQUEST", "PID", "HOST", "WHAT IT DOES"
        );
        self.line(vec![span(&heading, BOLD)]);
        for rank in shown {
            let cell = &cells[rank];
            let mut style = self.style_of_cell(cell);
            let mut rest = Style::new();
            if rank == top.selected {
                style = style.add_modifier(Modifier::REVERSED);
                rest = rest.add_modifier(Modifier::REVERSED);
            }
            let (letter, name) = letter_of(cell.state);
            let state = format!("{rank:>8} {letter} {name:<10}");
            let row = top.row(rank);
            let text = row.map(|row| row_text(row, host_width)).unwrap_or_default();
            self.line(vec![span(&state, style), span(&text, rest)]);
        }
        if order.is_empty() && !top.search.is_empty() {
            let text = format!("no rank matches {:?}", top.search);
            self.line(vec![span(&text, DIM)]);
        }
    }

    fn details(&mut self, top: &Top, rank: usize, cell: &RankCell, end: usize) {
        let name = format!("rank {rank}: {}", letter_of(cell.state).1);
        self.line(vec![span(&name, self.style_of_cell(cell))]);
        let Some(row) = top.row(rank) else {
            let text = if top.has_asked_for(rank) {
                "  the server knows nothing of it"
            } else {
                "  asking the server"
            };
            return self.line(vec![span(text, DIM)]);
        };
        let mut facts = facts_of(row);
        let overview = top.overview.as_ref();
        for finding in overview.iter().flat_map(|it| &it.status.findings) {
            if finding.is_to_blame(rank) {
                facts.push(("cause of", finding.text.clone()));
            } else if finding.is_holding_up(rank) {
                facts.push(("held up by", finding.text.clone()));
            }
        }
        for (name, value) in facts {
            let columns = usize::from(self.area.width).saturating_sub(18).max(1);
            let value: Vec<char> = printable(&value, usize::MAX).to_string().chars().collect();
            for (index, part) in value.chunks(columns).enumerate() {
                if self.used >= end {
                    return;
                }
                let name = if index == 0 { name } else { "" };
                let part: String = part.iter().collect();
                let name = span(&format!("  {name:<14}  "), DIM);
                self.line(vec![name, Span::raw(part)]);
            }
        }
    }

    fn footer(&mut self, top: &Top) {
        if top.is_searching {
            let typed = format!("/{}_", top.search);
            let help = "   rank, host, pid or key; Enter keeps it, Esc clears it";
            return self.line(vec![span(&typed, BOLD), span(help, DIM)]);
        }
        let (sort, is_reversed) = top.sort();
        let reversed = if is_reversed { ", reversed" } else { "" };
        let search = match &*top.search {
            "" => String::new(),
            text => format!("  n next of {text:?}"),
        };
        let help = format!(
            "q quit  ? help  Tab view  Enter open  Esc back  / search{search}  s sort ({}{reversed})",
            sort.name()
        );
        self.line(vec![span(&help, DIM)]);
    }

    fn line(&mut self, spans: Vec<Span<'_>>) {
        let y = match u16::try_from(self.used) {
            Ok(y) if y < self.area.height => y,
            _ => return,
        };
        self.used += 1;
        let line = Rect::new(self.area.x, self.area.y + y, self.area.width, 1);
        self.frame.render_widget(Line::from(spans), line);
    }

    fn style_of_cell(&self, cell: &RankCell) -> Style {
        if cell.is_suspect {
            self.bad().add_modifier(Modifier::UNDERLINED)
        } else {
            self.style_of(cell.state)
        }
    }

    fn style_of(&self, state: RankState) -> Style {
        let color = match state {
            RankState::NotSeen => Color::Magenta,
            RankState::Starting | RankState::Connecting => Color::Cyan,
            RankState::Waiting => Color::Yellow,
            RankState::Idle => Color::Green,
            RankState::Lost => Color::Red,
            _ => Color::DarkGray,
        };
        self.colored(color)
    }

    fn bad(&self) -> Style {
        self.colored(Color::Red).add_modifier(Modifier::BOLD)
    }

    fn good(&self) -> Style {
        self.colored(Color::Green)
    }

    fn colored(&self, color: Color) -> Style {
        if self.has_colors {
            Style::new().fg(color)
        } else {
            Style::new()
        }
    }
}

/// "suspect: rank 2", "suspects: ranks 2 and 5", or how many ranks they are.
fn suspects_text(cells: &[RankCell]) -> Option<String> {
    let ranks = (0..cells.len()).filter(|rank| cells[*rank].is_suspect);
    let ranks: Vec<usize> = ranks.collect();
    Some(match ranks[..] {
        [] => return None,
        [only] => format!("suspect: rank {only}"),
        [first, second] => format!("suspects: ranks {first} and {second}"),
        _ => format!("{} ranks are suspects", ranks.len()),
    })
}

fn span(text: &str, style: Style) -> Span<'static> {
    Span::styled(printable(text, TEXT_CHARS_MAX).to_string(), style)
}

/// The columns of a row after the state.
fn row_text(row: &RankReport, host_width: usize) -> String {
    let age = |age: Option<u64>| age.map(age_text).unwrap_or_default();
    let pid = row.pid.map(|pid| pid.to_string()).unwrap_or_default();
    let host = row.host.as_deref().unwrap_or_default();
    let host: String = host.chars().take(host_width).collect();
    format!(
        " {:>11} {:>12} {pid:>8} {host:<host_width$} {}",
        age(row.waits_ms),
        age(row.last_request_ms),
        row.doing
    )
}

/// What is known of a rank, as names and values.
fn facts_of(row: &RankReport) -> Vec<(&'static str, String)> {
    let ago = |age: Option<u64>| age.map(|age| format!("{} ago", age_text(age)));
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    let connections: Vec<String> = row.connections.iter().map(ToString::to_string).collect();
    let socket = row.debug_socket.as_ref();
    let facts = [
        ("does", some(row.doing.clone())),
        ("waits for", row.waits_for.clone()),
        ("since", ago(row.waits_ms)),
        ("last request", row.last_request.clone()),
        ("sent", ago(row.last_request_ms)),
        ("host", row.host.clone()),
        ("node", row.node_rank.map(|rank| rank.to_string())),
        ("process", row.pid.map(|pid| pid.to_string())),
        ("known by", some(sureness_text(row.sureness).to_owned())),
        ("connections", some(connections.join(", "))),
        ("debug server", row.debug_url.clone()),
        (
            "debug socket",
            socket.map(|path| path.to_string_lossy().into_owned()),
        ),
    ];
    let known = facts.into_iter();
    known
        .filter_map(|(name, fact)| Some((name, fact?)))
        .collect()
}

const fn sureness_text(sureness: Sureness) -> &'static str {
    match sureness {
        Sureness::Launched => "its launcher",
        Sureness::Claimed => "its own key",
        Sureness::SameProcess => "another connection of the same process",
        _ => "unknown process",
    }
}
