use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use super::*;

fn leader(port: u16, life: Life) -> Leader {
    Leader {
        address: format!("127.0.0.1:{port}"),
        process: 1,
        host: "host".to_owned(),
        since: 0,
        writer: 1,
        life: Some(life),
    }
}

fn vigil(life: Life) -> Result<Vigil, String> {
    Vigil::begin(&leader(1, life), life, &Cancel::NEVER)
}

fn line() -> LifeLine {
    LifeLine::start(&HostPort::new("127.0.0.1", 1), 0, Arc::default()).expect("a port")
}

fn end_of(vigil: &mut Vigil) -> Seen {
    wait_for_input(vigil, Duration::from_secs(60), &Cancel::NEVER).expect("no cancel");
    vigil.look(&Cancel::NEVER)
}

#[test]
fn the_end_of_a_process_is_seen() {
    let line = line();
    let mut vigils: Vec<_> = (0..3)
        .map(|_| vigil(line.life()).expect("it lives"))
        .collect();
    for vigil in &mut vigils {
        assert_eq!(vigil.look(&Cancel::NEVER), Seen::Nothing);
    }
    drop(line);
    for vigil in &mut vigils {
        assert_eq!(end_of(vigil), Seen::Death);
    }
}

/// A leader announces the position of the log while it may answer, and a standby misses that after a while.
#[test]
fn heartbeats_are_heard_and_missed() {
    let line = line();
    let authority = Authority::none();
    line.leads(authority.clone());
    let mut vigil = vigil(line.life()).expect("it lives");
    let mut hear = |line: &LifeLine, position| {
        line.sockets.position.store(position, Ordering::Relaxed);
        wait_for_input(&vigil, Duration::from_secs(60), &Cancel::NEVER).expect("no cancel");
        assert_eq!(vigil.look(&Cancel::NEVER), Seen::Nothing);
        vigil.doubts_at(7)
    };
    let start = Instant::now();
    authority.extend(Moment::now() + Duration::from_secs(3600));
    let first = hear(&line, 7).expect("it has heard one");
    assert!(first >= start + SILENCE_MAX);
    assert!(hear(&line, 7).expect("it goes on") > first);
    // It has read 7, not 8: a continuing leader does not help.
    let mut ahead = hear(&line, 8);
    while ahead != hear(&line, 8) {
        ahead = hear(&line, 8);
    }
    let silent = vigil.heartbeats.and_then(|silence| silence.lost_at());
    let silent = silent.expect("it hears");
    assert!(ahead.expect("it lacks one") < silent);
    assert_eq!(vigil.doubts_at(8), Some(silent));
    let now = Instant::now();
    vigil.begin_anew(now);
    assert_eq!(vigil.doubts_at(7), Some(now + SILENCE_MAX));
    // Without the right to answer it is silent, and its end is one nevertheless.
    authority.withdraw();
    drop(line);
    assert_eq!(end_of(&mut vigil), Seen::Death);
}

/// A leader's first heartbeat may arrive with its greeting.
#[test]
fn a_heartbeat_beside_the_greeting_is_heard() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    let leads = thread::spawn(move || {
        let (mut stream, peer) = listener.accept().expect("a standby");
        let said = format!("{}{:016x}\n", greeting(7, peer), 3);
        stream.write_all(said.as_bytes()).expect("it waits");
        (listener, stream)
    });
    let mut vigil = vigil(Life { port, id: 7 }).expect("it lives");
    let _held = leads.join().expect("no panic");
    let heard = || {
        assert_eq!(vigil.look(&Cancel::NEVER), Seen::Nothing);
        vigil.doubts_at(3).is_some()
    };
    super::super::real_site::eventually("it hears it", heard);
}

#[test]
fn a_log_that_grows_fast_is_told_from_its_heartbeats() {
    let line = line();
    line.leads(Authority::none());
    let mut vigil = vigil(line.life()).expect("it lives");
    let now = Instant::now();
    let mut fast_until = |position: u64| {
        vigil.received = format!("{position:016x}\n").into_bytes();
        assert!(vigil.hear(now));
        vigil.is_fast_until()
    };
    assert_eq!(fast_until(1000), None, "how far it was before is not known");
    assert_eq!(fast_until(1000 + FAST_BATCHES), Some(now + LATE_AFTER));
    assert_eq!(fast_until(1000 + 2 * FAST_BATCHES - 1), None);
    assert!(fast_until(2000).is_some());
    assert!(vigil.lacks(999) && !vigil.lacks(1000));
    vigil.begin_anew(now);
    assert_eq!(vigil.is_fast_until(), None, "it was silent");
}

#[test]
fn a_leader_that_sends_no_heartbeats_is_not_missed() {
    let line = line();
    line.leads(Authority::none());
    let mut vigil = vigil(line.life()).expect("it lives");
    assert_eq!(vigil.look(&Cancel::NEVER), Seen::Nothing);
    assert_eq!(vigil.doubts_at(0), None);
    for strange in [
        b"0000000000000001 ".as_slice(),
        b"what is this that is said",
    ] {
        vigil.received = strange.to_vec();
        assert!(!vigil.hear(Instant::now()));
    }
}

#[test]
fn a_process_that_stands_by_says_how_far_it_has_read() {
    let line = line();
    let candidate = leader(1, line.life());
    for position in [0, 7, u64::MAX] {
        line.sockets.position.store(position, Ordering::Relaxed);
        assert_eq!(position_of(&candidate, &Cancel::NEVER), Some(position));
    }
    // It leads, and may not answer: like an older release, it sends no heartbeats.
    line.leads(Authority::none());
    assert_eq!(position_of(&candidate, &Cancel::NEVER), None);
    drop(line);
    assert_eq!(position_of(&candidate, &Cancel::NEVER), None);
}

#[test]
fn another_process_and_a_proxy_are_no_proof() {
    let line = line();
    let Life { port, id } = line.life();
    let other = vigil(Life { port, id: id ^ 1 });
    assert!(other.expect_err("another id").contains("another process"));
    // The proxy passes on its input: the leader sees the proxy's address.
    let proxy = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = proxy.local_addr().expect("it is bound").port();
    let passes = thread::spawn(move || {
        let (mut near, _) = proxy.accept().expect("a standby");
        let mut far = TcpStream::connect(("127.0.0.1", port)).expect("the leader");
        let mut said = [0; GREETING_BYTES_MAX];
        let count = far.read(&mut said).expect("a greeting");
        near.write_all(&said[..count]).expect("it waits");
    });
    vigil(Life { port: at, id }).expect_err("a proxy");
    passes.join().expect("no panic");
}

/// A leader whose connection is reset, or ends while it still listens, may live.
#[test]
fn a_reset_and_an_open_listener_are_no_proof() {
    for resets in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        let accepts = thread::spawn(move || {
            let (mut stream, peer) = listener.accept().expect("a standby");
            stream
                .write_all(greeting(7, peer).as_bytes())
                .expect("it waits");
            (listener, stream)
        });
        let mut vigil = vigil(Life { port, id: 7 }).expect("it lives");
        let (listener, stream) = accepts.join().expect("no panic");
        let listener = if resets {
            // Unread input resets the connection.
            (&vigil.stream).write_all(b"x").expect("sent");
            wait_for_input(&stream, None, &Cancel::NEVER).expect("no cancel");
            drop(listener);
            None
        } else {
            Some(listener)
        };
        drop(stream);
        assert_eq!(end_of(&mut vigil), Seen::Doubt);
        drop(listener);
    }
}

/// A standby gets a place, and keeps it when more strangers connect.
#[test]
fn silent_strangers_of_another_address_do_not_matter() {
    let line = line();
    let strangers = || -> Vec<TcpStream> {
        let from: SocketAddr = ([127, 0, 0, 2], 0).into();
        let to: SocketAddr = ([127, 0, 0, 1], line.life().port).into();
        let connect = || {
            let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
            bind(&socket, &from)?;
            connect(&socket, &to)?;
            Ok::<_, io::Error>(TcpStream::from(socket))
        };
        let all = (0..2 * CONNECTIONS_MAX).map(|_| connect().expect("a connection"));
        all.collect()
    };
    let early = strangers();
    let mut vigil = vigil(line.life()).expect("a place");
    let late = strangers();
    drop(early);
    let mut place = [0];
    for stranger in &late[..CONNECTIONS_MAX] {
        let timeout = Some(Duration::from_secs(60));
        stranger.set_read_timeout(timeout).expect("a timeout");
        // The greeting, then the reset.
        while (&*stranger).read(&mut place).is_ok() {}
    }
    assert_eq!(vigil.look(&Cancel::NEVER), Seen::Nothing);
    drop(line);
    assert_eq!(end_of(&mut vigil), Seen::Death);
}

#[test]
fn one_more_connection_than_places_replaces_the_oldest() {
    let line = line();
    let mut all: Vec<_> = (0..=CONNECTIONS_MAX)
        .map(|_| vigil(line.life()).expect("a place"))
        .collect();
    assert_eq!(end_of(&mut all[0]), Seen::Doubt);
    // A place that was given back is used first.
    drop(all.remove(1));
    let mut again = vigil(line.life()).expect("a place");
    for vigil in all[1..].iter_mut().chain([&mut again]) {
        assert_eq!(vigil.look(&Cancel::NEVER), Seen::Nothing);
    }
    drop(line);
    for vigil in all[1..].iter_mut().chain([&mut again]) {
        assert_eq!(end_of(vigil), Seen::Death);
    }
}

#[test]
fn the_address_with_the_most_connections_gives_a_place() {
    let of = |parts: &[u8]| {
        let held = parts.iter().map(|it| (IpAddr::from([10, 0, 0, *it]), ()));
        replaced(&held.collect::<Vec<_>>())
    };
    assert_eq!(of(&[1, 2, 3, 2, 4]), 1);
    assert_eq!(of(&[1, 2, 3, 3, 2]), 1);
    // Each address has one connection: the oldest is replaced.
    assert_eq!(of(&[1, 2, 3]), 0);
}

/// A standby that cannot connect once, for example because the network was cut for a moment, sees the end of the process later.
#[test]
fn a_process_is_tried_again_after_longer_and_longer_pauses() {
    let start = Instant::now();
    let mut now = start;
    let mut retry = Retry::after_vigil(7, now);
    let mut pauses = Vec::new();
    let mut news = 0;
    for _ in 0..40 {
        assert!(retry.holds_back(7, now) && !retry.holds_back(8, now));
        pauses.push((retry.at - now).as_secs());
        now = retry.at;
        assert!(!retry.holds_back(7, now));
        retry = Retry::after_failure(Some(retry), 7, now);
        news += u32::from(retry.is_news());
    }
    assert_eq!(pauses[..9], [5, 5, 10, 20, 40, 80, 160, 320, 320]);
    assert_eq!(pauses.last(), Some(&320));
    assert_eq!(news, 1);
    // Another process is tried soon, and so is a process that was watched in the meantime.
    for other in [
        Retry::after_failure(Some(retry), 8, now),
        Retry::after_failure(None, 7, now),
        Retry::after_vigil(7, now),
    ] {
        assert_eq!(other.at - now, RETRY_PAUSE);
    }
}
