//! Mistakes that servers of this protocol have made, or nearly: the cases find each of them by name.

use std::time::Duration;

use crate::client::serve::Serving;
use crate::client::service::{Manners, Service};
use crate::client::store::{CANCELLED, NOT_READY, READY, Refused, Replies, Store, blob};
use crate::column::Column;
use crate::report::Report;
use crate::request::{Opcode, Request, length_word};
use crate::runner::ServerRun;

/// Carries out a request, not as it should.
pub(crate) type Mistake = fn(&mut Store, u64, Request, &mut Replies) -> Result<(), Refused>;

fn run(mistake: Option<Mistake>, only: &[&str]) -> Report {
    let mut service = Service::new(Manners::default());
    service.mistake = mistake;
    service.clear();
    let serving = Serving::start(service, Duration::ZERO).expect("a free port");
    let target = serving.address.to_string().parse().expect("an address");
    let only = only.iter().map(ToString::to_string).collect();
    let run = ServerRun::new(target, Column::default()).with_only(only);
    let report = run.run(1).expect("it listens");
    serving.stop().expect("it has not panicked");
    report
}

#[test]
fn the_store_that_clients_are_judged_against_conforms() {
    let report = run(None, &[]);
    assert!(report.is_conforming(), "{}", report.to_text());
}

/// The case that finds the mistake: no other one is needed.
#[track_caller]
fn is_found_by(case: &str, mistake: Mistake) {
    let report = run(Some(mistake), &[case]);
    let text = report.to_text();
    assert!(!report.is_conforming(), "{case} passes: {text}");
    assert!(
        text.contains(&format!("differs: {case}: ")) || text.contains(&format!("hangs: {case}: ")),
        "{text}"
    );
}

/// Replaces the reply of one command.
fn with_reply(
    store: &mut Store,
    connection: u64,
    request: &Request,
    replies: &mut Replies,
    opcode: Opcode,
    change: fn(&mut Vec<u8>),
) -> Result<(), Refused> {
    let before = replies.len();
    store.apply(connection, request, replies)?;
    if request.opcode == opcode {
        let own = replies[before..]
            .iter_mut()
            .filter(|(to, _)| *to == connection);
        own.for_each(|(_, bytes)| change(bytes));
    }
    Ok(())
}

#[test]
fn integers_in_big_endian() {
    is_found_by("add_missing", |store, connection, request, replies| {
        with_reply(store, connection, &request, replies, Opcode::ADD, |it| {
            it.reverse()
        })
    });
}

#[test]
fn lengths_of_four_bytes() {
    is_found_by("set_get", |store, connection, request, replies| {
        with_reply(store, connection, &request, replies, Opcode::GET, |it| {
            it.drain(4..8);
        })
    });
}

#[test]
fn a_sum_that_is_kept_as_an_integer() {
    is_found_by("add_negative", |store, connection, request, replies| {
        with_reply(store, connection, &request, replies, Opcode::GET, |it| {
            let number: i64 = String::from_utf8_lossy(&it[8..])
                .parse()
                .unwrap_or_default();
            *it = blob(&crate::request::number_word(number));
        })
    });
}

#[test]
fn add_replies_with_the_number_before() {
    is_found_by("pipelined_many", |store, connection, request, replies| {
        with_reply(store, connection, &request, replies, Opcode::ADD, |it| {
            it[0] = it[0].wrapping_sub(1);
        })
    });
}

#[test]
fn check_replies_with_a_bool() {
    is_found_by("check_present", |store, connection, request, replies| {
        with_reply(store, connection, &request, replies, Opcode::CHECK, |it| {
            it[0] = if it[0] == READY { NOT_READY } else { READY };
        })
    });
}

#[test]
fn a_wait_for_several_keys_looks_at_the_first() {
    is_found_by(
        "m_wait_two_keys_two_setters",
        |store, connection, mut request, replies| {
            if request.opcode == Opcode::WAIT {
                request.keys.truncate(1);
            }
            store.apply(connection, &request, replies)
        },
    );
}

#[test]
fn a_wait_is_answered_once_for_each_key() {
    is_found_by(
        "wait_two_one_present",
        |store, connection, request, replies| {
            let keys = request.keys.len();
            if request.opcode == Opcode::WAIT && keys > 1 {
                store.apply(connection, &request, replies)?;
                replies.push((connection, vec![READY]));
                return Ok(());
            }
            store.apply(connection, &request, replies)
        },
    );
}

#[test]
fn a_wait_is_answered_early() {
    is_found_by(
        "wait_missing_is_silent",
        |store, connection, request, replies| {
            store.apply(connection, &request, replies)?;
            if request.opcode == Opcode::WAIT && store.is_waiting(connection) {
                replies.push((connection, vec![READY]));
            }
            Ok(())
        },
    );
}

#[test]
fn a_cancel_is_answered_only_if_a_wait_is_pending() {
    is_found_by(
        "cancel_without_wait",
        |store, connection, request, replies| {
            let is_idle = !store.is_waiting(connection);
            if request.opcode == Opcode::CANCEL_WAIT && is_idle {
                return Ok(());
            }
            store.apply(connection, &request, replies)
        },
    );
}

#[test]
fn a_cancel_is_answered_twice() {
    is_found_by(
        "cancel_pending_wait",
        |store, connection, request, replies| {
            with_reply(
                store,
                connection,
                &request,
                replies,
                Opcode::CANCEL_WAIT,
                |it| {
                    it.push(CANCELLED);
                },
            )
        },
    );
}

#[test]
fn a_cancelled_wait_is_answered_later() {
    is_found_by(
        "m_cancel_then_set",
        |store, connection, request, replies| {
            if request.opcode == Opcode::CANCEL_WAIT {
                replies.push((connection, vec![CANCELLED]));
                return Ok(());
            }
            store.apply(connection, &request, replies)
        },
    );
}

#[test]
fn compare_set_of_a_missing_key_replies_with_nothing() {
    is_found_by(
        "cas_missing_nonempty_expected",
        |store, connection, request, replies| {
            let is_missing = request
                .keys
                .first()
                .is_some_and(|key| store.value(key).is_none());
            store.apply(connection, &request, replies)?;
            let is_refused = request
                .values
                .first()
                .is_some_and(|value| !value.is_empty());
            if let Some((_, bytes)) = replies.last_mut()
                && request.opcode == Opcode::COMPARE_SET
                && is_missing
                && is_refused
            {
                *bytes = blob(b"");
            }
            Ok(())
        },
    );
}

#[test]
fn delete_always_counts_one() {
    is_found_by("delete_missing", |store, connection, request, replies| {
        with_reply(
            store,
            connection,
            &request,
            replies,
            Opcode::DELETE_KEY,
            |it| it[0] = 1,
        )
    });
}

#[test]
fn the_count_of_keys_has_one_of_the_servers_own() {
    is_found_by("num_keys_empty", |store, connection, request, replies| {
        with_reply(
            store,
            connection,
            &request,
            replies,
            Opcode::GETNUMKEYS,
            |it| it[0] += 1,
        )
    });
}

#[test]
fn multi_get_replies_with_a_count() {
    is_found_by("multi_set_get", |store, connection, request, replies| {
        let count = request.keys.len();
        store.apply(connection, &request, replies)?;
        if let Some((_, bytes)) = replies.last_mut()
            && request.opcode == Opcode::MULTI_GET
        {
            bytes.splice(0..0, length_word(count));
        }
        Ok(())
    });
}

#[test]
fn append_replaces() {
    is_found_by(
        "append_existing",
        |store, connection, mut request, replies| {
            if request.opcode == Opcode::APPEND {
                request.opcode = Opcode::SET;
            }
            store.apply(connection, &request, replies)
        },
    );
}

#[test]
fn a_pop_replies_with_the_length_after_it() {
    is_found_by(
        "queue_push_len_pop",
        |store, connection, request, replies| {
            with_reply(
                store,
                connection,
                &request,
                replies,
                Opcode::QUEUE_POP,
                |it| {
                    it[0] = it[0].saturating_sub(1);
                },
            )
        },
    );
}

#[test]
fn a_push_wakes_all() {
    is_found_by(
        "m_queue_push_wakes_one",
        |store, connection, request, replies| {
            let key = request.keys.first().cloned();
            let opcode = request.opcode;
            store.apply(connection, &request, replies)?;
            if let Some(key) = key.filter(|_| opcode == Opcode::QUEUE_PUSH) {
                store.wake(&key, replies);
            }
            Ok(())
        },
    );
}

#[test]
fn an_answer_that_crosses_a_cancel_is_lost() {
    is_found_by(
        "cancel_race_stop_first",
        |store, connection, request, replies| {
            if request.opcode == Opcode::CANCEL_WAIT {
                replies.clear();
            }
            store.apply(connection, &request, replies)?;
            if request.opcode == Opcode::SET {
                replies.retain(|(to, _)| *to != connection);
            }
            Ok(())
        },
    );
}
