//! What is on the screen.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};

use super::super::view::draw;
use super::*;

fn draw_on(top: &Top, columns: u16, rows: u16, has_colors: bool) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    let now = Duration::from_millis(400);
    terminal
        .draw(|frame| draw(frame, top, now, has_colors))
        .unwrap();
    terminal.backend().buffer().clone()
}

fn lines_of(buffer: &Buffer) -> Vec<String> {
    let columns = usize::from(buffer.area.width);
    let lines = buffer.content().chunks(columns);
    lines
        .map(|line| {
            let text: String = line.iter().map(|cell| cell.symbol()).collect();
            text.trim_end().to_owned()
        })
        .collect()
}

#[test]
fn a_small_job_is_a_table() {
    let top = shown(stuck(4, 2), 110, 14);
    let lines = lines_of(&draw_on(&top, 110, 14, true));
    let expected = [
        "c10d top  127.0.0.1:29500  updated 0.4 s ago",
        "Waiting for rank 2 (1 of 4) for 31 s.",
        "  because of: rank 2; waiting: ranks 0, 1 and 3",
        "",
        "  … c10d why prints the rest",
        "4 ranks: ? 1 not seen  w 3 waiting  suspect: rank 2",
        "    RANK STATE          WAITS FOR LAST REQUEST      PID HOST  WHAT IT DOES",
        "       0 w waiting           30 s         30 s     4000 node0 waits for rank 2",
        "       1 w waiting           30 s         30 s     4001 node0 waits for rank 2",
        "       2 ? not seen                                     node0 started 40 s ago, has not connected",
        "       3 w waiting           30 s         30 s     4003 node0 waits for rank 2",
        "",
        "",
        "q quit  ? help  Tab view  Enter open  Esc back  / search  s sort (rank)",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_large_job_is_a_grid_with_the_missing_rank_in_red() {
    let top = shown(stuck(16_384, 9_000), 200, 100);
    let buffer = draw_on(&top, 200, 100, true);
    let lines = lines_of(&buffer);
    let above = 1 + top.text.len();
    assert_eq!(
        lines[above],
        "16384 ranks: ? 1 not seen  w 16383 waiting  suspect: rank 9000"
    );
    // 192 ranks in a line, after a label of 8 columns.
    let (line, column) = (above + 1 + 9_000 / 192, 8 + 9_000 % 192);
    assert!(lines[line].starts_with(&format!("{:>7} www", 9_000 / 192 * 192)));
    let position =
        |line: usize, column: usize| (u16::try_from(column).unwrap(), u16::try_from(line).unwrap());
    let cell = &buffer[position(line, column)];
    assert_eq!((cell.symbol(), cell.fg), ("?", Color::Red));
    assert!(cell.modifier.contains(Modifier::REVERSED), "it is selected");
    let beside = &buffer[position(line, column + 1)];
    assert_eq!((beside.symbol(), beside.fg), ("w", Color::Yellow));
    let letters: usize = lines[above + 1..99]
        .iter()
        .map(|line| line.matches(['w', '?']).count())
        .sum();
    assert_eq!(letters, 16_384, "every rank is on the screen");

    let without = draw_on(&top, 200, 100, false);
    let cells = without.content().iter();
    assert!(cells.clone().all(|cell| cell.fg == Color::Reset));
    let cell = &without[position(line, column)];
    assert!(
        cell.modifier
            .contains(Modifier::UNDERLINED | Modifier::BOLD)
    );
}

#[test]
fn a_small_screen_shows_the_worst_of_several_ranks_in_a_cell() {
    let top = shown(stuck(16_384, 9_000), 80, 24);
    let buffer = draw_on(&top, 80, 24, true);
    let lines = lines_of(&buffer);
    let above = 1 + top.text.len();
    let counts = &lines[above];
    let expected = "16384 ranks (worst of 32 a cell): ";
    assert!(counts.starts_with(expected), "{counts}");
    let grid = lines[above + 1..23].concat();
    assert_eq!(grid.matches('?').count(), 1);
    assert_eq!(grid.matches('w').count(), 511);
}

#[test]
fn details_name_all_that_is_known() {
    let mut top = shown(stuck(4, 2), 100, 30);
    press(&mut top, &[Key::Home, Key::Enter]);
    let text = lines_of(&draw_on(&top, 100, 30, true)).join("\n");
    for part in [
        "rank 0 on node0, pid 4000: waits for rank 2; last request 30 s ago: WAIT /default_pg",
        "  waits for    /default_pg/0//cpu//0/2",
        "  since        30 s ago",
        "  held up by   Waiting for rank 2 (1 of 4) for 31 s.",
    ] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    press(&mut top, &[Key::Esc, Key::End, Key::Up, Key::Enter]);
    let text = lines_of(&draw_on(&top, 100, 30, true)).join("\n");
    assert!(text.contains("  cause of     Waiting for rank 2"), "{text}");
}

#[test]
fn the_help_explains_keys_and_letters_until_the_next_key() {
    let mut top = shown(stuck(4, 2), 100, 30);
    press(&mut top, &[Key::Char('?')]);
    let text = lines_of(&draw_on(&top, 100, 30, true)).join("\n");
    for part in [
        "  arrows, hjkl    select a rank",
        "  Tab             change between grid and table",
        "  ? not seen      nothing is known of it: it has never connected",
        "  . idle          connected, and asks the store for nothing",
        "  underlined      what the other ranks wait for",
    ] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    assert!(!text.contains("waits for rank 2"), "{text}");
    // Also a key that would do something else.
    press(&mut top, &[Key::Tab]);
    let text = lines_of(&draw_on(&top, 100, 30, true)).join("\n");
    assert!(text.contains("waits for rank 2"), "{text}");
}

#[test]
fn suspects_are_named() {
    for (suspects, expected) in [
        (&[2][..], "suspect: rank 2"),
        (&[1, 3], "suspects: ranks 1 and 3"),
        (&[0, 1, 3], "suspects: ranks 0, 1 and 3"),
    ] {
        let mut answer = stuck(4, 2);
        for rank in &mut answer.report.ranks {
            rank.is_suspect = suspects.contains(&rank.rank);
        }
        let top = shown(answer, 100, 30);
        let lines = lines_of(&draw_on(&top, 100, 30, true));
        let counts = &lines[1 + top.text.len()];
        assert!(counts.ends_with(expected), "{counts}");
    }
}

#[test]
fn the_footer_shows_what_is_typed_and_the_title_what_fails() {
    let mut top = shown(stuck(4, 2), 100, 20);
    press(&mut top, &[Key::Char('/')]);
    type_text(&mut top, "zz");
    let lines = lines_of(&draw_on(&top, 100, 20, true));
    assert!(
        lines[19].starts_with("/zz_   rank, host, pid or key"),
        "{}",
        lines[19]
    );
    assert!(lines.contains(&"no rank matches \"zz\"".to_owned()));
    top.take(Duration::ZERO, Err("the connection was refused".to_owned()));
    let lines = lines_of(&draw_on(&top, 100, 20, true));
    assert!(
        lines[0].ends_with("state of 0.4 s ago: the connection was refused"),
        "{}",
        lines[0]
    );
}

/// Random keys, sizes and answers with hostile names never panic, and put nothing on the screen that is not
/// printable.
#[test]
fn nothing_that_is_pressed_or_answered_breaks_the_screen() {
    const EVIL: &str = "\x1b[2J\x1b]0;x\x07\u{9b}31m\r\n\t\u{202e}\u{200b}日";
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..15 {
        let world = *random.choice(&[1, 3, 70, 1_200]).unwrap();
        let mut answer = stuck(world, random.usize(..world));
        answer.report.headline = EVIL.repeat(20);
        answer.report.findings[0].text = EVIL.to_owned();
        for row in &mut answer.report.ranks {
            row.host = Some(EVIL.to_owned());
            row.doing = EVIL.to_owned();
            row.last_request = Some(EVIL.to_owned());
        }
        let (columns, rows) = (random.u16(0..120), random.u16(0..40));
        let mut top = shown(answer, usize::from(columns), usize::from(rows));
        for _ in 0..30 {
            let keys = [
                Key::Up,
                Key::Down,
                Key::Left,
                Key::Right,
                Key::PageUp,
                Key::PageDown,
                Key::Home,
                Key::End,
                Key::Enter,
                Key::Esc,
                Key::Tab,
                Key::Backspace,
                Key::Char('/'),
                Key::Char('?'),
                Key::Char('s'),
                Key::Char('r'),
                Key::Char('n'),
                Key::Char('N'),
                Key::Char('1'),
            ];
            let key = *random.choice(&keys).unwrap();
            top.press(key);
            if random.u8(..10) == 0 {
                top.take(Duration::ZERO, Err(EVIL.to_owned()));
            }
            assert!(top.selected < world, "seed {seed}");
            let order = &top.order;
            let shown = order.iter().position(|rank| *rank == top.selected);
            if let Some(at) = shown.filter(|_| top.is_table()) {
                let visible = top.first_line..top.first_line + top.table_lines();
                assert!(visible.contains(&at), "seed {seed}");
            }
            let buffer = draw_on(&top, columns.max(1), rows.max(1), true);
            for cell in buffer.content() {
                let is_safe = |c: char| !c.is_control() && !"\u{202e}\u{200b}".contains(c);
                assert!(cell.symbol().chars().all(is_safe), "seed {seed}: {cell:?}");
            }
        }
    }
}
