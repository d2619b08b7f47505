//! What every store promises, written once and checked for every pair of client and server.

use std::thread;
use std::time::{Duration, Instant};

use crate::peer::{Failure, Peer, PeerResult};
use crate::torch::{Feature, Release, left_out};

/// In what stores differ from each other.
#[derive(Debug, Clone, Copy)]
pub struct Traits {
    /// It has queues.
    pub queues: bool,
    /// It has `barrier`.
    pub barrier: bool,
    /// It has `list_keys`.
    pub list_keys: bool,
    /// The client has `clone`.
    pub clone: bool,
    /// Whether a wait for a key ends when a `compare_set` creates it.
    pub compare_set_wakes: bool,
    /// Keys of its own that `num_keys` counts in a fresh store.
    pub own_keys: u64,
    /// Whether `list_keys` shows nothing but the user's keys.
    pub lists_only_users_keys: bool,
    /// What `delete_key` says of a missing key.
    pub delete_of_missing: bool,
    /// Whether `append`, `multi_get` and `multi_set` are its own.
    pub extended_api: bool,
    /// What `add` to something that is not a number does: [`Failure::Lost`] when it costs the
    /// connection.
    pub add_to_text: Failure,
    /// Whether `barrier` without a timeout takes the store's: PyTorch's PrefixStore does not.
    pub barrier_has_default_timeout: bool,
    /// Whether a clone has the timeout of the original: PyTorch's FileStore's has the default.
    pub clone_keeps_timeout: bool,
    /// The longest value to try.
    pub value_bytes_max: usize,
}

impl Traits {
    /// What of it is left with PyTorch's `release` on either end.
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

/// Whether a part of the contract applies. If not, prints that it is left out.
fn has(part: bool, name: &str) -> bool {
    if !part {
        left_out(&format!(
            "{name}, which the client or the store does not have"
        ));
    }
    part
}

/// A TCP store, as a direct connection to a server with queues shows it.
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

/// Long enough to be measured, short enough to wait for often.
const SHORT: Duration = Duration::from_millis(150);

/// For what has to happen: never waited for in a run that succeeds.
const LONG: Duration = Duration::from_secs(30);

/// Runs every operation of a fresh store, with its corner cases.
///
/// # Panics
/// When one of them does something else than promised.
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

/// Runs `add` on something that is not a number. Comes last, as it may cost the connection.
///
/// # Panics
/// When it does something else than promised.
pub fn add_to_text(peer: &dyn Peer, other: &dyn Peer, traits: &Traits) {
    peer.set("text", b"abc").expect("set");
    let error = peer.add("text", 1).expect_err("abc is not a number");
    assert_eq!(error.failure, traits.add_to_text, "{error}");
    assert_eq!(other.get("text").expect("the others go on"), b"abc");
    if traits.add_to_text == Failure::NotANumber {
        assert_eq!(peer.get("text").expect("the same handle goes on"), b"abc");
        peer.add("after_text", 1).expect("add");
    }
}

/// Two users of one store see what the other one does, and wake each other.
///
/// # Panics
/// When they do not.
pub fn two_users(a: &dyn Peer, b: &dyn Peer, traits: &Traits) {
    for (round, (waiter, writer)) in [(a, b), (b, a)].into_iter().enumerate() {
        let who = format!("{} waits for {}", waiter.name(), writer.name());
        let key = |name: &str| format!("two/{round}/{name}");
        waiter.set_timeout(LONG).expect("set_timeout");
        writer.set_timeout(LONG).expect("set_timeout");

        // Every operation that writes releases who waits for the key.
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
                || write(writer, &key).unwrap_or_else(|e| panic!("{who}: {name}: {e}")),
            );
            let got = got.unwrap_or_else(|e| panic!("{who}: get after {name}: {e}"));
            assert_eq!(got, value, "{who}: {name}");
        }

        // A wait for several keys ends with the last of them.
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
        waited.unwrap_or_else(|e| panic!("{who}: wait for two keys: {e}"));

        // Additions of both come together.
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
        assert_eq!(waiter.add(&sum, 0).expect("add"), 100, "{who}");

        if has(traits.barrier, "barrier") {
            let meet = key("meet");
            let met = while_waiting(
                || waiter.barrier(&meet, 2, Some(LONG)),
                || {
                    writer
                        .barrier(&meet, 2, Some(LONG))
                        .unwrap_or_else(|e| panic!("{who}: the last at the barrier: {e}"));
                },
            );
            met.unwrap_or_else(|e| panic!("{who}: the first at the barrier: {e}"));
        }

        if has(traits.queues, "queues") {
            let queue = key("queue");
            let popped = while_waiting(
                || waiter.queue_pop(&queue),
                || writer.queue_push(&queue, b"job").expect("queue_push"),
            );
            assert_eq!(
                popped.unwrap_or_else(|e| panic!("{who}: queue_pop: {e}")),
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

        // What one deletes is gone for the other.
        assert!(writer.delete_key(&sum).expect("delete_key"), "{who}");
        assert!(!waiter.check(&[&sum]).expect("check"), "{who}");
    }
}

/// Runs `wait` on a thread, then `act`, and gives the result of `wait`.
///
/// `act` starts as soon as the thread does; most of the time the wait has begun by then. What is
/// asserted must hold either way, and does: a key that is there already ends a wait as well.
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

/// Runs `operation`, which must time out after `limit`, not before, and not as late as by the store's own timeout.
///
/// # Panics
/// When it does anything else.
pub fn times_out<T: std::fmt::Debug>(
    what: &str,
    limit: Duration,
    operation: impl FnOnce() -> PeerResult<T>,
) {
    let started = Instant::now();
    let error = operation().expect_err(what);
    let elapsed = started.elapsed();
    assert_eq!(error.failure, Failure::Timeout, "{what}: {error}");
    // A millisecond for clocks that are rounded down. Above, a wait without this limit is told apart.
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
    // docs/wire.md, 5.3: as C's strtoll reads it.
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
    // docs/wire.md, 5.4, row by row.
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
    assert!(peer.check(&[]).expect("check"), "no keys are all there");
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
    assert_eq!(peer.add("doomed", 1).expect("add"), 1, "starts anew");
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
        "a filled queue is there"
    );
    assert_eq!(peer.queue_pop("q").expect("queue_pop"), b"first");
    assert_eq!(peer.try_queue_pop("q").expect("queue_pop"), b"");
    assert_eq!(peer.queue_pop("q").expect("queue_pop"), b"third");
    assert_eq!(peer.queue_len("q").expect("queue_len"), 0);
    assert!(
        !peer.check(&["q"]).expect("check"),
        "an empty one is not there"
    );
    peer.set_timeout(SHORT).expect("set_timeout");
    times_out("queue_pop", SHORT, || peer.queue_pop("q"));
    peer.set_timeout(LONG).expect("set_timeout");
    // A queue and a value of one name are two things.
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
    // docs/wire.md, 5.8: the arrival that timed out has been counted.
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
    // And none of it left anything behind on the connection.
    peer.set("missing", b"late").expect("set");
    assert_eq!(peer.get("missing").expect("get"), b"late");
    assert!(peer.delete_key("missing").expect("delete_key"));
}

fn sizes(peer: &dyn Peer, traits: &Traits) {
    // Around the sizes at which a client's or a server's buffers are full.
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
    // A set has no reply: ask something on the same connection before looking from another one.
    assert!(peer.check(&["from the original"]).expect("check"));
    assert_eq!(clone.get("from the original").expect("get"), b"o");
    assert_eq!(clone.add("clones", 2).expect("add"), 2);
    assert_eq!(peer.add("clones", 2).expect("add"), 4);
    assert_eq!(
        clone.timeout().expect("timeout") == LONG,
        traits.clone_keeps_timeout
    );
}
