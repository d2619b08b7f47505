//! Runs the cases of `testdata`, one file for each table of `docs/spec/rendezvous.md`, section 5.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Action, Context, Decision, Entering, amend, close, exit, join, keep_alive, leave};
use crate::engine::apply::{apply, make_spares, remove_dead};
use crate::engine::last_round::Ranks;
use crate::values::node::NodeId;
use crate::values::settings::RendezvousSettings;
use crate::values::state::RendezvousState;
use crate::values::timestamp::Timestamp;

const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);
const DEADLINE: Duration = Duration::from_secs(100_000);

/// All actions, found by their names.
const ACTIONS: [Action; 15] = [
    Action::KeepAlive,
    Action::AddToParticipants,
    Action::EnterRound,
    Action::AddToWaitList,
    Action::AddToRedundancyList,
    Action::RemoveFromParticipants,
    Action::RemoveFromWaitList,
    Action::RemoveFromRedundancyList,
    Action::MarkComplete,
    Action::MarkClosed,
    Action::Sync,
    Action::Finish,
    Action::ErrorClosed,
    Action::ErrorTimeout,
    Action::GracefulExit,
];

/// The lines of a table as trimmed columns, with their line numbers. Comments and empty lines are skipped.
fn cases(table: &'static str) -> impl Iterator<Item = (usize, Vec<&'static str>)> {
    (1..)
        .zip(table.lines())
        .filter(|(_, line)| !line.starts_with('#') && !line.trim().is_empty())
        .map(|(number, line)| (number, line.split('|').map(str::trim).collect()))
}

fn node(name: &str) -> NodeId {
    NodeId::new(name, 1, 0)
}

fn nodes(list: &str) -> impl Iterator<Item = NodeId> {
    list.split(',').filter(|name| !name.is_empty()).map(node)
}

fn seconds_from_now(text: &str) -> Timestamp {
    let seconds: i64 = text.parse().expect("a number of seconds");
    Timestamp::from_micros(NOW.as_micros() + seconds * 1_000_000)
}

fn state(text: &str) -> RendezvousState {
    let mut state = RendezvousState::default();
    let mut beats = Vec::new();
    for token in text.split_whitespace() {
        let (key, value) = token.split_once('=').unwrap_or((token, ""));
        match key {
            "complete" => state.complete = true,
            "closed" => state.closed = true,
            "last_call" => state.deadline = Some(NOW),
            "deadline" => state.deadline = Some(seconds_from_now(value)),
            "round" => state.round = value.parse().expect("a round"),
            "in" => {
                for member in value.split(',').filter(|name| !name.is_empty()) {
                    let (name, rank) = member.split_once(':').unwrap_or((member, "0"));
                    let rank = rank.parse().expect("a rank");
                    state.participants.insert(node(name), rank);
                }
            }
            "wait" => state.wait_list = nodes(value).collect(),
            "spare" => state.redundancy_list = nodes(value).collect(),
            "beat" => {
                let (name, at) = value.split_once('@').expect("a node and a time");
                beats.push((node(name), seconds_from_now(at)));
            }
            _ => panic!("unknown part of a state: {token}"),
        }
    }
    let listed = state.participants.keys();
    let listed = listed.chain(&state.wait_list).chain(&state.redundancy_list);
    let old = seconds_from_now("-10");
    state.last_heartbeats = listed.map(|node| (node.clone(), old)).collect();
    state.last_heartbeats.extend(beats);
    state
}

struct Event {
    settings: RendezvousSettings,
    now: Duration,
    heartbeat_due: bool,
    last_call_over: bool,
    has_suspects: bool,
    must_yield: bool,
    entering: Entering,
}

fn event(text: &str) -> Event {
    let mut event = Event {
        settings: RendezvousSettings::for_test(2, 4),
        now: Duration::ZERO,
        heartbeat_due: false,
        last_call_over: false,
        has_suspects: false,
        must_yield: false,
        entering: Entering::No,
    };
    for token in text.split_whitespace() {
        let (key, value) = token.split_once('=').unwrap_or((token, ""));
        match key {
            "due" => event.heartbeat_due = true,
            "over" => event.last_call_over = true,
            "old" => event.has_suspects = true,
            "yield" => event.must_yield = true,
            "waits" => event.entering = Entering::Waits,
            "enters" => event.entering = Entering::Now,
            "min" => event.settings.min_nodes = value.parse().expect("a number"),
            "max" => event.settings.max_nodes = value.parse().expect("a number"),
            "at" => event.now = moment(value),
            _ => panic!("unknown part of an event: {token}"),
        }
    }
    event
}

/// Parses a sum such as `T+5s+1ns`, where T is [`DEADLINE`].
fn moment(text: &str) -> Duration {
    text.split('+')
        .map(|term| match term {
            "T" => DEADLINE,
            "1ns" => Duration::from_nanos(1),
            "1s" => Duration::from_secs(1),
            "5s" => Duration::from_secs(5),
            "1h" => Duration::from_secs(3600),
            _ => panic!("unknown part of a moment: {term}"),
        })
        .sum()
}

/// Runs every case of a table, and fails if a row has none.
fn check(
    file: &str,
    table: &'static str,
    rows: &[&str],
    decide: impl Fn(&Context<'_>, bool) -> Decision,
) {
    let mut seen = BTreeSet::new();
    for (number, columns) in cases(table) {
        let [row, before, happens, action] = columns[..] else {
            panic!("{file}, line {number}: not four columns");
        };
        let (state, event) = (state(before), event(happens));
        let ctx = Context {
            state: &state,
            me: &node("me"),
            settings: &event.settings,
            now: event.now,
            deadline: DEADLINE,
            heartbeat_due: event.heartbeat_due,
            last_call_over: event.last_call_over,
            has_every_rank: super::has_every_rank(&state),
            must_yield: event.must_yield,
            entering: event.entering,
        };
        let decision = decide(&ctx, event.has_suspects);
        let decided = format!("{:?} {:?}", decision.rule, decision.action);
        assert_eq!(decided, format!("{row} {action}"), "{file}, line {number}");
        assert!(!decision.reason.is_empty(), "{file}, line {number}");
        seen.insert(row);
    }
    let missing: Vec<_> = rows.iter().filter(|row| !seen.contains(*row)).collect();
    assert!(missing.is_empty(), "{file} has no case for {missing:?}");
}

#[test]
fn join_follows_its_table() {
    let rows = [
        "J1", "J2", "J3", "J4", "J5", "J6", "J7", "J8", "J9", "J10", "J11", "J12", "J13", "J14",
        "J15",
    ];
    let table = include_str!("testdata/join.txt");
    check("join.txt", table, &rows, |ctx, _| join(ctx));
}

#[test]
fn amendments_follow_their_table() {
    let rows = ["H1", "H2", "H3", "H4", "H5", "H6", "H7", "H8", "H9", "H10"];
    let table = include_str!("testdata/amend.txt");
    check("amend.txt", table, &rows, |ctx, has_suspects| {
        amend(join(ctx), ctx, has_suspects)
    });
}

#[test]
fn exit_follows_its_table() {
    let table = include_str!("testdata/exit.txt");
    check("exit.txt", table, &["E1", "E2", "E3"], |ctx, _| exit(ctx));
}

#[test]
fn close_follows_its_table() {
    let table = include_str!("testdata/close.txt");
    check("close.txt", table, &["C1", "C2", "C3"], |ctx, _| close(ctx));
}

#[test]
fn keep_alive_follows_its_table() {
    let table = include_str!("testdata/keep_alive.txt");
    let rows = ["K1", "K2", "K3"];
    check("keep_alive.txt", table, &rows, |ctx, _| keep_alive(ctx));
}

#[test]
fn leave_follows_its_table() {
    let table = include_str!("testdata/leave.txt");
    let rows = ["L1", "L2", "L3", "L4", "L5"];
    check("leave.txt", table, &rows, |ctx, _| leave(ctx));
}

/// docs/spec/rendezvous.md, EFFECT 1 to 3.
#[test]
fn actions_have_only_the_documented_effects() {
    let mut seen = BTreeSet::new();
    for (number, columns) in cases(include_str!("testdata/effects.txt")) {
        let [before, action, after] = columns[..] else {
            panic!("effects.txt, line {number}: not three columns");
        };
        let (before, settings) = before.split_once(';').unwrap_or((before, ""));
        let (mut state_now, settings) = (state(before), event(settings).settings);
        if let Some(dead) = action.strip_prefix("Drop ") {
            let dead: Vec<NodeId> = nodes(dead).collect();
            remove_dead(&mut state_now, &dead, &settings);
        } else if action == "MakeSpares" {
            make_spares(&mut state_now, &settings);
        } else {
            let action = ACTIONS
                .into_iter()
                .find(|known| format!("{known:?}") == action)
                .unwrap_or_else(|| panic!("effects.txt, line {number}: no action {action}"));
            apply(
                &mut state_now,
                action,
                &node("me"),
                &settings,
                NOW,
                &Ranks::new(),
            );
            seen.insert(format!("{action:?}"));
        }
        assert_eq!(state_now, state(after), "effects.txt, line {number}");
    }
    assert_eq!(seen.len(), ACTIONS.len(), "every action has a case");
}

#[test]
fn ranks_do_not_change_the_order_of_arrival() {
    let mut state = state("in=z,me,a deadline=-1");
    let settings = RendezvousSettings::for_test(2, 4);
    apply(
        &mut state,
        Action::MarkComplete,
        &node("me"),
        &settings,
        NOW,
        &Ranks::new(),
    );
    let order: Vec<_> = state.participants.into_iter().collect();
    assert_eq!(order, [(node("z"), 2), (node("me"), 1), (node("a"), 0)]);
}

/// docs/spec/rendezvous.md, STATE 1.
#[test]
fn ranks_follow_the_code_points_of_addresses_then_process_ids_then_handler_numbers() {
    let in_order = [
        NodeId::new("Node2", 1, 0),
        NodeId::new("node10", 1, 0),
        NodeId::new("node2", 3, 1),
        NodeId::new("node2", 20, 0),
        NodeId::new("node2", 20, 1),
        NodeId::new("\u{e9}", 1, 0),
        NodeId::new("\u{1f600}", 1, 0),
    ];
    let mut state = RendezvousState::default();
    for node in in_order.iter().rev() {
        state.participants.insert(node.clone(), 0);
    }
    let settings = RendezvousSettings::for_test(2, 7);
    apply(
        &mut state,
        Action::MarkComplete,
        &in_order[0],
        &settings,
        NOW,
        &Ranks::new(),
    );
    for (rank, node) in (0..).zip(&in_order) {
        assert_eq!(state.participants.get(node), Some(&rank), "{node}");
    }
}
