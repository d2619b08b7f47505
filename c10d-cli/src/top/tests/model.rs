//! What keys and answers do.

use super::super::keys::INTERRUPT;
use super::super::model::ORDERS;
use super::*;

/// The number of the selected rank.
fn selected(top: &Top) -> usize {
    top.ranks()[top.selected].rank
}

#[test]
fn few_ranks_are_a_table_and_many_are_a_grid() {
    assert!(shown(stuck(4, 2), 80, 24).is_table());
    let top = shown(stuck(16_384, 9_000), 200, 50);
    assert!(!top.is_table());
    assert_eq!(selected(&top), 9_000, "the rank that is to blame");
}

#[test]
fn enter_opens_the_rank_that_needs_attention_and_escape_goes_back() {
    let mut top = shown(stuck(16_384, 9_000), 80, 24);
    let per_cell = top.grid().ranks_per_cell;
    assert!(per_cell > 1);
    // Away from it and back: the first rank of its cell is selected.
    press(&mut top, &[Key::Home]);
    while top.grid().cell_of(top.selected) != top.grid().cell_of(9_000) {
        let to = if top.selected + 64 * per_cell <= 9_000 {
            Key::Down
        } else {
            Key::Right
        };
        press(&mut top, &[to]);
    }
    press(&mut top, &[Key::Enter]);
    assert!(top.is_table());
    assert_eq!((top.selected, top.detailed()), (9_000, None));
    press(&mut top, &[Key::Enter]);
    assert_eq!(top.detailed().map(|rank| rank.rank), Some(9_000));
    press(&mut top, &[Key::Esc]);
    assert!(top.detailed().is_none() && top.is_table());
    press(&mut top, &[Key::Esc]);
    assert!(!top.is_table());
}

#[test]
fn the_table_scrolls_with_the_selection() {
    let mut top = shown(stuck(2_000, 0), 80, 24);
    press(&mut top, &[Key::Tab]);
    assert!(top.is_table());
    assert_eq!(top.first_line, 0);
    press(&mut top, &[Key::End]);
    assert_eq!(top.selected, 1_999);
    assert_eq!(top.first_line, 2_000 - (top.main_lines() - 1));
    press(&mut top, &[Key::Up, Key::PageUp, Key::Home]);
    assert_eq!((top.selected, top.first_line), (0, 0));
}

#[test]
fn sorting_goes_through_all_orders() {
    let mut top = shown(stuck(2_000, 700), 100, 24);
    let sorted = |top: &Top| (ORDERS[top.sort].0, top.is_reversed, top.order[0]);
    let s = [Key::Char('s')];
    press(&mut top, &s);
    assert_eq!(sorted(&top), ("state", false, 700));
    assert_eq!((top.selected, &top.order[..3]), (700, &[700, 0, 1][..]));
    press(&mut top, &s);
    assert_eq!(sorted(&top), ("longest wait", false, 1_999));
    assert_eq!(top.order[1_999], 700, "it does not wait");
    press(&mut top, &[Key::Char('r')]);
    assert_eq!(sorted(&top), ("longest wait", true, 700));
    press(&mut top, &s);
    assert_eq!(sorted(&top), ("last request", false, 1_999));
    press(&mut top, &s);
    assert_eq!(sorted(&top), ("host", false, 0));
    assert_eq!(top.order[..9], [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    press(&mut top, &s);
    assert_eq!(sorted(&top), ("rank", false, 0));
}

#[test]
fn a_search_finds_numbers_hosts_processes_and_keys() {
    for (text, first, count) in [
        // The rank, and 8 ranks each of node12, node112, node212 and node120 to node129.
        ("12", 12, 105),
        ("NODE77", 616, 8),
        ("5234", 1_234, 1),
        ("cpu//0/900", 0, 2_047),
        ("has not connected", 900, 1),
    ] {
        let mut top = shown(stuck(2_048, 900), 200, 50);
        press(&mut top, &[Key::Home, Key::Char('/')]);
        type_text(&mut top, text);
        assert!(top.is_searching);
        press(&mut top, &[Key::Enter]);
        assert!(!top.is_searching);
        let selected = top.selected;
        press(&mut top, &[Key::Tab]);
        assert_eq!((selected, top.order.len()), (first, count), "{text}");
    }
}

#[test]
fn a_search_can_be_walked_through_corrected_and_left() {
    let mut top = shown(stuck(64, 2), 100, 30);
    press(&mut top, &[Key::Char('g'), Key::Char('/')]);
    type_text(&mut top, "node3q");
    let matches = |top: &Top| (0..64).filter(|rank| top.matches(*rank)).count();
    assert_eq!(matches(&top), 0, "q is text here");
    press(&mut top, &[Key::Backspace, Key::Enter]);
    assert_eq!((&*top.search, top.selected), ("node3", 24));
    press(&mut top, &[Key::Char('n'), Key::Char('n')]);
    assert_eq!(top.selected, 26);
    press(&mut top, &[Key::Char('N'); 3]);
    assert_eq!(top.selected, 31, "from the end again");
    press(&mut top, &[Key::Esc]);
    assert_eq!((&*top.search, matches(&top)), ("", 64));
    press(&mut top, &[Key::Char('/')]);
    type_text(&mut top, &"x".repeat(1_000));
    assert!(top.search.len() <= 64);
    press(&mut top, &[Key::Esc]);
    assert!(!top.is_searching && top.search.is_empty());
}

#[test]
fn a_failure_keeps_the_last_state() {
    let mut top = shown(stuck(4, 2), 100, 30);
    top.take(Duration::from_secs(3), Err("no answer".to_owned()));
    assert_eq!(top.failure.as_deref(), Some("no answer"));
    assert_eq!((top.ranks().len(), top.answered_at), (4, Duration::ZERO));
    top.take(Duration::from_secs(4), Ok(stuck(4, 2)));
    assert_eq!(top.failure, None);
    assert_eq!(top.answered_at, Duration::from_secs(4));
}

#[test]
fn another_report_keeps_the_selected_rank() {
    let mut top = shown(stuck(2_000, 1_900), 100, 30);
    press(&mut top, &[Key::Tab, Key::Down]);
    assert_eq!(selected(&top), 1_901);
    // Of the first ranks nothing is known any more.
    let mut fewer = stuck(2_000, 0);
    fewer.report.ranks.drain(..100);
    top.take(Duration::ZERO, Ok(fewer));
    assert_eq!((selected(&top), top.selected), (1_901, 1_801));
    top.take(Duration::ZERO, Ok(stuck(3, 1)));
    assert_eq!((top.ranks().len(), top.selected), (3, 0));
    top.take(Duration::ZERO, Ok(Answer::default()));
    let (next, before) = (Key::Char('n'), Key::Char('N'));
    let keys = [
        Key::Enter,
        Key::Down,
        next,
        before,
        Key::End,
        Key::Tab,
        Key::Up,
    ];
    press(&mut top, &keys);
    assert_eq!((top.selected, top.detailed()), (0, None));
}

#[test]
fn q_and_ctrl_c_end_it() {
    let mut top = shown(stuck(4, 2), 80, 24);
    assert!(top.press(Key::Char('q')));
    assert!(top.press(INTERRUPT));
    press(&mut top, &[Key::Char('/'), Key::Char('q')]);
    assert!(top.press(INTERRUPT));
}
