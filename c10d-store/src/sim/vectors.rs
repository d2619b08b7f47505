//! Replays golden vectors, recorded from PyTorch 2.15.0's libuv server: whole, byte by byte, cut in
//! two (long ones at sampled positions), and together with the setup.

use c10d_conform::cases::{QUIRKS, SEVERAL, SINGLE};
use serde_json::Value as Json;

use super::SimServer;
#[cfg(feature = "extensions")]
use crate::{
    limits::WireLimits,
    session::RawRequests,
    wire::{Opcode, ReplyScan, RequestBuf, VALIDATION_MAGIC},
};

fn vectors(text: &str) -> impl Iterator<Item = Json> + '_ {
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a vector is one line of JSON"))
}

fn bytes(hex: &Json) -> Vec<u8> {
    let hex = hex.as_str().expect("hex text").as_bytes();
    hex.chunks(2)
        .map(|pair| {
            let pair = std::str::from_utf8(pair).expect("ASCII");
            u8::from_str_radix(pair, 16).expect("hex digits")
        })
        .collect()
}

/// Which vectors prove a rule; they are named after what they do.
const RULES: [(&str, &[&str]); 37] = [
    ("docs/spec/wire.md, VALIDATE 1", &["second_validate_closes"]),
    ("docs/spec/wire.md, VALIDATE 2", &["handshake_no_ping"]),
    ("docs/spec/wire.md, PING 1", &["ping_zero", "ping_max"]),
    (
        "docs/spec/wire.md, PING 2",
        &["handshake_no_ping", "ping_twice_pipelined"],
    ),
    (
        "docs/spec/wire.md, SET 1",
        &["set_get", "set_overwrite", "m_set_wakes_all_waiters"],
    ),
    (
        "docs/spec/wire.md, GET 1",
        &["get_missing_is_empty", "set_empty_value"],
    ),
    (
        "docs/spec/wire.md, GET 2",
        &["queue_get_and_delete_do_not_see_it"],
    ),
    (
        "docs/spec/wire.md, APPEND 1",
        &["append_existing", "append_empty_creates", "m_append_wakes"],
    ),
    (
        "docs/spec/wire.md, MULTI_GET 1",
        &["multi_get_repeat_and_order", "multi_get_with_missing"],
    ),
    ("docs/spec/wire.md, MULTI_GET 2", &["multi_get_zero"]),
    (
        "docs/spec/wire.md, MULTI_SET 2",
        &["multi_set_get", "multi_set_duplicate_key_last_wins"],
    ),
    (
        "docs/spec/wire.md, DELETE_KEY 1",
        &["delete_twice", "queue_get_and_delete_do_not_see_it"],
    ),
    (
        "docs/spec/wire.md, DELETE_KEY 2",
        &["m_delete_does_not_wake"],
    ),
    (
        "docs/spec/wire.md, GETNUMKEYS 1",
        &["num_keys_three", "num_keys_ignores_queues"],
    ),
    (
        "docs/spec/wire.md, GETNUMKEYS 1",
        &["barrier_counted_in_num_keys"],
    ),
    (
        "docs/spec/wire.md, LIST_KEYS 1",
        &["list_keys_raw_key", "list_keys_ignores_queues"],
    ),
    (
        "docs/spec/wire.md, ADD 1",
        &["add_missing", "add_zero_creates"],
    ),
    (
        "docs/spec/wire.md, ADD 3",
        &["add_on_text_closes", "add_on_out_of_range_closes"],
    ),
    ("docs/spec/wire.md, ADD 4", &["add_overflow_wraps"]),
    ("docs/spec/wire.md, ADD 5", &["add_negative", "add_max"]),
    ("docs/spec/wire.md, ADD 6", &["m_add_wakes"]),
    (
        "docs/spec/wire.md, CHECK 1",
        &["check_present", "check_missing", "queue_check_nonempty"],
    ),
    (
        "docs/spec/wire.md, CHECK 2",
        &["check_some_missing", "check_zero_keys", "check_duplicates"],
    ),
    (
        "docs/spec/wire.md, WAIT 1",
        &["wait_present", "wait_zero_keys", "queue_wait_nonempty"],
    ),
    (
        "docs/spec/wire.md, WAIT 2",
        &["m_wait_two_keys_two_setters", "queue_wait_then_push"],
    ),
    (
        "docs/spec/wire.md, WAIT 4",
        &["wait_counts_set_even_if_deleted"],
    ),
    ("docs/spec/wire.md, WAIT 5", &["wait_duplicates_then_set"]),
    ("docs/spec/wire.md, WAIT 6", &["wait_then_other_command"]),
    (
        "docs/spec/wire.md, CANCEL_WAIT 1",
        &["cancel_without_wait", "cancel_race_stop_first"],
    ),
    ("docs/spec/wire.md, QUEUE_PUSH 1", &["queue_push_len_pop"]),
    ("docs/spec/wire.md, QUEUE_POP 1", &["queue_push_len_pop"]),
    (
        "docs/spec/wire.md, QUEUE_POP 2",
        &["queue_pop_missing", "queue_empty_element"],
    ),
    (
        "docs/spec/wire.md, QUEUE_LEN 1",
        &["queue_len_missing", "queue_push_len_pop"],
    ),
    (
        "docs/spec/wire.md, BARRIER 1",
        &["barrier_then_add", "barrier_on_text_closes"],
    ),
    (
        "docs/spec/wire.md, BARRIER 2",
        &["m_barrier_smaller_world_size_releases_all"],
    ),
    (
        "docs/spec/wire.md, BARRIER 4",
        &["m_wait_before_barrier_waits_for_full"],
    ),
    (
        "docs/spec/wire.md, CLOSE 1",
        &["replies_before_unknown_op_are_sent"],
    ),
];

#[test]
fn the_vectors_that_prove_a_rule_exist() {
    let all = vectors(SINGLE).chain(vectors(SEVERAL));
    let names: Vec<String> = all
        .map(|vector| vector["name"].as_str().expect("a name").to_owned())
        .collect();
    for (rule, proofs) in RULES {
        for proof in proofs {
            assert!(names.iter().any(|name| name == proof), "{rule}: {proof}");
        }
    }
}

/// How the bytes of a vector are split.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Delivery {
    Whole,
    /// Setup and request in one piece.
    Coalesced,
    ByteByByte,
    CutAt(usize),
}

const CONN: u64 = 1;

/// Replays a vector of one connection. `Err` names the difference.
fn replay(vector: &Json, delivery: Delivery) -> Result<(), String> {
    let mut server = SimServer::default();
    if vector["handshake"].as_bool().unwrap_or(true) {
        server.open(CONN);
    }
    let mut setup = Vec::new();
    for request in vector["setup"].as_array().into_iter().flatten() {
        setup.extend(bytes(request));
    }
    let request = bytes(&vector["request_hex"]);
    match delivery {
        Delivery::Coalesced => server.send(CONN, &[setup, request].concat()),
        delivery => {
            server.send(CONN, &setup);
            match delivery {
                Delivery::ByteByByte => {
                    for byte in request {
                        server.send(CONN, &[byte]);
                    }
                }
                Delivery::CutAt(position) => {
                    server.send(CONN, &request[..position]);
                    server.send(CONN, &request[position..]);
                }
                Delivery::Whole | Delivery::Coalesced => server.send(CONN, &request),
            }
        }
    }
    let got = server.take(CONN);
    let want = bytes(&vector["response_hex"]);
    if got != want {
        return Err(format!("want {want:02x?}, got {got:02x?}"));
    }
    let closes = vector["closes"].as_bool().unwrap_or(false);
    if server.is_closed(CONN) != closes {
        return Err(format!("closed: want {closes}"));
    }
    Ok(())
}

#[test]
fn single_connection_vectors_match_for_each_delivery() {
    let mut count = 0;
    for vector in vectors(SINGLE) {
        for delivery in [Delivery::Whole, Delivery::Coalesced, Delivery::ByteByByte] {
            replay(&vector, delivery)
                .unwrap_or_else(|error| panic!("{} {delivery:?}: {error}", vector["name"]));
        }
        count += 1;
    }
    assert_eq!(count, 126);
}

#[test]
fn single_connection_vectors_match_when_cut_anywhere() {
    for vector in vectors(SINGLE) {
        let length = bytes(&vector["request_hex"]).len();
        // A request of kilobytes is mostly value, which is cut at a few places only.
        let step = (length / 600).max(1);
        for position in (1..length.min(64)).chain((64..length).step_by(step)) {
            replay(&vector, Delivery::CutAt(position))
                .unwrap_or_else(|error| panic!("{} cut at {position}: {error}", vector["name"]));
        }
    }
}

#[test]
fn vectors_of_several_connections_match() {
    let mut count = 0;
    for vector in vectors(SEVERAL) {
        replay_steps(&vector).unwrap_or_else(|error| panic!("{}: {error}", vector["name"]));
        count += 1;
    }
    assert_eq!(count, 26);
}

fn replay_steps(vector: &Json) -> Result<(), String> {
    let mut server = SimServer::default();
    let mut unread: [Vec<u8>; 256] = std::array::from_fn(|_| Vec::new());
    let mut is_open = [false; 256];
    for (index, step) in vector["steps"]
        .as_array()
        .expect("steps")
        .iter()
        .enumerate()
    {
        let name = step["c"].as_str().expect("a connection").as_bytes()[0];
        let (conn, slot) = (u64::from(name), usize::from(name));
        if !is_open[slot] {
            is_open[slot] = true;
            server.open(conn);
        }
        if let Some(request) = step.get("send") {
            server.send(conn, &bytes(request));
        }
        unread[slot].extend(server.take(conn));
        if let Some(want) = step.get("recv") {
            let want = bytes(want);
            let at_hand = unread[slot].len().min(want.len());
            let got: Vec<u8> = unread[slot].drain(..at_hand).collect();
            if got != want {
                return Err(format!("step {index}: want {want:02x?}, got {got:02x?}"));
            }
        }
        if step.get("fence").is_some() && !unread[slot].is_empty() {
            return Err(format!("step {index}: extra bytes {:02x?}", unread[slot]));
        }
        if step.get("eof").is_some() && !server.is_closed(conn) {
            return Err(format!("step {index}: not closed"));
        }
        if step.get("close").is_some() {
            server.close(conn);
        }
    }
    Ok(())
}

/// Recorded bugs of PyTorch. Our behaviour is tested in `state::tests`; this test makes sure that none
/// of the bugs is reproduced.
#[test]
fn quirks_of_pytorch_are_not_reproduced() {
    let reproduced: Vec<String> = vectors(QUIRKS)
        .filter(|vector| {
            if vector.get("steps").is_some() {
                replay_steps(vector).is_ok()
            } else {
                let cut = vector["split"][0].as_u64();
                let delivery = cut.map_or(Delivery::Whole, |at| Delivery::CutAt(at as usize));
                replay(vector, delivery).is_ok()
            }
        })
        .map(|vector| vector["name"].to_string())
        .collect();
    // Three records do not distinguish the right behaviour from the wrong one: a second wait gets one
    // reply if it correctly replaces the first, a wrong magic number closes the connection at once or
    // later, and a MULTI_SET completed after another client's SET wins in either case.
    assert_eq!(
        reproduced,
        [
            "\"q_second_wait_replaces_count\"",
            "\"q_bad_magic_closed_only_on_next_bytes\"",
            "\"q_partial_multi_set_applied_twice\"",
        ]
    );
}

/// The task of a relay: it finds the end of each reply by the requests alone.
#[cfg(feature = "extensions")]
#[test]
fn recorded_replies_end_where_the_scan_of_replies_says() {
    let mut replies = 0;
    for vector in vectors(SINGLE) {
        if vector["closes"].as_bool().unwrap_or(false)
            || !vector["handshake"].as_bool().unwrap_or(true)
        {
            continue;
        }
        let mut sent = RequestBuf::new();
        sent.opcode(Opcode::Validate).u32(VALIDATION_MAGIC);
        let mut sent = sent.to_bytes();
        for request in vector["setup"].as_array().into_iter().flatten() {
            sent.extend(bytes(request));
        }
        sent.extend(bytes(&vector["request_hex"]));
        let mut scans: Vec<ReplyScan> = Vec::new();
        let mut is_ambiguous = false;
        let outcome = RawRequests::default().receive(&sent, &WireLimits::default(), |request| {
            let waits = |scan: &ReplyScan| scan.opcode().is_wait() && !scan.is_cancelled();
            match scans.last_mut().filter(|scan| waits(scan)) {
                Some(last) if request.opcode == Opcode::CancelWait => last.cancel(),
                last => {
                    let scan = ReplyScan::new(request.opcode, request.key_count);
                    is_ambiguous |= last.is_some() && scan.is_some();
                    scans.extend(scan);
                }
            }
            true
        });
        assert_eq!(outcome, Ok(true), "{}", vector["name"]);
        if is_ambiguous {
            continue;
        }
        let response = bytes(&vector["response_hex"]);
        for piece in [1, 3, response.len().max(1)] {
            let mut owed = scans.clone().into_iter().peekable();
            for mut rest in response.chunks(piece) {
                while let Some(scan) = owed.peek_mut() {
                    let advanced = scan.advance(&mut rest);
                    if !advanced.unwrap_or_else(|error| panic!("{}: {error}", vector["name"])) {
                        break;
                    }
                    owed.next();
                    replies += 1;
                }
                assert!(
                    rest.is_empty(),
                    "{}: bytes that nobody owes",
                    vector["name"]
                );
            }
            // Only a wait may be unanswered, and a MULTI_GET of no keys has no bytes.
            let left: Vec<Opcode> = owed.map(|scan| scan.opcode()).collect();
            let is_fine = |opcode: &Opcode| opcode.is_wait() || *opcode == Opcode::MultiGet;
            assert!(left.iter().all(is_fine), "{}: {left:?}", vector["name"]);
        }
    }
    assert!(replies > 300, "{replies}");
}
