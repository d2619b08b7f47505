//! What keys and answers do.

use c10d_inspect::RankReport;

use super::super::model::{Sort, View};
use super::*;

#[test]
fn the_overview_and_the_rows_on_the_screen_are_fetched_each_second() {
    let job = Job::stuck(4, 2);
    let mut top = Top::new(100, 30);
    let both = [Request::Overview, Request::Rows { chunk: 0 }];
    assert_eq!(job.run(&mut top, seconds(0), Input::Tick), both);
    assert_eq!(
        job.run(&mut top, Duration::from_millis(999), Input::Tick),
        []
    );
    assert_eq!(job.run(&mut top, seconds(1), Input::Tick), both);
}

#[test]
fn one_request_is_in_progress_at_most() {
    let job = Job::stuck(4, 2);
    let mut top = Top::new(100, 30);
    let fetch = top.step(seconds(0), Input::Tick);
    assert_eq!(fetch, Next::Fetch(Request::Overview));
    for now in 0..100 {
        assert_eq!(top.step(seconds(now), Input::Tick), Next::Wait);
        let key = Input::Key(Key::Char('s'));
        assert_eq!(top.step(seconds(now), key), Next::Wait);
    }
    let answer = Input::Answer(job.answer(Request::Overview));
    assert!(matches!(top.step(seconds(100), answer), Next::Fetch(_)));
}

#[test]
fn few_ranks_are_a_table_and_many_are_a_grid() {
    assert_eq!(Job::stuck(4, 2).shown(80, 24).view(), View::Table);
    let job = Job::stuck(16_384, 9_000);
    let mut top = Top::new(200, 50);
    // The grid needs no rows but those of the selected rank, which is the one to blame.
    let asked = job.run(&mut top, seconds(0), Input::Tick);
    assert_eq!(asked, [Request::Overview, Request::Rows { chunk: 17 }]);
    assert_eq!((top.view(), top.selected), (View::Grid, 9_000));
}

#[test]
fn enter_opens_the_rank_that_needs_attention_and_escape_goes_back() {
    let job = Job::stuck(16_384, 9_000);
    let mut top = job.shown(80, 24);
    let per_cell = top.grid().ranks_per_cell;
    assert!(per_cell > 1);
    // Away from it and back: the first rank of its cell is selected.
    job.press(&mut top, seconds(0), &[Key::Home]);
    while top.grid().cell_of(top.selected) != top.grid().cell_of(9_000) {
        let to = if top.selected + 64 * per_cell <= 9_000 {
            Key::Down
        } else {
            Key::Right
        };
        job.press(&mut top, seconds(0), &[to]);
    }
    job.press(&mut top, seconds(0), &[Key::Enter]);
    assert_eq!((top.view(), top.selected), (View::Table, 9_000));
    assert!(
        top.row(9_000).is_some(),
        "the rows of the table are fetched"
    );
    job.press(&mut top, seconds(0), &[Key::Enter]);
    assert_eq!(top.detailed().map(|(rank, _)| rank), Some(9_000));
    job.press(&mut top, seconds(0), &[Key::Escape]);
    assert_eq!((top.detailed(), top.view()), (None, View::Table));
    job.press(&mut top, seconds(0), &[Key::Escape]);
    assert_eq!(top.view(), View::Grid);
}

#[test]
fn the_table_scrolls_with_the_selection_and_fetches_what_it_shows() {
    let job = Job::stuck(2_000, 0);
    let mut top = job.shown(80, 24);
    job.press(&mut top, seconds(0), &[Key::Tab]);
    assert_eq!((top.view(), top.first_line), (View::Table, 0));
    let asked = job.press(&mut top, seconds(0), &[Key::End]);
    assert_eq!(asked, [Request::Rows { chunk: 3 }]);
    assert_eq!(top.selected, 1_999);
    assert_eq!(top.first_line, 2_000 - (top.main_lines() - 1));
    job.press(&mut top, seconds(0), &[Key::Up, Key::PageUp, Key::Home]);
    assert_eq!((top.selected, top.first_line), (0, 0));
}

#[test]
fn sorting_goes_through_all_orders() {
    let job = Job::stuck(2_000, 700);
    let mut top = job.shown(100, 24);
    let s = [Key::Char('s')];
    job.press(&mut top, seconds(0), &s);
    assert_eq!((top.sort(), top.selected), ((Sort::State, false), 700));
    assert_eq!(top.order[..3], [700, 0, 1]);

    let asked = job.press(&mut top, seconds(0), &s);
    // Chunks 0 and 1 were on the screen.
    let missing = [2, 3].map(|chunk| Request::Rows { chunk });
    assert_eq!(asked, missing, "all rows are needed");
    assert_eq!((top.sort().0, top.order[0]), (Sort::Wait, 1_999));
    assert_eq!(top.order[1_999], 700, "it does not wait");
    let due = job.run(&mut top, seconds(4), Input::Tick);
    assert_eq!(due, [Request::Overview], "the other rows are young enough");
    assert_eq!(job.run(&mut top, seconds(5), Input::Tick).len(), 5);

    job.press(&mut top, seconds(5), &[Key::Char('r')]);
    assert_eq!((top.sort(), top.order[0]), ((Sort::Wait, true), 700));
    job.press(&mut top, seconds(5), &s);
    assert_eq!(top.sort(), (Sort::LastRequest, false));
    job.press(&mut top, seconds(5), &s);
    assert_eq!(
        (top.sort().0, &top.order[..9]),
        (Sort::Host, &[0, 1, 2, 3, 4, 5, 6, 7, 8][..])
    );
    job.press(&mut top, seconds(5), &s);
    assert_eq!(top.sort().0, Sort::Rank);
}

#[test]
fn a_search_finds_numbers_hosts_processes_and_keys() {
    let job = Job::stuck(2_048, 900);
    for (text, first, count) in [
        // The rank, and 8 ranks each of node12, node112, node212 and node120 to node129.
        ("12", 12, 105),
        ("NODE77", 616, 8),
        ("5234", 1_234, 1),
        ("cpu//0/900", 0, 2_047),
        ("has not connected", 900, 1),
    ] {
        let mut top = job.shown(200, 50);
        job.press(&mut top, seconds(0), &[Key::Home, Key::Char('/')]);
        job.type_text(&mut top, seconds(0), text);
        assert!(top.is_searching);
        job.press(&mut top, seconds(0), &[Key::Enter]);
        assert!(!top.is_searching);
        let selected = top.selected;
        job.press(&mut top, seconds(0), &[Key::Tab]);
        assert_eq!((selected, top.order.len()), (first, count), "{text}");
    }
}

#[test]
fn a_search_selects_a_match_as_soon_as_its_row_arrives() {
    let job = Job::stuck(2_048, 0);
    let mut top = job.shown(200, 50);
    top.step(seconds(0), Input::Key(Key::Char('/')));
    let mut next = Next::Wait;
    for char in "node200".chars() {
        let step = top.step(seconds(0), Input::Key(Key::Char(char)));
        next = if step == Next::Wait { next } else { step };
    }
    assert_eq!(top.view(), View::Grid);
    while let Next::Fetch(request) = next {
        next = top.step(seconds(0), Input::Answer(job.answer(request)));
    }
    assert_eq!(top.selected, 1_600);
}

#[test]
fn a_search_can_be_walked_through_corrected_and_left() {
    let job = Job::stuck(64, 2);
    let mut top = job.shown(100, 30);
    let now = seconds(0);
    job.press(&mut top, now, &[Key::Char('g'), Key::Char('/')]);
    job.type_text(&mut top, now, "node3q");
    let matches = |top: &Top| (0..64).filter(|rank| top.matches(*rank)).count();
    assert_eq!(matches(&top), 0, "q is text here");
    job.press(&mut top, now, &[Key::Backspace, Key::Enter]);
    assert_eq!((&*top.search, top.selected), ("node3", 24));
    job.press(&mut top, now, &[Key::Char('n'), Key::Char('n')]);
    assert_eq!(top.selected, 26);
    job.press(&mut top, now, &[Key::Char('N'); 3]);
    assert_eq!(top.selected, 31, "from the end again");
    job.press(&mut top, now, &[Key::Escape]);
    assert_eq!((&*top.search, matches(&top)), ("", 64));
    job.press(&mut top, now, &[Key::Char('/')]);
    job.type_text(&mut top, now, &"x".repeat(1_000));
    assert!(top.search.len() <= 64);
    job.press(&mut top, now, &[Key::Escape]);
    assert!(!top.is_searching && top.search.is_empty());
}

#[test]
fn a_failure_keeps_the_last_state_and_is_retried_after_a_second() {
    let job = Job::stuck(4, 2);
    let mut top = job.shown(100, 30);
    let fetch = top.step(seconds(1), Input::Tick);
    assert_eq!(fetch, Next::Fetch(Request::Overview));
    let failed = Input::Answer(Answer::Failed("no answer".to_owned()));
    assert_eq!(top.step(seconds(3), failed), Next::Wait);
    assert_eq!(top.failure.as_deref(), Some("no answer"));
    assert_eq!((top.cells().len(), top.age(seconds(3))), (4, seconds(3)));
    assert_eq!(
        top.step(Duration::from_millis(3_999), Input::Tick),
        Next::Wait
    );
    assert_eq!(job.run(&mut top, seconds(4), Input::Tick).len(), 2);
    assert_eq!(top.failure.as_deref(), None);
}

#[test]
fn a_smaller_job_replaces_a_larger_one() {
    let mut top = Job::stuck(2_000, 1_900).shown(100, 30);
    assert_eq!(top.selected, 1_900);
    let smaller = Job::stuck(3, 1);
    smaller.run(&mut top, seconds(1), Input::Tick);
    assert_eq!((top.cells().len(), top.selected), (3, 2));
    assert!(top.row(1_900).is_none());
    let nobody = Job {
        overview: Overview::default(),
        rows: Vec::new(),
    };
    nobody.run(&mut top, seconds(2), Input::Tick);
    for key in [
        Key::Enter,
        Key::Down,
        Key::Char('n'),
        Key::End,
        Key::Tab,
        Key::Up,
    ] {
        nobody.press(&mut top, seconds(2), &[key]);
    }
    assert_eq!((top.selected, top.detailed()), (0, None));
}

#[test]
fn q_and_ctrl_c_end_it() {
    let job = Job::stuck(4, 2);
    for key in [Key::Char('q'), Key::Interrupt] {
        let mut top = job.shown(80, 24);
        assert_eq!(top.step(seconds(0), Input::Key(key)), Next::Quit);
    }
    let mut top = job.shown(80, 24);
    job.press(&mut top, seconds(0), &[Key::Char('/'), Key::Char('q')]);
    assert_eq!(top.step(seconds(0), Input::Key(Key::Interrupt)), Next::Quit);
}

#[test]
fn rows_that_nobody_asked_for_are_dropped() {
    let job = Job::stuck(4, 2);
    let mut top = job.shown(80, 24);
    let mut row = RankReport::default();
    row.rank = usize::MAX;
    let rows = vec![row; 3];
    let answer = Answer::Rows {
        chunk: usize::MAX,
        rows,
    };
    top.step(seconds(0), Input::Answer(answer));
    assert!(top.row(usize::MAX).is_none());
}
