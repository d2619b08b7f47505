//! Checks of the `Store` contract that run over every store type.
//!
//! A check gets a new, empty store. Threads share that handle or take clones of it. A write to a TCP
//! store is visible through other handles only after a later reply on the writing handle, so the
//! checks request one ([`settle`]) before they use another handle.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{Known, Operation, Store, StoreError, StoreExt, key_from_bytes, key_to_bytes};

use crate::blocked::Observed;

/// The points in which stores may differ.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Features {
    /// The store has the queue operations.
    pub(crate) queues: bool,
    /// `add` treats an existing empty value as 0 (PyTorch's local stores do, its server does not).
    pub(crate) adds_to_empty: bool,
    /// `compare_set` always reports whether it wrote.
    pub(crate) reports_every_swap: bool,
    /// A barrier with a world size of 0 is refused as an invalid argument.
    pub(crate) refuses_empty_barrier: bool,
    /// The expected [`Store::has_prompt_watch`].
    pub(crate) wakes_on_change: bool,
}

impl Features {
    /// `HashStore`. The other stores list their differences from it.
    pub(crate) const LOCAL: Self = Self {
        queues: true,
        adds_to_empty: true,
        reports_every_swap: true,
        refuses_empty_barrier: true,
        wakes_on_change: true,
    };
}

/// A timeout that no check reaches on a loaded machine unless a wakeup is lost.
pub(crate) const LONG: Duration = Duration::from_secs(60);

type Check = fn(&Arc<dyn Store>, Features);

/// Runs every check, each on a new store.
#[expect(
    clippy::print_stdout,
    reason = "the output of a failed test ends with the name of the failed check"
)]
pub(crate) fn all(make: &dyn Fn() -> Arc<dyn Store>, features: Features) {
    let checks: &[(&str, Check)] = &[
        ("values_are_set_and_read", values_are_set_and_read),
        ("try_get_does_not_wait", try_get_does_not_wait),
        (
            "get_timeout_overrides_the_default",
            get_timeout_overrides_the_default,
        ),
        (
            "values_can_be_strings_vectors_and_arrays",
            values_can_be_strings_vectors_and_arrays,
        ),
        ("a_value_can_be_any_bytes", a_value_can_be_any_bytes),
        ("a_key_can_be_any_string", a_key_can_be_any_string),
        ("a_key_can_be_any_bytes", a_key_can_be_any_bytes),
        ("keys_are_deleted", keys_are_deleted),
        (
            "compare_set_follows_its_table",
            compare_set_follows_its_table,
        ),
        ("add_follows_its_table", add_follows_its_table),
        (
            "add_refuses_a_value_that_is_not_a_number",
            add_refuses_a_value_that_is_not_a_number,
        ),
        ("append_adds_to_the_end", append_adds_to_the_end),
        (
            "multi_set_and_multi_get_take_many_keys",
            multi_set_and_multi_get_take_many_keys,
        ),
        ("keys_are_counted_and_listed", keys_are_counted_and_listed),
        ("check_does_not_wait", check_does_not_wait),
        (
            "every_write_wakes_wait_and_get",
            every_write_wakes_wait_and_get,
        ),
        ("a_wait_needs_all_its_keys", a_wait_needs_all_its_keys),
        ("waits_time_out", waits_time_out),
        (
            "a_zero_timeout_checks_once_without_waiting",
            a_zero_timeout_checks_once_without_waiting,
        ),
        (
            "without_a_timeout_a_call_waits_indefinitely",
            without_a_timeout_a_call_waits_indefinitely,
        ),
        (
            "a_timeout_leaves_the_store_usable",
            a_timeout_leaves_the_store_usable,
        ),
        (
            "a_blocked_call_does_not_block_other_threads",
            a_blocked_call_does_not_block_other_threads,
        ),
        (
            "wait_change_returns_a_different_value_at_once",
            wait_change_returns_a_different_value_at_once,
        ),
        (
            "every_write_wakes_wait_change",
            every_write_wakes_wait_change,
        ),
        (
            "wait_change_ignores_changes_outside_its_part",
            wait_change_ignores_changes_outside_its_part,
        ),
        (
            "wait_change_waits_for_a_missing_key",
            wait_change_waits_for_a_missing_key,
        ),
        ("wait_change_times_out", wait_change_times_out),
        (
            "closing_fails_current_and_later_calls",
            closing_fails_current_and_later_calls,
        ),
        (
            "the_default_timeout_can_be_set",
            the_default_timeout_can_be_set,
        ),
        ("concurrent_adds_sum_up", concurrent_adds_sum_up),
        (
            "one_of_many_compare_sets_wins",
            one_of_many_compare_sets_wins,
        ),
        (
            "concurrent_appends_are_all_kept",
            concurrent_appends_are_all_kept,
        ),
        (
            "a_barrier_waits_for_all_workers",
            a_barrier_waits_for_all_workers,
        ),
        ("a_barrier_times_out", a_barrier_times_out),
        (
            "a_barrier_refuses_a_value_that_is_not_a_number",
            a_barrier_refuses_a_value_that_is_not_a_number,
        ),
        (
            "queues_are_first_in_first_out",
            queues_are_first_in_first_out,
        ),
        (
            "queue_take_returns_several_elements",
            queue_take_returns_several_elements,
        ),
        (
            "a_queue_and_a_value_can_share_a_name",
            a_queue_and_a_value_can_share_a_name,
        ),
        ("a_pop_waits_for_a_push", a_pop_waits_for_a_push),
        ("each_element_is_popped_once", each_element_is_popped_once),
    ];
    for (name, check) in checks {
        println!("store contract: {name}");
        check(&make(), features);
    }
}

/// Waits for a reply of the store, so that earlier writes are visible through all handles.
fn settle(store: &dyn Store) {
    store.check(&[]).expect("check without keys");
}

fn clone_of(store: &Arc<dyn Store>) -> Arc<dyn Store> {
    store.clone_store().expect("clone")
}

fn sorted(mut keys: Vec<String>) -> Vec<String> {
    keys.sort();
    keys
}

fn values_are_set_and_read(store: &Arc<dyn Store>, _: Features) {
    store.set("k", b"1").unwrap();
    assert_eq!(store.get("k").unwrap(), b"1");
    store.set("k", b"2").unwrap();
    assert_eq!(store.get("k").unwrap(), b"2");
    assert_eq!(clone_of(store).get("k").unwrap(), b"2");
}

fn try_get_does_not_wait(store: &Arc<dyn Store>, features: Features) {
    store.set_timeout(Some(LONG));
    let started = Instant::now();
    assert_eq!(store.try_get("k").unwrap(), None);
    store.set("k", "").unwrap();
    assert_eq!(store.try_get("k").unwrap(), Some(vec![]));
    store.set("k", "1").unwrap();
    assert_eq!(store.try_get("k").unwrap(), Some(b"1".to_vec()));
    assert!(store.delete_key("k").unwrap());
    assert_eq!(store.try_get("k").unwrap(), None);
    // The earlier reads left no pending wait that this write could answer.
    store.set("k", "2").unwrap();
    assert_eq!(store.add("n", 1).unwrap(), 1);
    // Without the extensions a queue reads as an empty value, like with PyTorch's server.
    if features.queues && features.wakes_on_change {
        store.queue_push("q", "1").unwrap();
        assert_eq!(store.try_get("q").unwrap(), None);
    }
    assert!(started.elapsed() < LONG / 2, "try_get waited");
}

fn get_timeout_overrides_the_default(store: &Arc<dyn Store>, _: Features) {
    let timeout = Duration::from_millis(20);
    store.set_timeout(Some(LONG));
    let started = Instant::now();
    let error = store.get_timeout("late", Some(timeout)).unwrap_err();
    assert!((timeout..LONG / 2).contains(&started.elapsed()), "{error}");
    let StoreError::Timeout {
        context,
        timeout: limit,
    } = error
    else {
        panic!("unexpected: {error}");
    };
    assert_eq!((context.operation, limit), (Operation::Get, timeout));
    assert!(context.keys.contains("late"), "{context}");
    assert_eq!(store.timeout(), Some(LONG));

    store.set_timeout(Some(Duration::ZERO));
    let reader = clone_of(store);
    while_blocked(
        [move || assert_eq!(reader.get_timeout("late", Some(LONG)).unwrap(), b"1")],
        || store.set("late", "1").unwrap(),
    );
}

fn values_can_be_strings_vectors_and_arrays(store: &Arc<dyn Store>, features: Features) {
    store.set("k", "text").unwrap();
    store.append("k", String::from(" and ")).unwrap();
    store.append("k", vec![b'1']).unwrap();
    assert_eq!(store.get("k").unwrap(), b"text and 1");
    let swap = store.compare_set("k", "text and 1", [b'2']).unwrap();
    assert_eq!(swap.into_value(), b"2");
    if features.queues {
        store.queue_push("q", "element").unwrap();
        assert_eq!(store.queue_pop("q").unwrap(), b"element");
    }
}

fn a_value_can_be_any_bytes(store: &Arc<dyn Store>, _: Features) {
    let every_byte: Vec<u8> = (0..=255).collect();
    let long: Vec<u8> = (0..1 << 20).map(|i| (i % 251) as u8).collect();
    for value in [&b""[..], b"\0", b"\xff\xfe\x00\x80", &every_byte, &long] {
        store.set("k", value).unwrap();
        assert!(store.get("k").unwrap() == value);
    }
}

fn a_key_can_be_any_string(store: &Arc<dyn Store>, _: Features) {
    let keys = [
        "",
        "/",
        "-",
        "-/k",
        "k/",
        "//k",
        "a b\n\0c",
        "schlüssel/鍵",
        "refcount/",
        "init/",
    ];
    for (i, key) in keys.iter().enumerate() {
        assert!(!store.check(&[key]).unwrap(), "{key:?}");
        store.set(key, [i as u8]).unwrap();
    }
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(store.get(key).unwrap(), [i as u8], "{key:?}");
    }
    assert!(store.check(&keys).unwrap());
    for key in keys {
        assert!(store.delete_key(key).unwrap(), "{key:?}");
        assert!(!store.check(&[key]).unwrap(), "{key:?}");
    }
}

fn a_key_can_be_any_bytes(store: &Arc<dyn Store>, _: Features) {
    let names: Vec<Vec<u8>> = (0..=255).map(|byte| vec![b'k', byte, 0xc3]).collect();
    let keys: Vec<_> = names.iter().map(|name| key_from_bytes(name)).collect();
    for (number, key) in keys.iter().enumerate() {
        store.set(key, number.to_string()).unwrap();
    }
    let keys: Vec<&str> = keys.iter().map(|key| &**key).collect();
    let values = store.multi_get(&keys).unwrap();
    assert_eq!(values[0xff], b"255");
    let listed = store.list_keys().unwrap();
    let mut listed: Vec<_> = listed.iter().map(|key| key_to_bytes(key)).collect();
    listed.sort_unstable();
    assert_eq!(listed, names);
    assert!(store.delete_key(keys[0xff]).unwrap());
    assert!(!store.check(&keys[0xfe..]).unwrap());
}

fn keys_are_deleted(store: &Arc<dyn Store>, _: Features) {
    assert!(!store.delete_key("k").unwrap());
    store.set("k", b"1").unwrap();
    assert!(store.delete_key("k").unwrap());
    assert!(!store.delete_key("k").unwrap());
    assert!(!store.check(&["k"]).unwrap());
    store.set("k", b"2").unwrap();
    assert_eq!(store.get("k").unwrap(), b"2");
}

/// docs/spec/wire.md, COMPARE_SET: every row.
fn compare_set_follows_its_table(store: &Arc<dyn Store>, features: Features) {
    struct Row {
        writes: bool,
        present: Option<&'static [u8]>,
        expected: &'static [u8],
        desired: &'static [u8],
        answer: &'static [u8],
        after: Option<&'static [u8]>,
    }
    #[rustfmt::skip]
    let table = [
        Row { writes: true, present: None, expected: b"", desired: b"new", answer: b"new", after: Some(b"new") },
        Row { writes: true, present: None, expected: b"", desired: b"", answer: b"", after: Some(b"") },
        Row { writes: false, present: None, expected: b"old", desired: b"new", answer: b"old", after: None },
        Row { writes: true, present: Some(b"old"), expected: b"old", desired: b"new", answer: b"new", after: Some(b"new") },
        Row { writes: true, present: Some(b"old"), expected: b"old", desired: b"", answer: b"", after: Some(b"") },
        Row { writes: false, present: Some(b"old"), expected: b"other", desired: b"new", answer: b"old", after: Some(b"old") },
        Row { writes: false, present: Some(b"old"), expected: b"", desired: b"new", answer: b"old", after: Some(b"old") },
        Row { writes: true, present: Some(b""), expected: b"", desired: b"new", answer: b"new", after: Some(b"new") },
        Row { writes: false, present: Some(b""), expected: b"old", desired: b"new", answer: b"", after: Some(b"") },
        Row { writes: false, present: Some(b"new"), expected: b"old", desired: b"new", answer: b"new", after: Some(b"new") },
        Row { writes: false, present: None, expected: b"same", desired: b"same", answer: b"same", after: None },
        Row { writes: true, present: Some(b"same"), expected: b"same", desired: b"same", answer: b"same", after: Some(b"same") },
    ];
    for (i, row) in table.iter().enumerate() {
        let key = format!("row{i}");
        if let Some(present) = row.present {
            store.set(&key, present).unwrap();
        }
        let swap = store.compare_set(&key, row.expected, row.desired).unwrap();
        assert_eq!(swap.value(), row.answer, "row {i}");
        match swap.swapped() {
            Some(swapped) => assert_eq!(swapped, row.writes, "row {i}"),
            None => assert!(!features.reports_every_swap, "row {i}"),
        }
        if row.answer != row.desired {
            assert_eq!(swap.swapped(), Some(false), "row {i}");
        }
        assert_eq!(
            store.check(&[&key]).unwrap(),
            row.after.is_some(),
            "row {i}"
        );
        if let Some(after) = row.after {
            assert_eq!(store.get(&key).unwrap(), after, "row {i}");
        }
    }
}

/// docs/spec/wire.md, ADD: values that count as numbers.
fn add_follows_its_table(store: &Arc<dyn Store>, features: Features) {
    let table: &[(&[u8], i64, i64)] = &[
        (b"5", 1, 6),
        (b" 12", 1, 13),
        (b"\n\t 4", 1, 5),
        (b"+5", 1, 6),
        (b"-3", 1, -2),
        (b"010", 1, 11),
        (b"0x10", 1, 1),
        (b"12abc", 1, 13),
        (b"1.5", 1, 2),
        (b"1e3", 1, 2),
        (b"5\x006", 1, 6),
        (b"5", -12, -7),
        (b"9223372036854775807", 1, i64::MIN),
        (b"-9223372036854775808", -1, i64::MAX),
        (b"0", i64::MIN, i64::MIN),
    ];
    for (present, delta, sum) in table {
        let row = present.escape_ascii();
        store.set("n", present).unwrap();
        assert_eq!(store.add("n", *delta).unwrap(), *sum, "{row}");
        assert_eq!(store.get("n").unwrap(), sum.to_string().as_bytes(), "{row}");
    }
    assert_eq!(store.add("missing", 0).unwrap(), 0);
    assert_eq!(store.get("missing").unwrap(), b"0");
    assert_eq!(store.add("below", -4).unwrap(), -4);
    if features.adds_to_empty {
        store.set("n", b"").unwrap();
        assert_eq!(store.add("n", 3).unwrap(), 3);
    }
}

fn add_refuses_a_value_that_is_not_a_number(store: &Arc<dyn Store>, features: Features) {
    let mut table: Vec<&[u8]> = vec![
        b"abc",
        b"--1",
        b"\x005",
        b"9223372036854775808",
        b"-9223372036854775809",
        b" ",
    ];
    if !features.adds_to_empty {
        table.push(b"");
    }
    for present in table {
        let row = present.escape_ascii();
        store.set("n", present).unwrap();
        settle(&**store);
        let error = store.add("n", 1).unwrap_err();
        assert!(
            matches!(error, StoreError::NotANumber { .. }),
            "{row}: {error}"
        );
        // The handle stays usable.
        assert_eq!(store.get("n").unwrap(), present, "{row}");
    }
}

fn append_adds_to_the_end(store: &Arc<dyn Store>, _: Features) {
    store.append("k", b"ab").unwrap();
    store.append("k", b"").unwrap();
    store.append("k", b"\0c").unwrap();
    assert_eq!(store.get("k").unwrap(), b"ab\0c");
    store.append("empty", b"").unwrap();
    assert_eq!(store.get("empty").unwrap(), b"");
    // PyTorch's generic `append` loses the second append, which equals the current value.
    store.append("same", b"x").unwrap();
    store.append("same", b"x").unwrap();
    assert_eq!(store.get("same").unwrap(), b"xx");
}

fn multi_set_and_multi_get_take_many_keys(store: &Arc<dyn Store>, _: Features) {
    assert_eq!(store.multi_get(&[]).unwrap(), Vec::<Vec<u8>>::new());
    store.multi_set(&[]).unwrap();
    store
        .multi_set(&[("a", b"1"), ("b", b""), ("", b"3"), ("a", b"4")])
        .unwrap();
    let values = store.multi_get(&["", "a", "b", "a"]).unwrap();
    assert_eq!(values, [&b"3"[..], b"4", b"", b"4"]);

    let keys: Vec<String> = (0..1000).map(|i| format!("key{i}")).collect();
    let pairs: Vec<(&str, &[u8])> = keys.iter().map(|k| (k.as_str(), k.as_bytes())).collect();
    store.multi_set(&pairs).unwrap();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let values = store.multi_get(&keys).unwrap();
    assert!(
        values
            .iter()
            .zip(&keys)
            .all(|(value, key)| value == key.as_bytes())
    );
}

fn keys_are_counted_and_listed(store: &Arc<dyn Store>, _: Features) {
    let bookkeeping = store.num_keys().unwrap();
    assert_eq!(store.list_keys().unwrap(), Vec::<String>::new());
    store.set("b", b"1").unwrap();
    store.set("a/x", b"1").unwrap();
    store.add("n", 1).unwrap();
    store.set("b", b"2").unwrap();
    assert_eq!(store.num_keys().unwrap(), bookkeeping + 3);
    assert_eq!(sorted(store.list_keys().unwrap()), ["a/x", "b", "n"]);
    store.delete_key("b").unwrap();
    assert_eq!(store.num_keys().unwrap(), bookkeeping + 2);
    assert_eq!(sorted(store.list_keys().unwrap()), ["a/x", "n"]);
}

fn check_does_not_wait(store: &Arc<dyn Store>, _: Features) {
    assert!(store.check(&[]).unwrap());
    assert!(!store.check(&["a"]).unwrap());
    store.set("a", b"").unwrap();
    assert!(store.check(&["a", "a"]).unwrap());
    assert!(!store.check(&["a", "b"]).unwrap());
    store.wait(&[]).unwrap();
    store.wait(&["a", "a"]).unwrap();
}

type Write = fn(&dyn Store, &str);

fn every_write_wakes_wait_and_get(store: &Arc<dyn Store>, _: Features) {
    let writes: &[(&str, Write)] = &[
        ("set", |store, key| store.set(key, b"1").unwrap()),
        ("add", |store, key| {
            assert_eq!(store.add(key, 1).unwrap(), 1)
        }),
        ("compare_set", |store, key| {
            assert_eq!(store.compare_set(key, b"", b"1").unwrap().value(), b"1");
        }),
        ("append", |store, key| store.append(key, b"1").unwrap()),
        ("multi_set", |store, key| {
            store.multi_set(&[("other", b""), (key, b"1")]).unwrap();
        }),
    ];
    store.set_timeout(Some(LONG));
    for (name, write) in writes {
        let key = &format!("{name}/key");
        let waiters: [fn(&dyn Store, &str); 3] = [
            |store, key| store.wait(&[key]).unwrap(),
            |store, key| assert_eq!(store.get(key).unwrap(), b"1"),
            |store, key| assert_eq!(store.multi_get(&[key]).unwrap(), [b"1"]),
        ];
        let started = Instant::now();
        while_blocked(
            waiters.map(|waiter| {
                let (store, key) = (clone_of(store), key.clone());
                move || waiter(&*store, &key)
            }),
            || write(&**store, key),
        );
        // A wait that misses its wakeup but checks again at its deadline also succeeds, too late.
        assert!(
            started.elapsed() < LONG / 2,
            "{name} did not wake the waiters"
        );
    }
}

/// Runs `act` once all waiters are blocked, then joins them.
fn while_blocked<W: FnOnce() + Send>(waiters: impl IntoIterator<Item = W>, act: impl FnOnce()) {
    thread::scope(|scope| {
        let (started, all_started) = mpsc::channel();
        let start = |waiter: W| {
            let started = started.clone();
            scope.spawn(move || {
                started
                    .send(Observed::this_thread())
                    .expect("the checking thread receives");
                waiter();
            })
        };
        let waiters: Vec<_> = waiters.into_iter().map(start).collect();
        for _ in &waiters {
            let waiter = all_started.recv_timeout(LONG).expect("every waiter starts");
            waiter.wait_until_blocked();
        }
        act();
        for waiter in waiters {
            waiter.join().expect("the waiter succeeds");
        }
    });
}

fn a_wait_needs_all_its_keys(store: &Arc<dyn Store>, _: Features) {
    store.set("present", b"0").unwrap();
    settle(&**store);
    let (done, is_done) = mpsc::channel();
    let waiter = clone_of(store);
    while_blocked(
        [move || {
            waiter
                .wait_timeout(&["present", "first", "second"], Some(LONG))
                .unwrap();
            done.send(()).expect("the checking thread receives");
        }],
        || {
            store.set("first", b"1").unwrap();
            settle(&**store);
            let early = is_done.recv_timeout(Duration::from_millis(20));
            assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout));
            store.set("second", b"2").unwrap();
        },
    );
    assert_eq!(is_done.recv(), Ok(()));

    // multi_get waits too, and returns the values in the requested order.
    store.set_timeout(Some(LONG));
    let reader = clone_of(store);
    while_blocked(
        [move || {
            let values = reader.multi_get(&["third", "first"]).unwrap();
            assert_eq!(values, [b"3", b"1"]);
        }],
        || store.set("third", b"3").unwrap(),
    );
}

fn waits_time_out(store: &Arc<dyn Store>, features: Features) {
    let timeout = Duration::from_millis(20);
    store.set_timeout(Some(timeout));
    store.set("present", b"1").unwrap();
    let expect_timeout = |operation, missing: &str, call: &dyn Fn() -> Result<(), StoreError>| {
        let started = Instant::now();
        let error = call().unwrap_err();
        let elapsed = started.elapsed();
        assert!(elapsed >= timeout, "{error}: returned after {elapsed:?}");
        assert!(elapsed < LONG / 2, "{error}: returned after {elapsed:?}");
        assert!(
            error.is_timeout() && !error.has_unknown_outcome(),
            "{error}"
        );
        let StoreError::Timeout {
            context,
            timeout: limit,
        } = error
        else {
            panic!("unexpected: {error}");
        };
        assert_eq!(limit, timeout);
        assert_eq!(context.operation, operation);
        assert!(context.elapsed >= timeout);
        assert!(context.keys.contains(missing), "{context}");
        assert_eq!(context.store, store.label());
        assert!(!context.keys.contains("present"), "{context}");
    };
    expect_timeout(Operation::Get, "late", &|| store.get("late").map(drop));
    expect_timeout(Operation::Wait, "late", &|| {
        store.wait(&["present", "late"])
    });
    expect_timeout(Operation::Wait, "late", &|| {
        store.wait_timeout(&["late"], Some(timeout))
    });
    expect_timeout(Operation::MultiGet, "late", &|| {
        store.multi_get(&["present", "late"]).map(drop)
    });
    if features.queues {
        expect_timeout(Operation::QueuePop, "late", &|| {
            store.queue_pop("late").map(drop)
        });
    }
}

fn a_zero_timeout_checks_once_without_waiting(store: &Arc<dyn Store>, features: Features) {
    store.set("k", b"1").unwrap();
    for (own, default) in [(Duration::ZERO, LONG), (LONG, Duration::ZERO)] {
        let started = Instant::now();
        store.set_timeout(Some(default));
        if own.is_zero() {
            let own = Some(own);
            assert_eq!(store.get_timeout("k", own).unwrap(), b"1");
            store.wait_timeout(&["k"], own).unwrap();
            store.wait_change("k", Known::nothing(), own).unwrap();
            store.barrier_timeout("alone", 1, own).unwrap();
            assert!(store.get_timeout("late", own).unwrap_err().is_timeout());
            assert!(store.wait_timeout(&["late"], own).unwrap_err().is_timeout());
            let changed = store.wait_change("k", Known::whole(b"1"), own);
            assert!(changed.unwrap_err().is_timeout());
            let met = store.barrier_timeout("first", 2, own);
            assert!(met.unwrap_err().is_timeout());
        } else {
            assert_eq!(store.get("k").unwrap(), b"1");
            store.wait(&["k"]).unwrap();
            assert_eq!(store.multi_get(&["k"]).unwrap(), [b"1"]);
            store.barrier("solo", 1).unwrap();
            assert!(store.get("late").unwrap_err().is_timeout());
            assert!(store.wait(&["k", "late"]).unwrap_err().is_timeout());
            assert!(store.multi_get(&["k", "late"]).unwrap_err().is_timeout());
            assert!(store.barrier("second", 2).unwrap_err().is_timeout());
            if features.queues {
                assert!(store.queue_pop("q").unwrap_err().is_timeout());
                store.queue_push("q", b"1").unwrap();
                assert_eq!(store.queue_pop("q").unwrap(), b"1");
            }
        }
        assert!(started.elapsed() < LONG / 2, "a call waited");
    }
}

/// Runs each blocking operation with `None` as its own timeout (the default is zero then) or as the
/// default timeout.
fn without_a_timeout_a_call_waits_indefinitely(store: &Arc<dyn Store>, features: Features) {
    type Call = fn(&dyn Store);
    const WORKERS: usize = 3;
    let zero = Some(Duration::ZERO);
    let mut calls: Vec<(Option<Duration>, Call)> = vec![
        (zero, |store| drop(store.get_timeout("k", None).unwrap())),
        (zero, |store| store.wait_timeout(&["k"], None).unwrap()),
        (zero, |store| {
            drop(store.wait_change("k", Known::nothing(), None).unwrap());
        }),
        (zero, |store| {
            store.barrier_timeout("meet", WORKERS, None).unwrap();
        }),
        (None, |store| drop(store.get("k").unwrap())),
        (None, |store| store.wait(&["k"]).unwrap()),
        (None, |store| drop(store.multi_get(&["k"]).unwrap())),
        (None, |store| store.barrier("meet", WORKERS).unwrap()),
    ];
    if features.queues {
        calls.push((None, |store| drop(store.queue_pop("q").unwrap())));
    }
    let waiters = calls.into_iter().map(|(default, call)| {
        let waiter = clone_of(store);
        waiter.set_timeout(default);
        move || call(&*waiter)
    });
    while_blocked(waiters, || {
        store.set("k", b"1").unwrap();
        if features.queues {
            store.queue_push("q", b"1").unwrap();
        }
        store.barrier_timeout("meet", WORKERS, Some(LONG)).unwrap();
    });
}

fn a_timeout_leaves_the_store_usable(store: &Arc<dyn Store>, _: Features) {
    for round in 0..3 {
        let key = format!("k{round}");
        let error = store.wait_timeout(&[&key], Some(Duration::from_millis(5)));
        assert!(error.unwrap_err().is_timeout());
        store.set(&key, b"1").unwrap();
        store.wait_timeout(&[&key], Some(LONG)).unwrap();
        assert_eq!(store.get(&key).unwrap(), b"1");
    }
}

/// Several threads share one handle. A TCP store must not make them wait for a connection on which
/// another call blocks.
fn a_blocked_call_does_not_block_other_threads(store: &Arc<dyn Store>, _: Features) {
    while_blocked(
        ["a", "b"].map(|key| move || store.wait_timeout(&[key], Some(LONG)).unwrap()),
        || {
            assert_eq!(store.add("n", 1).unwrap(), 1);
            store.set("b", b"1").unwrap();
            store.set("a", b"1").unwrap();
        },
    );
}

fn wait_change_returns_a_different_value_at_once(store: &Arc<dyn Store>, features: Features) {
    assert_eq!(store.has_prompt_watch(), features.wakes_on_change);
    assert_eq!(clone_of(store).has_prompt_watch(), features.wakes_on_change);
    let long = vec![b'x'; 1 << 20];
    for value in [&b""[..], b"round 7, beat 1", &long] {
        store.set("k", value).unwrap();
        let differs = [
            Known::nothing(),
            Known::whole(b"round 7, beat 2"),
            Known::whole(b"round 7, beat"),
            Known::part(b"round 6", 0..7),
            Known::part(&long, long.len()..long.len() + 1),
        ];
        for known in differs {
            let seen = store.wait_change("k", known, Some(Duration::ZERO)).unwrap();
            assert!(seen == value, "{known:?}");
        }
        let same = [
            Known::whole(value),
            Known::part(value, 0..value.len() / 2),
            Known::part(value, value.len()..value.len()),
        ];
        for known in same {
            let error = store
                .wait_change("k", known, Some(Duration::ZERO))
                .unwrap_err();
            assert!(error.is_timeout(), "{known:?}: {error}");
        }
    }
}

fn every_write_wakes_wait_change(store: &Arc<dyn Store>, features: Features) {
    let writes: [(&str, Write, &[u8]); 5] = [
        ("set", |store, key| store.set(key, b"6").unwrap(), b"6"),
        (
            "add",
            |store, key| assert_eq!(store.add(key, -9).unwrap(), -4),
            b"-4",
        ),
        (
            "compare_set",
            |store, key| assert_eq!(store.compare_set(key, b"5", b"").unwrap().value(), b""),
            b"",
        ),
        (
            "append",
            |store, key| store.append(key, b"0").unwrap(),
            b"50",
        ),
        (
            "multi_set",
            |store, key| store.multi_set(&[("other", b""), (key, b"7")]).unwrap(),
            b"7",
        ),
    ];
    for (name, ..) in writes {
        store.set(name, b"5").unwrap();
    }
    settle(&**store);
    let started = Instant::now();
    while_blocked(
        writes.map(|(name, _, after)| {
            let store = clone_of(store);
            move || {
                let seen = store
                    .wait_change(name, Known::whole(b"5"), Some(LONG))
                    .unwrap();
                assert_eq!(seen, after, "{name}");
            }
        }),
        || {
            for (name, write, _) in writes {
                // A failed compare_set and a write of the same value do not wake the wait.
                assert_eq!(store.compare_set(name, b"x", b"y").unwrap().value(), b"5");
                store.set(name, b"5").unwrap();
                write(&**store, name);
            }
            settle(&**store);
        },
    );
    assert!(started.elapsed() < LONG / 2, "a wait was not woken");
    if features.queues {
        // A push to a queue of the same name does not wake the wait.
        store.queue_push("set", b"e").unwrap();
        let timeout = Duration::from_millis(5);
        let waited = store.wait_change("set", Known::whole(b"6"), Some(timeout));
        assert!(waited.unwrap_err().is_timeout());
    }
}

/// All threads share one handle, so a waiting thread must not block the other threads.
fn wait_change_ignores_changes_outside_its_part(store: &Arc<dyn Store>, _: Features) {
    store.set("k", b"round 7, beat 0").unwrap();
    let (done, is_done) = mpsc::channel();
    while_blocked(
        [move || {
            let round = Known::part(b"round 7, beat 0", 0..7);
            let seen = store.wait_change("k", round, None).unwrap();
            assert_eq!(seen, b"round 8, beat 0");
            done.send(()).expect("the checking thread receives");
        }],
        || {
            for beat in 1..=20 {
                let value = format!("round 7, beat {beat}");
                store.set("k", value.as_bytes()).unwrap();
            }
            settle(&**store);
            let early = is_done.recv_timeout(Duration::from_millis(20));
            assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout));
            store.set("k", b"round 8, beat 0").unwrap();
        },
    );
    assert_eq!(is_done.recv(), Ok(()));
}

fn wait_change_waits_for_a_missing_key(store: &Arc<dyn Store>, _: Features) {
    store.set("deleted", b"1").unwrap();
    assert!(store.delete_key("deleted").unwrap());
    let waiter = clone_of(store);
    let (done, is_done) = mpsc::channel();
    while_blocked(
        ["missing", "deleted"].map(|key| {
            let (waiter, done) = (Arc::clone(&waiter), done.clone());
            move || {
                let seen = waiter
                    .wait_change(key, Known::whole(b"1"), Some(LONG))
                    .unwrap();
                assert_eq!(seen, b"2", "{key}");
                done.send(()).expect("the checking thread receives");
            }
        }),
        || {
            store.set("missing", b"1").unwrap();
            store.set("deleted", b"1").unwrap();
            settle(&**store);
            let early = is_done.recv_timeout(Duration::from_millis(20));
            assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout));
            store.set("missing", b"2").unwrap();
            store.set("deleted", b"2").unwrap();
            settle(&**store);
        },
    );
}

fn wait_change_times_out(store: &Arc<dyn Store>, _: Features) {
    store.set("present", b"1").unwrap();
    // The timeout of the call applies, not the default one.
    store.set_timeout(Some(LONG));
    let timeout = Duration::from_millis(20);
    for (key, known) in [
        ("present", Known::whole(b"1")),
        ("missing", Known::nothing()),
    ] {
        let started = Instant::now();
        let error = store.wait_change(key, known, Some(timeout)).unwrap_err();
        assert!(started.elapsed() >= timeout, "{error}");
        assert!(started.elapsed() < LONG / 2, "{error}");
        let StoreError::Timeout {
            context,
            timeout: limit,
        } = error
        else {
            panic!("unexpected: {error}");
        };
        assert_eq!((context.operation, limit), (Operation::WaitChange, timeout));
        assert!(context.keys.contains(key), "{context}");
    }
    let seen = store.wait_change("present", Known::whole(b"2"), Some(timeout));
    assert_eq!(seen.unwrap(), b"1", "the store is usable afterwards");
}

fn closing_fails_current_and_later_calls(store: &Arc<dyn Store>, features: Features) {
    type Call = fn(&dyn Store) -> Result<(), StoreError>;
    let blocking: [Call; 6] = [
        |store| store.get("late").map(drop),
        |store| store.wait_timeout(&["present", "late"], None),
        |store| store.multi_get(&["late", "later"]).map(drop),
        |store| {
            let known = Known::whole(b"1");
            store.wait_change("present", known, Some(LONG)).map(drop)
        },
        |store| {
            let waited = store.wait_change("late", Known::nothing(), None);
            waited.map(drop)
        },
        |store| store.barrier_timeout("meet", 9, Some(LONG)),
    ];
    let non_blocking: [Call; 9] = [
        |store| store.set("k", b"1"),
        |store| store.get("present").map(drop),
        |store| store.add("n", 1).map(drop),
        |store| store.compare_set("k", b"", b"1").map(drop),
        |store| store.check(&["present"]).map(drop),
        |store| store.delete_key("present").map(drop),
        |store| store.append("k", b"1"),
        |store| store.multi_set(&[("k", b"1")]),
        |store| store.list_keys().map(drop),
    ];
    let queue_operations: [Call; 5] = [
        |store| store.queue_push("q", b"1"),
        |store| store.queue_pop("q").map(drop),
        |store| store.try_queue_pop("q").map(drop),
        |store| store.queue_len("q").map(drop),
        |store| store.queue_take("q", 1, Some(LONG)).map(drop),
    ];
    let expect_closed = |index: usize, result: Result<(), StoreError>| {
        let error = result.expect_err("the handle is closed");
        assert!(
            matches!(error, StoreError::Closed { .. }),
            "{index}: {error}"
        );
    };
    store.set("present", b"1").unwrap();
    settle(&**store);
    let closing = clone_of(store);
    let other = closing.clone_store().unwrap();
    closing.set_timeout(Some(LONG));
    let started = Instant::now();
    let mut index = 0;
    while_blocked(
        blocking.map(|call| {
            index += 1;
            let (index, closing) = (index, Arc::clone(&closing));
            move || expect_closed(index, call(&*closing))
        }),
        || closing.close(),
    );
    assert!(
        started.elapsed() < LONG / 2,
        "a call did not end at the close"
    );
    closing.close();
    let queue_calls = queue_operations.iter().filter(|_| features.queues);
    let calls = blocking.iter().chain(&non_blocking).chain(queue_calls);
    for (index, call) in calls.enumerate() {
        expect_closed(index, call(&*closing));
    }
    expect_closed(0, closing.clone_store().map(drop));

    // The other handles stay open, including a clone of the closed one, and the failed calls wrote
    // nothing.
    for open in [store, &other] {
        assert_eq!(open.get("present").unwrap(), b"1");
        assert!(!open.check(&["k"]).unwrap());
        assert!(!open.check(&["n"]).unwrap());
        open.clone_store().unwrap().set("open", b"1").unwrap();
    }
}

fn the_default_timeout_can_be_set(store: &Arc<dyn Store>, _: Features) {
    for timeout in [
        Some(Duration::from_millis(1500)),
        Some(Duration::ZERO),
        None,
    ] {
        store.set_timeout(timeout);
        assert_eq!(store.timeout(), timeout);
        let clone = clone_of(store);
        assert_eq!(clone.timeout(), timeout);
        clone.set_timeout(Some(LONG));
        assert_eq!(store.timeout(), timeout);
    }
}

fn concurrent_adds_sum_up(store: &Arc<dyn Store>, _: Features) {
    const THREADS: i64 = 4;
    const ADDS: i64 = 50;
    let answers: Vec<i64> = thread::scope(|scope| {
        let adders: Vec<_> = (0..THREADS)
            .map(|i| {
                // Half of the threads share a handle.
                let store = if i % 2 == 0 {
                    Arc::clone(store)
                } else {
                    clone_of(store)
                };
                scope.spawn(move || -> Vec<i64> {
                    (0..ADDS).map(|_| store.add("n", 1).unwrap()).collect()
                })
            })
            .collect();
        let answers = adders
            .into_iter()
            .map(|adder| adder.join().expect("no panic"));
        answers.flatten().collect()
    });
    let mut answers = answers;
    answers.sort_unstable();
    assert!(answers.into_iter().eq(1..=THREADS * ADDS));
    assert_eq!(
        store.get("n").unwrap(),
        (THREADS * ADDS).to_string().as_bytes()
    );
}

fn one_of_many_compare_sets_wins(store: &Arc<dyn Store>, _: Features) {
    for round in 0..10 {
        let key = &format!("leader{round}");
        let answers: Vec<Vec<u8>> = thread::scope(|scope| {
            let callers: Vec<_> = (0..4_u8)
                .map(|i| scope.spawn(move || store.compare_set(key, b"", [i]).unwrap()))
                .collect();
            callers
                .into_iter()
                .map(|caller| caller.join().expect("no panic").into_value())
                .collect()
        });
        let leader = store.get(key).unwrap();
        assert!(
            answers.iter().all(|answer| *answer == leader),
            "{answers:?}"
        );
    }
}

fn concurrent_appends_are_all_kept(store: &Arc<dyn Store>, _: Features) {
    thread::scope(|scope| {
        for letter in *b"xy" {
            let store = clone_of(store);
            scope.spawn(move || {
                for _ in 0..50 {
                    store.append("log", [letter]).unwrap();
                }
                settle(&*store);
            });
        }
    });
    let log = store.get("log").unwrap();
    let count = |letter| log.iter().filter(|byte| **byte == letter).count();
    assert_eq!((log.len(), count(b'x'), count(b'y')), (100, 50, 50));
}

fn a_barrier_waits_for_all_workers(store: &Arc<dyn Store>, features: Features) {
    const WORKERS: usize = 4;
    for round in 0..3 {
        let key = &format!("barrier{round}");
        let arrivals = &format!("arrivals{round}");
        thread::scope(|scope| {
            for _ in 0..WORKERS {
                let store = clone_of(store);
                scope.spawn(move || {
                    store.add(arrivals, 1).unwrap();
                    store.barrier_timeout(key, WORKERS, Some(LONG)).unwrap();
                    // No worker passes before all have arrived.
                    assert_eq!(store.add(arrivals, 0).unwrap(), WORKERS as i64);
                });
            }
        });
        // A completed barrier stays open.
        store
            .barrier_timeout(key, WORKERS, Some(Duration::ZERO))
            .unwrap();
    }
    store.barrier("alone", 1).unwrap();
    let empty = store.barrier_timeout("empty", 0, Some(Duration::ZERO));
    if features.refuses_empty_barrier {
        assert!(matches!(empty, Err(StoreError::InvalidArgument { .. })));
    }
}

fn a_barrier_refuses_a_value_that_is_not_a_number(store: &Arc<dyn Store>, _: Features) {
    // Where the arrivals are counted: at the key or, by stores without a command for it, below the key.
    for key in ["meet", "meet/num_members"] {
        store.set(key, "text").unwrap();
    }
    settle(&**store);
    let error = store.barrier("meet", 2).unwrap_err();
    assert!(matches!(error, StoreError::NotANumber { .. }), "{error}");
    assert_eq!(store.get("meet").unwrap(), b"text");
    store.barrier("alone", 1).unwrap();
}

fn a_barrier_times_out(store: &Arc<dyn Store>, _: Features) {
    let timeout = Duration::from_millis(20);
    let started = Instant::now();
    let error = store.barrier_timeout("meet", 2, Some(timeout)).unwrap_err();
    assert!(started.elapsed() >= timeout);
    assert!(started.elapsed() < LONG / 2);
    assert!(error.has_unknown_outcome());
    let StoreError::BarrierTimeout {
        context,
        world_size,
        ..
    } = error
    else {
        panic!("unexpected: {error}");
    };
    assert_eq!((context.operation, world_size), (Operation::Barrier, 2));
    assert!(context.keys.contains("meet"), "{context}");
    // The arrival was counted, so the next one completes the barrier.
    store
        .barrier_timeout("meet", 2, Some(Duration::ZERO))
        .unwrap();
}

fn queue_take_returns_several_elements(store: &Arc<dyn Store>, features: Features) {
    const NOW: Option<Duration> = Some(Duration::ZERO);
    if !features.queues {
        let error = store.queue_take("q", 1, NOW).unwrap_err();
        assert!(matches!(error, StoreError::Unsupported { .. }), "{error}");
        return;
    }
    let error = store.queue_take("q", 0, NOW).unwrap_err();
    assert!(
        matches!(error, StoreError::InvalidArgument { .. }),
        "{error}"
    );
    assert!(store.queue_take("q", 3, NOW).unwrap().is_empty());
    let error = store
        .queue_take("q", 3, Some(Duration::from_millis(5)))
        .unwrap_err();
    let StoreError::Timeout { context, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(context.operation, Operation::QueueTake);
    assert!(error.to_string().contains("the queue is empty"), "{error}");

    for number in 0..5 {
        store.queue_push("q", number.to_string()).unwrap();
    }
    let three = ["0", "1", "2"].map(|text| text.as_bytes().to_vec());
    assert_eq!(store.queue_take("q", 3, NOW).unwrap(), three);
    let rest = ["3", "4"].map(|text| text.as_bytes().to_vec());
    assert_eq!(store.queue_take("q", usize::MAX, None).unwrap(), rest);
    assert_eq!(store.queue_len("q").unwrap(), 0);

    // An empty element is also an element. A value of that name is not an element.
    store.queue_push("q", b"").unwrap();
    assert_eq!(store.queue_take("q", 9, NOW).unwrap(), [Vec::<u8>::new()]);
    store.set("q", b"value").unwrap();
    assert!(store.queue_take("q", 9, NOW).unwrap().is_empty());
    assert!(
        store
            .queue_take("q", 9, Some(Duration::from_millis(5)))
            .unwrap_err()
            .is_timeout()
    );
    // A push satisfies the wait.
    thread::scope(|scope| {
        let taking = scope.spawn(|| store.queue_take("late", 9, Some(LONG)));
        thread::sleep(Duration::from_millis(5));
        store.queue_push("late", b"e").unwrap();
        assert_eq!(taking.join().unwrap().unwrap(), [b"e".to_vec()]);
    });
}

fn queues_are_first_in_first_out(store: &Arc<dyn Store>, features: Features) {
    if !features.queues {
        let unsupported = |result: Result<(), StoreError>| {
            let error = result.unwrap_err();
            assert!(matches!(error, StoreError::Unsupported { .. }), "{error}");
        };
        unsupported(store.queue_push("q", b"1"));
        unsupported(store.queue_pop("q").map(drop));
        unsupported(store.try_queue_pop("q").map(drop));
        unsupported(store.queue_len("q").map(drop));
        return;
    }
    assert_eq!(store.queue_len("q").unwrap(), 0);
    assert_eq!(store.try_queue_pop("q").unwrap(), None);
    for element in [&b"1"[..], b"", b"\0\xff"] {
        store.queue_push("q", element).unwrap();
    }
    assert_eq!(store.queue_len("q").unwrap(), 3);
    assert_eq!(store.queue_pop("q").unwrap(), b"1");
    assert_eq!(store.try_queue_pop("q").unwrap(), Some(vec![]));
    assert_eq!(store.queue_pop("q").unwrap(), b"\0\xff");
    assert_eq!(store.queue_len("q").unwrap(), 0);
    assert_eq!(store.try_queue_pop("q").unwrap(), None);
}

fn a_queue_and_a_value_can_share_a_name(store: &Arc<dyn Store>, features: Features) {
    if !features.queues {
        return;
    }
    let bookkeeping = store.num_keys().unwrap();
    store.queue_push("q", b"element").unwrap();
    // For check and wait a queue with an element is a key; for other operations it is not.
    assert!(store.check(&["q"]).unwrap());
    store.wait_timeout(&["q"], Some(Duration::ZERO)).unwrap();
    assert_eq!(store.num_keys().unwrap(), bookkeeping);
    assert_eq!(store.list_keys().unwrap(), Vec::<String>::new());
    assert!(!store.delete_key("q").unwrap());
    // A value of the same name neither hides nor changes the queue.
    store.set("q", b"value").unwrap();
    assert_eq!(store.get("q").unwrap(), b"value");
    assert_eq!(store.queue_pop("q").unwrap(), b"element");
    assert_eq!(store.try_queue_pop("q").unwrap(), None);
    assert!(store.delete_key("q").unwrap());
    assert!(!store.check(&["q"]).unwrap());
}

fn a_pop_waits_for_a_push(store: &Arc<dyn Store>, features: Features) {
    if !features.queues {
        return;
    }
    store.set_timeout(Some(LONG));
    let started = Instant::now();
    let (popper, waiter, other) = (clone_of(store), clone_of(store), clone_of(store));
    let waiters: [Box<dyn FnOnce() + Send>; 2] = [
        // The first waiter waits for another key: a push that wakes one waiter must not choose it.
        Box::new(move || other.wait(&["other"]).unwrap()),
        Box::new(move || assert_eq!(popper.queue_pop("q").unwrap(), b"1")),
    ];
    while_blocked(waiters, || {
        store.queue_push("q", b"1").unwrap();
        store.set("other", b"").unwrap();
    });
    let push_and_wait: [Box<dyn FnOnce() + Send>; 1] =
        [Box::new(move || waiter.wait(&["p"]).unwrap())];
    while_blocked(push_and_wait, || store.queue_push("p", b"2").unwrap());
    assert!(started.elapsed() < LONG / 2);
}

fn each_element_is_popped_once(store: &Arc<dyn Store>, features: Features) {
    const POPPERS: u8 = 4;
    const POPS: u8 = 10;
    if !features.queues {
        return;
    }
    store.set_timeout(Some(LONG));
    let mut popped: Vec<u8> = thread::scope(|scope| {
        let poppers: Vec<_> = (0..POPPERS)
            .map(|_| {
                let store = clone_of(store);
                scope.spawn(move || -> Vec<u8> {
                    (0..POPS)
                        .flat_map(|_| store.queue_pop("q").unwrap())
                        .collect()
                })
            })
            .collect();
        for element in 0..POPPERS * POPS {
            store.queue_push("q", [element]).unwrap();
        }
        let popped = poppers
            .into_iter()
            .map(|popper| popper.join().expect("no panic"));
        popped.flatten().collect()
    });
    popped.sort_unstable();
    assert!(popped.into_iter().eq(0..POPPERS * POPS));
    assert_eq!(store.queue_len("q").unwrap(), 0);
}
