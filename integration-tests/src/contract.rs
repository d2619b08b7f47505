//! The operations that every store must support, tested for every pair of client and server.

use std::thread;
use std::time::{Duration, Instant};

use crate::peer::{Failure, Peer, PeerResult};
use crate::torch::{Feature, Release, print_skipped};

/// Features and behaviours in which stores differ.
#[derive(Debug, Clone, Copy)]
pub struct Traits {
    /// The store has queues.
    pub queues: bool,
    /// The store has `barrier`.
    pub barrier: bool,
    /// The store has `list_keys`.
    pub list_keys: bool,
    /// The client has `clone`.
    pub clone: bool,
    /// Whether a `compare_set` that creates a key wakes waits for the key.
    pub compare_set_wakes: bool,
    /// The number of internal keys that `num_keys` counts in a fresh store.
    pub own_keys: u64,
    /// Whether `list_keys` returns only the user's keys.
    pub lists_only_users_keys: bool,
    /// The result of `delete_key` for a missing key.
    pub delete_of_missing: bool,
    /// Whether the store implements `append`, `multi_get` and `multi_set` itself.
    pub extended_api: bool,
    /// The error of `add` to a value that is not a number. [`Failure::Lost`]: the server closes the connection.
    pub add_to_text: Failure,
    /// Whether `barrier` without a timeout uses the store's timeout. PyTorch's `PrefixStore` does not.
    pub barrier_has_default_timeout: bool,
    /// Whether a clone has the timeout of the original. With PyTorch's `FileStore` it has the default timeout.
    pub clone_keeps_timeout: bool,
    /// The length of the longest value to test.
    pub value_bytes_max: usize,
}

impl Traits {
    /// Clears the features that PyTorch's `release` does not have.
    #[must_use]
    pub fn with(mut self, release: &Release) -> Self {
        for (has, feature) in [
            (&mut self.queues, Feature::Queues),
            (&mut self.barrier, Feature::Barrier),
            (&mut self.list_keys, Feature::ListKeys),
            (&mut self.clone, Feature::Clone),
        ] {
            *has = *has && release.has(feature);
        }
        self
    }
}

/// Returns `part`: whether a part of the contract applies. If not, prints that the test skips it.
fn has(part: bool, name: &str) -> bool {
    if !part {
        print_skipped(&format!(
            "{name}, which the client or the store does not have"
        ));
    }
    part
}

/// A TCP store with queues, without a prefix.
pub const TCP: Traits = Traits {
    queues: true,
    barrier: true,
    list_keys: true,
    clone: true,
    compare_set_wakes: true,
    own_keys: 0,
    lists_only_users_keys: true,
    delete_of_missing: false,
    extended_api: true,
    add_to_text: Failure::Lost,
    barrier_has_default_timeout: true,
    clone_keeps_timeout: true,
    value_bytes_max: 8 << 20,
};

/// A timeout that tests let expire.
const SHORT: Duration = Duration::from_millis(150);

/// A timeout that expires only when a test fails.
const LONG: Duration = Duration::from_secs(30);

/// Tests every operation of a fresh store, with its corner cases.
///
/// # Panics
/// When an operation violates the contract.
pub fn every_operation(peer: &dyn Peer, traits: &Traits) {
    peer.set_timeout(LONG).expect("set_timeout");
    values(peer);
    numbers(peer);
    compare_set(peer);
    presence(peer);
    deletion(peer, traits);
    append(peer, traits);
    many_at_once(peer);
    if has(traits.queues, "queues") {
        queues(peer);
    }
    if has(traits.list_keys, "list_keys") {
        listing(peer, traits);
    }
    if has(traits.barrier, "barrier") {
        barrier(peer);
    }
    timeouts(peer, traits);
    sizes(peer, traits);
    if has(traits.clone, "clone") {
        clones(peer, traits);
    }
}

/// Tests `add` to a value that is not a number. Call it last: the server may close the connection.
///
/// # Panics
/// When the operation violates the contract.
pub fn add_to_text(peer: &dyn Peer, other: &dyn Peer, traits: &Traits) {
    peer.set("text", b"abc").expect("set");
    let error = peer.add("text", 1).expect_err("abc is not a number");
    assert_eq!(error.failure, traits.add_to_text, "{error}");
    assert_eq!(
        other.get("text").expect("other clients are unaffected"),
        b"abc"
    );
    if traits.add_to_text == Failure::NotANumber {
        assert_eq!(peer.get("text").expect("the client remains usable"), b"abc");
        peer.add("after_text", 1).expect("add");
    }
}

/// Tests that two clients of one store see each other's changes and wake each other's waits.
///
/// # Panics
/// When an operation violates the contract.
pub fn two_clients(a: &dyn Peer, b: &dyn Peer, traits: &Traits) {
    for (round, (waiter, writer)) in [(a, b), (b, a)].into_iter().enumerate() {
        let case = format!("{} waits for {}", waiter.name(), writer.name());
        let key = |name: &str| format!("two/{round}/{name}");
        waiter.set_timeout(LONG).expect("set_timeout");
        writer.set_timeout(LONG).expect("set_timeout");

        // Every operation that writes a key wakes the waits for it.
        type Write = fn(&dyn Peer, &str) -> PeerResult<()>;
        let writes: [(&str, Write, &[u8]); 5] = [
            ("set", |p, k| p.set(k, b"v"), b"v"),
            ("add", |p, k| p.add(k, 7).map(drop), b"7"),
            ("append", |p, k| p.append(k, b"tail"), b"tail"),
            (
                "compare_set",
                |p, k| p.compare_set(k, b"", b"new").map(drop),
                b"new",
            ),
            ("multi_set", |p, k| p.multi_set(&[(k, b"m")]), b"m"),
        ];
        for (name, write, value) in writes {
            if name == "compare_set" && !traits.compare_set_wakes {
                continue;
            }
            let key = key(name);
            let got = while_waiting(
                || waiter.get(&key),
                || write(writer, &key).unwrap_or_else(|e| panic!("{case}: {name}: {e}")),
            );
            let got = got.unwrap_or_else(|e| panic!("{case}: get after {name}: {e}"));
            assert_eq!(got, value, "{case}: {name}");
        }

        // A wait for several keys ends when the last of them exists.
        let (first, last) = (key("first"), key("last"));
        let keys = [first.as_str(), last.as_str()];
        let waited = while_waiting(
            || waiter.wait(&keys, Some(LONG)),
            || {
                writer.set(&last, b"").expect("set");
                assert!(writer.check(&[&last]).expect("check"));
                writer.set(&first, b"").expect("set");
            },
        );
        waited.unwrap_or_else(|e| panic!("{case}: wait for two keys: {e}"));

        // Concurrent additions by both clients are all counted.
        let sum = key("sum");
        thread::scope(|scope| {
            for peer in [a, b] {
                let sum = &sum;
                scope.spawn(move || {
                    for _ in 0..50 {
                        peer.add(sum, 1).expect("add");
                    }
                });
            }
        });
        assert_eq!(waiter.add(&sum, 0).expect("add"), 100, "{case}");

        if has(traits.barrier, "barrier") {
            let meet = key("meet");
            let met = while_waiting(
                || waiter.barrier(&meet, 2, Some(LONG)),
                || {
                    writer
                        .barrier(&meet, 2, Some(LONG))
                        .unwrap_or_else(|e| panic!("{case}: last arrival at the barrier: {e}"));
                },
            );
            met.unwrap_or_else(|e| panic!("{case}: first arrival at the barrier: {e}"));
        }

        if has(traits.queues, "queues") {
            let queue = key("queue");
            let popped = while_waiting(
                || waiter.queue_pop(&queue),
                || writer.queue_push(&queue, b"job").expect("queue_push"),
            );
            assert_eq!(
                popped.unwrap_or_else(|e| panic!("{case}: queue_pop: {e}")),
                b"job"
            );
            for element in [&b"1"[..], b"", b"3"] {
                writer.queue_push(&queue, element).expect("queue_push");
            }
            assert_eq!(writer.queue_len(&queue).expect("queue_len"), 3);
            for element in [&b"1"[..], b"", b"3"] {
                assert_eq!(waiter.queue_pop(&queue).expect("queue_pop"), element);
            }
        }

        // A key that one client deletes is missing for the other.
        assert!(writer.delete_key(&sum).expect("delete_key"), "{case}");
        assert!(!waiter.check(&[&sum]).expect("check"), "{case}");
    }
}

/// Runs `wait` on a thread and `act` 30 ms later; returns the result of `wait`.
///
/// The wait has usually begun when `act` runs, but assertions must not depend on it: a wait for a key that
/// already exists ends at once.
pub fn while_waiting<T: Send>(wait: impl FnOnce() -> T + Send, act: impl FnOnce()) -> T {
    thread::scope(|scope| {
        let waiting = scope.spawn(wait);
        thread::sleep(Duration::from_millis(30));
        act();
        match waiting.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Asserts that `operation` times out after `limit`: neither earlier nor only after the store's own timeout.
///
/// # Panics
/// When the operation succeeds, fails with another error or times out too early or too late.
pub fn times_out<T: std::fmt::Debug>(
    what: &str,
    limit: Duration,
    operation: impl FnOnce() -> PeerResult<T>,
) {
    let started = Instant::now();
    let error = operation().expect_err(what);
    let elapsed = started.elapsed();
    assert_eq!(error.failure, Failure::Timeout, "{what}: {error}");
    // 1 ms of tolerance for clocks that round down. LONG is the store's own timeout.
    assert!(
        elapsed + Duration::from_millis(1) >= limit && elapsed < LONG,
        "{what}: a limit of {limit:?} took {elapsed:?}"
    );
}

fn values(peer: &dyn Peer) {
    let all_bytes: Vec<u8> = (0..=u8::MAX).collect();
    let cases: [(&str, &[u8]); 6] = [
        ("values/plain", b"v"),
        ("values/empty", b""),
        ("values/all bytes", &all_bytes),
        ("", b"the empty key"),
        ("values/\u{e4}\u{1f980}/", "\u{fc}".as_bytes()),
        ("values/with\0nul", b"\0"),
    ];
    for (key, value) in cases {
        peer.set(key, value).expect("set");
    }
    for (key, value) in cases {
        assert_eq!(peer.get(key).expect("get"), value, "{key:?}");
    }
    peer.set("values/plain", b"replaced").expect("set");
    assert_eq!(peer.get("values/plain").expect("get"), b"replaced");
}

fn numbers(peer: &dyn Peer) {
    let add = |key: &str, delta| peer.add(key, delta).expect("add");
    assert_eq!(add("numbers/new", 5), 5);
    assert_eq!(add("numbers/new", -7), -2);
    assert_eq!(peer.get("numbers/new").expect("get"), b"-2");
    assert_eq!(add("numbers/zero", 0), 0);
    assert_eq!(peer.get("numbers/zero").expect("get"), b"0");
    // docs/spec/wire.md, 5.3: parsed as by C's strtoll.
    peer.set("numbers/text", b" \t+12abc").expect("set");
    assert_eq!(add("numbers/text", 1), 13);
    assert_eq!(add("numbers/limit", i64::MAX), i64::MAX);
    assert_eq!(add("numbers/limit", 1), i64::MIN);
    assert_eq!(
        peer.get("numbers/limit").expect("get"),
        i64::MIN.to_string().as_bytes()
    );
}

fn compare_set(peer: &dyn Peer) {
    let compare_set = |key: &str, expected: &[u8], desired: &[u8]| {
        peer.compare_set(key, expected, desired)
            .expect("compare_set")
    };
    // The rows of the table in docs/spec/wire.md, 5.4.
    assert_eq!(compare_set("cas", b"other", b"x"), b"other");
    assert!(!peer.check(&["cas"]).expect("check"), "nothing was stored");
    assert_eq!(compare_set("cas", b"", b"one"), b"one");
    assert_eq!(compare_set("cas", b"one", b"two"), b"two");
    assert_eq!(compare_set("cas", b"one", b"three"), b"two");
    assert_eq!(compare_set("cas", b"", b"three"), b"two");
    assert_eq!(peer.get("cas").expect("get"), b"two");
    assert_eq!(compare_set("cas", b"two", b""), b"");
    assert_eq!(compare_set("cas", b"", b"four"), b"four");
}

fn presence(peer: &dyn Peer) {
    assert!(peer.check(&[]).expect("check"), "check of no keys is true");
    peer.set("here", b"").expect("set");
    assert!(peer.check(&["here"]).expect("check"));
    assert!(peer.check(&["here", "here"]).expect("check"));
    assert!(!peer.check(&["missing"]).expect("check"));
    assert!(!peer.check(&["here", "missing"]).expect("check"));
    peer.wait(&[], Some(LONG)).expect("wait for nothing");
    peer.wait(&["here", "here"], None).expect("wait");
    times_out("wait", SHORT, || {
        peer.wait(&["here", "missing"], Some(SHORT))
    });
}

fn deletion(peer: &dyn Peer, traits: &Traits) {
    let before = peer.num_keys().expect("num_keys");
    peer.set("doomed", b"x").expect("set");
    assert_eq!(peer.num_keys().expect("num_keys"), before + 1);
    assert!(peer.delete_key("doomed").expect("delete_key"));
    assert_eq!(peer.num_keys().expect("num_keys"), before);
    assert!(!peer.check(&["doomed"]).expect("check"));
    assert_eq!(
        peer.delete_key("doomed").expect("delete_key"),
        traits.delete_of_missing
    );
    assert_eq!(peer.num_keys().expect("num_keys"), before);
    assert_eq!(
        peer.add("doomed", 1).expect("add"),
        1,
        "a deleted counter starts at 0"
    );
}

fn append(peer: &dyn Peer, traits: &Traits) {
    assert_eq!(
        peer.has_extended_api().expect("has_extended_api"),
        traits.extended_api
    );
    for piece in [&b"one"[..], b"two", b"", b"\0three"] {
        peer.append("log", piece).expect("append");
    }
    assert_eq!(peer.get("log").expect("get"), b"onetwo\0three");
}

fn many_at_once(peer: &dyn Peer) {
    peer.multi_set(&[]).expect("multi_set");
    assert!(peer.multi_get(&[]).expect("multi_get").is_empty());
    let long = vec![b'x'; 10_000];
    peer.multi_set(&[
        ("m/1", b"one"),
        ("m/2", b""),
        ("m/3", &long),
        ("m/1", b"last wins"),
    ])
    .expect("multi_set");
    let values = peer
        .multi_get(&["m/3", "m/1", "m/2", "m/1"])
        .expect("multi_get");
    assert_eq!(values, [&long[..], b"last wins", b"", b"last wins"]);
}

fn queues(peer: &dyn Peer) {
    assert_eq!(peer.queue_len("q").expect("queue_len"), 0);
    let error = peer.try_queue_pop("q").expect_err("nothing was pushed");
    assert_eq!(error.failure, Failure::QueueEmpty, "{error}");
    for element in [&b"first"[..], b"", b"third"] {
        peer.queue_push("q", element).expect("queue_push");
    }
    assert_eq!(peer.queue_len("q").expect("queue_len"), 3);
    assert!(
        peer.check(&["q"]).expect("check"),
        "a queue with elements exists as a key"
    );
    assert_eq!(peer.queue_pop("q").expect("queue_pop"), b"first");
    assert_eq!(peer.try_queue_pop("q").expect("queue_pop"), b"");
    assert_eq!(peer.queue_pop("q").expect("queue_pop"), b"third");
    assert_eq!(peer.queue_len("q").expect("queue_len"), 0);
    assert!(
        !peer.check(&["q"]).expect("check"),
        "an empty queue does not"
    );
    peer.set_timeout(SHORT).expect("set_timeout");
    times_out("queue_pop", SHORT, || peer.queue_pop("q"));
    peer.set_timeout(LONG).expect("set_timeout");
    // A queue and a value with the same key are independent.
    let before = peer.num_keys().expect("num_keys");
    peer.queue_push("q", b"element").expect("queue_push");
    assert_eq!(peer.num_keys().expect("num_keys"), before);
    peer.set("q", b"value").expect("set");
    assert!(peer.delete_key("q").expect("delete_key"));
    assert_eq!(peer.queue_pop("q").expect("queue_pop"), b"element");
}

fn listing(peer: &dyn Peer, traits: &Traits) {
    let keys = peer.list_keys().expect("list_keys");
    for key in ["", "cas", "log", "m/1", "values/\u{e4}\u{1f980}/"] {
        assert!(keys.iter().any(|k| k == key), "{key:?} in {keys:?}");
    }
    assert!(!keys.iter().any(|k| k == "missing" || k == "q"), "{keys:?}");
    let count = peer.num_keys().expect("num_keys");
    if traits.lists_only_users_keys {
        assert_eq!(keys.len() as u64 + traits.own_keys, count, "{keys:?}");
    }
}

fn barrier(peer: &dyn Peer) {
    peer.barrier("alone", 1, Some(LONG)).expect("barrier");
    peer.barrier("alone, default timeout", 1, None)
        .expect("barrier");
    times_out("barrier", SHORT, || peer.barrier("never", 2, Some(SHORT)));
    // docs/spec/wire.md, 5.8: an arrival counts even if its wait timed out.
    peer.barrier("never", 2, Some(LONG)).expect("barrier");
}

fn timeouts(peer: &dyn Peer, traits: &Traits) {
    peer.set_timeout(SHORT).expect("set_timeout");
    assert_eq!(peer.timeout().expect("timeout"), SHORT);
    times_out("get", SHORT, || peer.get("missing"));
    times_out("multi_get", SHORT, || peer.multi_get(&["here", "missing"]));
    times_out("wait, default", SHORT, || peer.wait(&["missing"], None));
    if traits.barrier && traits.barrier_has_default_timeout {
        times_out("barrier, default", SHORT, || {
            peer.barrier("never, default timeout", 2, None)
        });
    }
    peer.set_timeout(LONG).expect("set_timeout");
    // The connection remains usable after the timeouts.
    peer.set("missing", b"late").expect("set");
    assert_eq!(peer.get("missing").expect("get"), b"late");
    assert!(peer.delete_key("missing").expect("delete_key"));
}

fn sizes(peer: &dyn Peer, traits: &Traits) {
    // Lengths around the buffer sizes of clients and servers.
    let around = [1439, 1440, 1441, 4095, 4096, 4097, 65_536];
    for length in around.into_iter().chain([traits.value_bytes_max]) {
        let value: Vec<u8> = (0..=u8::MAX).cycle().take(length).collect();
        peer.set("large", &value).expect("set");
        assert!(peer.get("large").expect("get") == value, "{length} bytes");
    }
    assert!(peer.delete_key("large").expect("delete_key"));
    let long_key = "k".repeat(4000);
    assert_eq!(peer.add(&long_key, 3).expect("add"), 3);
    assert_eq!(peer.get(&long_key).expect("get"), b"3");
    assert!(peer.delete_key(&long_key).expect("delete_key"));
}

fn clones(peer: &dyn Peer, traits: &Traits) {
    let clone = peer.clone_store().expect("clone");
    peer.set("from the original", b"o").expect("set");
    // SET has no reply. The CHECK on the same connection ensures that it was executed.
    assert!(peer.check(&["from the original"]).expect("check"));
    assert_eq!(clone.get("from the original").expect("get"), b"o");
    assert_eq!(clone.add("clones", 2).expect("add"), 2);
    assert_eq!(peer.add("clones", 2).expect("add"), 4);
    assert_eq!(
        clone.timeout().expect("timeout") == LONG,
        traits.clone_keeps_timeout
    );
}
