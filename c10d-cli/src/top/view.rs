//! Draws `c10d top`.

use std::time::Duration;

use c10d_inspect::report_text::{Tone, age_text};
use c10d_inspect::{RankReport, RankSet, RankState};
use c10d_socket::printable;
use ratatui::Frame;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};

use super::grid::LABEL_COLUMNS;
use super::model::{ORDERS, Top, severity};

/// The states in the order in which they are counted: the letter, the name, and the color.
const STATES: [(RankState, char, &str, Color); 7] = [
    (RankState::NotSeen, '?', "not seen", Color::Magenta),
    (RankState::Starting, 's', "starting", Color::Cyan),
    (RankState::Connecting, 'c', "connecting", Color::Cyan),
    (RankState::Waiting, 'w', "waiting", Color::Yellow),
    (RankState::Idle, '.', "idle", Color::Green),
    (RankState::Ended, 'e', "ended", Color::DarkGray),
    (RankState::Lost, 'x', "lost", Color::Red),
];

/// What the keys do, and what the letters mean.
const HELP: &str = "  arrows, hjkl    select a rank
  Enter, Esc      open the rank, go back
  Tab             change between grid and table
  /               search a rank, host, pid or key
  n, N            go to the next match, to the previous one
  s               sort by rank, state, wait, last request, host
  r               reverse the order
  q               quit

  ? not seen      nothing is known of it: it has never connected
  s starting      its launcher has started it; it has not connected
  c connecting    connected, and not yet in its group
  w waiting       waits on the store for other ranks
  . idle          connected, and asks the store for nothing: it computes, or hangs elsewhere
  e ended         ended in order
  x lost          ended otherwise, or left while other ranks needed it
  underlined      what the other ranks wait for, or where something went wrong: see the cause above";

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const BAD: Style = BOLD.fg(Color::Red);

/// The longest part of a host name in a table.
const HOST_COLUMNS_MAX: usize = 20;

/// More characters than any line of a terminal has.
const TEXT_CHARS_MAX: usize = 4096;

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, top: &Top, now: Duration, has_colors: bool) {
    let mut lines = vec![title(top, now)];
    lines.extend(top.text.iter().map(|line| report_line(line)));
    lines.push(counts(top));
    let end = lines.len() + top.main_lines();
    if top.is_helping {
        lines.extend(HELP.lines().map(Line::raw));
    } else if let Some(rank) = top.detailed() {
        let details = top.answer.report.rank_lines(rank, top.columns);
        lines.extend(details.iter().map(|line| report_line(line)));
    } else if top.is_table() {
        lines.extend(table(top));
    } else {
        lines.extend(grid(top));
    }
    lines.resize(end, Line::default());
    lines.push(footer(top));
    if !has_colors {
        let spans = lines.iter_mut().flat_map(|line| &mut line.spans);
        spans.for_each(|span| span.style.fg = None);
    }
    frame.render_widget(Text::from(lines), frame.area());
}

fn title(top: &Top, now: Duration) -> Line<'static> {
    let age = now.saturating_sub(top.answered_at).as_millis();
    let age = age_text(u64::try_from(age).unwrap_or(u64::MAX));
    let (text, style) = match &top.failure {
        Some(reason) => (format!("state of {age} ago: {reason}"), BAD),
        None => (format!("updated {age} ago"), DIM),
    };
    let name = format!("c10d top  {}  ", top.answer.server);
    Line::from(vec![span(&name, BOLD), span(&text, style)])
}

/// Styles the parts of a line by their tones.
fn report_line(line: &[(Tone, String)]) -> Line<'static> {
    let style = |tone| match tone {
        Tone::Bad => BAD,
        Tone::Good => Style::new().fg(Color::Green),
        Tone::Dim => DIM,
        Tone::Plain => Style::new(),
    };
    let spans = line.iter().map(|(tone, text)| span(text, style(*tone)));
    Line::from_iter(spans)
}

/// How many ranks are in which state: this is also the legend of the grid.
fn counts(top: &Top) -> Line<'static> {
    let ranks = top.ranks();
    let per_cell = match top.grid().ranks_per_cell {
        several @ 2.. if !top.is_table() => format!(" (worst of {several} a cell)"),
        _ => String::new(),
    };
    let text = format!("{} ranks{per_cell}: ", ranks.len());
    let mut spans = vec![span(&text, BOLD)];
    for (state, letter, name, color) in STATES {
        let count = ranks.iter().filter(|rank| rank.state == state).count();
        if count > 0 {
            spans.push(span(&letter.to_string(), Style::new().fg(color)));
            spans.push(span(&format!(" {count} {name}  "), Style::new()));
        }
    }
    let suspects = ranks.iter().filter(|rank| rank.is_suspect);
    let suspects = RankSet(suspects.map(|rank| rank.rank).collect());
    match suspects.0.len() {
        0 => {}
        1 => spans.push(span(&format!("suspect: {suspects}"), BAD)),
        _ => spans.push(span(&format!("suspects: {suspects}"), BAD)),
    }
    Line::from(spans)
}

fn grid(top: &Top) -> Vec<Line<'static>> {
    let grid = top.grid();
    let all = top.ranks();
    let selected = grid.cell_of(top.selected);
    let line_of = |first: usize| {
        let label = all[grid.ranks_in(first).start].rank;
        let width = LABEL_COLUMNS - 1;
        let mut spans = vec![span(&format!("{label:>width$} "), DIM)];
        for cell in first..(first + grid.cells_per_line).min(grid.cells()) {
            let mut ranks = grid.ranks_in(cell);
            // The first of the worst.
            let members = all[ranks.clone()].iter().rev();
            let Some(worst) = members.max_by_key(|rank| severity(rank)) else {
                continue;
            };
            let mut style = style_of(worst);
            if !top.search.is_empty() {
                style = style.add_modifier(match ranks.any(|rank| top.matches(rank)) {
                    true => Modifier::BOLD | Modifier::UNDERLINED,
                    false => Modifier::DIM,
                });
            }
            if cell == selected {
                style = style.add_modifier(Modifier::REVERSED);
            }
            spans.push(span(&state_of(worst).1.to_string(), style));
        }
        Line::from(spans)
    };
    let firsts = (0..grid.cells()).step_by(grid.cells_per_line);
    firsts.map(line_of).collect()
}

fn table(top: &Top) -> Vec<Line<'static>> {
    let shown = top.order.iter().skip(top.first_line);
    let shown: Vec<usize> = shown.take(top.table_lines()).copied().collect();
    let hosts = shown.iter().filter_map(|at| top.ranks()[*at].host.as_ref());
    let widths = hosts.map(|host| host.chars().count());
    let host_width = widths.max().unwrap_or(0).clamp(4, HOST_COLUMNS_MAX);
    let heading = format!(
        "{:>8} {:<12} {:>11} {:>12} {:>8} {:<host_width$} {}",
        "RANK", "STATE", "WAITS FOR", "LAST REQUEST", "PID", "HOST", "WHAT IT DOES"
    );
    let mut lines = vec![Line::from(span(&heading, BOLD))];
    lines.extend(shown.into_iter().map(|at| {
        let rank = &top.ranks()[at];
        let (_, letter, name, _) = state_of(rank);
        let state = format!("{:>8} {letter} {name:<10}", rank.rank);
        let age = |age: Option<u64>| age.map(age_text).unwrap_or_default();
        let pid = rank.pid.map(|pid| pid.to_string()).unwrap_or_default();
        let host = rank.host.as_deref().unwrap_or_default();
        let (waits, last, doing) = (age(rank.waits_ms), age(rank.last_request_ms), &rank.doing);
        let text =
            format!(" {waits:>11} {last:>12} {pid:>8} {host:<host_width$.host_width$} {doing}");
        let line = Line::from(vec![
            span(&state, style_of(rank)),
            span(&text, Style::new()),
        ]);
        let marked = Style::new().add_modifier(Modifier::REVERSED);
        line.style(if at == top.selected {
            marked
        } else {
            Style::new()
        })
    }));
    if top.order.is_empty() && !top.search.is_empty() {
        let text = format!("no rank matches {:?}", top.search);
        lines.push(Line::from(span(&text, DIM)));
    }
    lines
}

fn footer(top: &Top) -> Line<'static> {
    if top.is_searching {
        let typed = format!("/{}_", top.search);
        let help = "   rank, host, pid or key; Enter keeps it, Esc clears it";
        return Line::from(vec![span(&typed, BOLD), span(help, DIM)]);
    }
    let reversed = if top.is_reversed { ", reversed" } else { "" };
    let search = match &*top.search {
        "" => String::new(),
        text => format!("  n next of {text:?}"),
    };
    let sort = ORDERS[top.sort].0;
    let help = format!(
        "q quit  ? help  Tab view  Enter open  Esc back  / search{search}  s sort ({sort}{reversed})"
    );
    Line::from(span(&help, DIM))
}

/// The entry of a rank's state; the first one for a state that a newer server has.
fn state_of(rank: &RankReport) -> (RankState, char, &'static str, Color) {
    let at = STATES.iter().position(|row| row.0 == rank.state);
    STATES[at.unwrap_or(0)]
}

fn style_of(rank: &RankReport) -> Style {
    match rank.is_suspect {
        true => BAD.add_modifier(Modifier::UNDERLINED),
        false => Style::new().fg(state_of(rank).3),
    }
}

/// A text of others, made printable.
fn span(text: &str, style: Style) -> Span<'static> {
    Span::styled(printable(text, TEXT_CHARS_MAX).to_string(), style)
}
