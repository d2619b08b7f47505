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
    let job = Job::stuck(4, 2);
    let top = job.shown(110, 14);
    let lines = lines_of(&draw_on(&top, 110, 14, true));
    let expected = [
        "c10d top  127.0.0.1:29500  updated 0.4 s ago",
        "Waiting for rank 2 (1 of 4) for 31 s.",
        "",
        "  then: A barrier waits as well.",
        "4 ranks: ? 1 not seen  w 3 waiting  suspect: rank 2",
        "    RANK STATE          WAITS FOR LAST REQUEST      PID HOST  WHAT IT DOES",
        "       0 w waiting           30 s         30 s     4000 node0 waits for rank 2",
        "       1 w waiting           30 s         30 s     4001 node0 waits for rank 2",
        "       2 ? not seen                                     node0 started 40 s ago, has not connected",
        "       3 w waiting           30 s         30 s     4003 node0 waits for rank 2",
        "",
        "",
        "",
        "q quit  ? help  Tab view  Enter open  Esc back  / search  s sort (rank)",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_large_job_is_a_grid_with_the_missing_rank_in_red() {
    let job = Job::stuck(16_384, 9_000);
    let top = job.shown(200, 100);
    let buffer = draw_on(&top, 200, 100, true);
    let lines = lines_of(&buffer);
    assert_eq!(
        lines[4],
        "16384 ranks: ? 1 not seen  w 16383 waiting  suspect: rank 9000"
    );
    // 192 ranks in a line, after a label of 8 columns.
    let (line, column) = (5 + 9_000 / 192, 8 + 9_000 % 192);
    assert!(lines[line].starts_with(&format!("{:>7} www", 9_000 / 192 * 192)));
    let position =
        |line: usize, column: usize| (u16::try_from(column).unwrap(), u16::try_from(line).unwrap());
    let cell = &buffer[position(line, column)];
    assert_eq!((cell.symbol(), cell.fg), ("?", Color::Red));
    assert!(cell.modifier.contains(Modifier::REVERSED), "it is selected");
    let beside = &buffer[position(line, column + 1)];
    assert_eq!((beside.symbol(), beside.fg), ("w", Color::Yellow));
    let letters: usize = lines[5..99]
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
    let job = Job::stuck(16_384, 9_000);
    let top = job.shown(80, 24);
    let buffer = draw_on(&top, 80, 24, true);
    let lines = lines_of(&buffer);
    assert!(
        lines[4].starts_with("16384 ranks (worst of 16 a cell): "),
        "{}",
        lines[4]
    );
    let grid = lines[5..23].concat();
    assert_eq!(grid.matches('?').count(), 1);
    assert_eq!(grid.matches('w').count(), 1_023);
}

#[test]
fn details_name_all_that_is_known() {
    let job = Job::stuck(4, 2);
    let mut top = job.shown(100, 30);
    job.press(&mut top, seconds(0), &[Key::Home, Key::Enter]);
    let text = lines_of(&draw_on(&top, 100, 30, true)).join("\n");
    for part in [
        "rank 0: waiting",
        "  does            waits for rank 2",
        "  waits for       /default_pg/0//cpu//0/2",
        "  since           30 s ago",
        "  process         4000",
        "  host            node0",
        "  held up by      Waiting for rank 2 (1 of 4) for 31 s.",
    ] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    job.press(
        &mut top,
        seconds(0),
        &[Key::Escape, Key::End, Key::Up, Key::Enter],
    );
    let text = lines_of(&draw_on(&top, 100, 30, true)).join("\n");
    assert!(
        text.contains("  cause of        Waiting for rank 2"),
        "{text}"
    );
}

#[test]
fn the_help_explains_keys_and_letters_until_the_next_key() {
    let job = Job::stuck(4, 2);
    let mut top = job.shown(100, 30);
    job.press(&mut top, seconds(0), &[Key::Char('?')]);
    let text = lines_of(&draw_on(&top, 100, 30, true)).join("\n");
    for part in [
        "  Tab             change between grid and table",
        "  ? not seen      nothing is known of it: it has never connected",
        "  . idle          connected, and asks the store for nothing",
        "  underlined      what the others wait for",
    ] {
        assert!(text.contains(part), "{part:?} in\n{text}");
    }
    assert!(!text.contains("waits for rank 2"), "{text}");
    // Also a key that would do something else.
    job.press(&mut top, seconds(0), &[Key::Tab]);
    let text = lines_of(&draw_on(&top, 100, 30, true)).join("\n");
    assert!(text.contains("waits for rank 2"), "{text}");
}

#[test]
fn suspects_are_named_or_counted() {
    for (suspects, expected) in [
        (&[2][..], "suspect: rank 2"),
        (&[1, 3], "suspects: ranks 1 and 3"),
        (&[0, 1, 3], "3 ranks are suspects"),
    ] {
        let mut job = Job::stuck(4, 2);
        for (rank, cell) in job.overview.status.cells.iter_mut().enumerate() {
            cell.is_suspect = suspects.contains(&rank);
        }
        let lines = lines_of(&draw_on(&job.shown(100, 30), 100, 30, true));
        assert!(lines[4].ends_with(expected), "{}", lines[4]);
    }
}

#[test]
fn the_footer_shows_what_is_typed_and_the_title_what_fails() {
    let job = Job::stuck(4, 2);
    let mut top = job.shown(100, 20);
    job.press(&mut top, seconds(0), &[Key::Char('/')]);
    job.type_text(&mut top, seconds(0), "zz");
    let lines = lines_of(&draw_on(&top, 100, 20, true));
    assert!(
        lines[19].starts_with("/zz_   rank, host, pid or key"),
        "{}",
        lines[19]
    );
    assert!(lines.contains(&"no rank matches \"zz\"".to_owned()));
    let failed = Answer::Failed("the connection was refused".to_owned());
    top.step(seconds(0), Input::Answer(failed));
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
        let mut job = Job::stuck(world, random.usize(..world));
        job.overview.status.headline = EVIL.repeat(20);
        job.overview.status.findings[0].text = EVIL.to_owned();
        for row in &mut job.rows {
            row.host = Some(EVIL.to_owned());
            row.doing = EVIL.to_owned();
            row.last_request = Some(EVIL.to_owned());
        }
        let (columns, rows) = (random.u16(0..120), random.u16(0..40));
        let mut top = Top::new(usize::from(columns), usize::from(rows));
        for step in 0..30 {
            let now = seconds(step);
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
                Key::Escape,
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
            job.run(&mut top, now, Input::Key(key));
            if random.u8(..10) == 0 {
                let failed = Answer::Failed(EVIL.to_owned());
                top.step(now, Input::Answer(failed));
            }
            assert!(top.selected < world, "seed {seed}");
            let order = &top.order;
            let shown = order.iter().position(|rank| *rank == top.selected);
            if let Some(at) = shown.filter(|_| top.view() == super::super::model::View::Table) {
                let lines = top.main_lines().saturating_sub(1).max(1);
                let visible = top.first_line..top.first_line + lines;
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
