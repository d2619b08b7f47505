//! Handshakes in memory: who gets in, and who does not.

use std::fs;
use std::io::IoSlice;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::server::{AlwaysResolvesServerRawPublicKeys, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

use super::credentials::{alpn_of, provider};
use super::raw_key::{Expected, Role, key_of};
use super::*;

fn secret() -> Secret {
    Secret::random().expect("random numbers")
}

fn pair(client: &Credentials, server: &Credentials) -> (TlsLayer, TlsLayer) {
    let client = client.client(Protocol::Store, "localhost").expect("a key");
    let server = server.server(Protocol::Store).expect("a key");
    (
        client.start().expect("a client"),
        server.start().expect("a server"),
    )
}

/// The bytes that one side has sent.
fn sent_by(layer: &mut TlsLayer) -> Vec<u8> {
    let mut wire = Vec::new();
    layer.send(&mut wire).expect("memory");
    wire
}

/// The result of a handshake in which all bytes arrive in pieces of at most `piece`.
struct Met {
    client: Result<(), TlsError>,
    server: Result<(), TlsError>,
}

/// Runs a handshake, and sends a byte each way, until both are silent.
fn meet(client: &mut TlsLayer, server: &mut TlsLayer, piece: usize) -> Met {
    let mut met = Met {
        client: Ok(()),
        server: Ok(()),
    };
    client.seal(&[IoSlice::new(b"c")]);
    server.seal(&[IoSlice::new(b"s")]);
    let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
    loop {
        let from_client = sent_by(client);
        let from_server = sent_by(server);
        if from_client.is_empty() && from_server.is_empty() {
            break;
        }
        for bytes in from_client.chunks(piece) {
            if met.server.is_ok() {
                met.server = server.receive(bytes, &mut to_server);
            }
        }
        for bytes in from_server.chunks(piece) {
            if met.client.is_ok() {
                met.client = client.receive(bytes, &mut to_client);
            }
        }
    }
    if met.client.is_ok() && met.server.is_ok() {
        assert_eq!((&*to_client, &*to_server), (&b"s"[..], &b"c"[..]));
    }
    if met.server.is_err() {
        assert!(to_server.is_empty(), "bytes of a stranger");
    }
    met
}

fn both_in(client: &Credentials, server: &Credentials) -> bool {
    let (mut client, mut server) = pair(client, server);
    let met = meet(&mut client, &mut server, usize::MAX);
    met.client.is_ok() && met.server.is_ok()
}

#[test]
fn those_with_the_same_secret_meet_however_the_bytes_are_split() {
    let secret = Credentials::from(secret());
    for piece in [1, 2, 3, 7, 100, 1000, usize::MAX] {
        let (mut client, mut server) = pair(&secret, &secret);
        let met = meet(&mut client, &mut server, piece);
        met.client.expect("the client is in");
        met.server.expect("the server is in");
        let data: Vec<u8> = (0..200_000_u32).map(|index| index as u8).collect();
        let (mut sealed, mut opened) = (0, Vec::new());
        while sealed < data.len() {
            sealed += client.seal(&[IoSlice::new(&data[sealed..])]);
            let wire = sent_by(&mut client);
            for bytes in wire.chunks(piece) {
                server.receive(bytes, &mut opened).expect("sealed bytes");
            }
        }
        assert!(opened == data, "other bytes in pieces of {piece}");
    }
}

/// docs/spec/handshake.md, SEC 3.
#[test]
fn another_secret_is_refused_before_anything_is_computed() {
    let (mut client, mut server) = pair(&secret().into(), &secret().into());
    let met = meet(&mut client, &mut server, usize::MAX);
    let error = met.server.expect_err("a stranger");
    assert_eq!(error.to_string(), "the peer has a different secret");
    assert!(!server.has_computed());
    let error = met.client.expect_err("a stranger");
    let text = "the peer rejected the secret: it has a different secret";
    assert_eq!(error.to_string(), text);
}

/// A server with this key, which is not the key of its secret.
fn odd_server(key: Arc<CertifiedKey>, alpn: Vec<u8>, expected: Expected) -> TlsLayer {
    let resolver: Arc<dyn ResolvesServerCert> =
        Arc::new(AlwaysResolvesServerRawPublicKeys::new(key));
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("TLS 1.3")
        .with_client_cert_verifier(Arc::new(expected))
        .with_cert_resolver(resolver);
    config.alpn_protocols = vec![alpn];
    TlsLayer::new(
        ServerConnection::new(Arc::new(config))
            .expect("a server")
            .into(),
        true,
    )
}

/// A client that shows this key, or none, and expects the server of `secret`.
fn odd_client(secret: &Secret, key: Option<Arc<CertifiedKey>>, protocol: Protocol) -> TlsLayer {
    let of_server = key_of(secret, Protocol::Store, Role::Server).expect("a key");
    let expected = Expected {
        keys: vec![of_server.cert[0].clone()],
        provider: provider(),
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(expected));
    let mut config = match key {
        Some(key) => {
            builder.with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(key)))
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![alpn_of(protocol, &of_server)];
    config.enable_sni = false;
    let name = "c10d".try_into().expect("a name");
    TlsLayer::new(
        ClientConnection::new(Arc::new(config), name)
            .expect("a client")
            .into(),
        true,
    )
}

/// The public key of `shown` with the private one of `signs`.
fn forged(shown: &CertifiedKey, signs: &CertifiedKey) -> Arc<CertifiedKey> {
    Arc::new(CertifiedKey::new(
        shown.cert.clone(),
        Arc::clone(&signs.key),
    ))
}

fn server_of(secret: &Secret) -> TlsLayer {
    let server = Credentials::from(secret.clone());
    let server = server.server(Protocol::Store).expect("a key");
    server.start().expect("a server")
}

/// docs/spec/handshake.md, SEC 4.
#[test]
fn a_client_without_the_right_key_is_refused_though_it_knows_its_name() {
    let (right, wrong) = (secret(), secret());
    let key = |secret: &Secret, protocol, role| key_of(secret, protocol, role).expect("a key");
    let of_client = key(&right, Protocol::Store, Role::Client);
    let another = key(&wrong, Protocol::Store, Role::Client);
    let not_same = "the peer has the key of a different secret";
    let cases = [
        ("the right one", Some(Arc::clone(&of_client)), None),
        ("none", None, Some("the peer has no key of a secret")),
        ("another", Some(Arc::clone(&another)), Some(not_same)),
        (
            "reflected",
            Some(key(&right, Protocol::Store, Role::Server)),
            Some(not_same),
        ),
        (
            "of another protocol",
            Some(key(&right, Protocol::Rpc, Role::Client)),
            Some(not_same),
        ),
        (
            "forged",
            Some(forged(&of_client, &another)),
            Some("the peer showed a key that it does not have"),
        ),
    ];
    for (case, key, refusal) in cases {
        let mut client = odd_client(&right, key, Protocol::Store);
        let mut server = server_of(&right);
        let met = meet(&mut client, &mut server, usize::MAX);
        match refusal {
            None => assert!(met.server.is_ok() && met.client.is_ok(), "{case}"),
            Some(text) => {
                let error = met.server.expect_err(case);
                assert_eq!(error.to_string(), text, "{case}");
                assert!(server.has_computed(), "{case}");
            }
        }
    }
}

/// docs/spec/handshake.md, SEC 4.
#[test]
fn a_server_without_the_right_key_is_refused_though_it_knows_its_name() {
    let (right, wrong) = (secret(), secret());
    let of_server = key_of(&right, Protocol::Store, Role::Server).expect("a key");
    let another = key_of(&wrong, Protocol::Store, Role::Server).expect("a key");
    let of_client = key_of(&right, Protocol::Store, Role::Client).expect("a key");
    let not_same = "the peer has the key of a different secret";
    let cases = [
        ("another", Arc::clone(&another), not_same),
        ("reflected", Arc::clone(&of_client), not_same),
        (
            "forged",
            forged(&of_server, &another),
            "the peer showed a key that it does not have",
        ),
    ];
    for (case, key, refusal) in cases {
        let (mut client, _) = pair(&right.clone().into(), &right.clone().into());
        let expected = Expected {
            keys: vec![of_client.cert[0].clone()],
            provider: provider(),
        };
        let mut server = odd_server(key, alpn_of(Protocol::Store, &of_server), expected);
        let met = meet(&mut client, &mut server, usize::MAX);
        let error = met.client.expect_err(case);
        assert_eq!(error.to_string(), refusal, "{case}");
        assert!(met.server.is_err(), "{case}");
    }
}

#[test]
fn a_connection_of_another_protocol_is_refused() {
    let credentials = Credentials::from(secret());
    let client = credentials
        .client(Protocol::Rpc, "localhost")
        .expect("a key");
    let server = credentials.server(Protocol::Store).expect("a key");
    let (mut client, mut server) = (client.start().expect("it"), server.start().expect("it"));
    let met = meet(&mut client, &mut server, usize::MAX);
    met.server.expect_err("another protocol");
    assert!(!server.has_computed());
}

/// docs/spec/handshake.md, SEC 4.
#[test]
fn a_server_with_a_new_and_an_old_secret_serves_clients_of_both() {
    let (new, old) = (secret(), secret());
    let both = Credentials::from_secrets(vec![new.clone(), old.clone()]).expect("two");
    assert!(both_in(&old.clone().into(), &both));
    assert!(both_in(&new.clone().into(), &both));
    assert!(both_in(&both, &new.into()));
    assert!(!both_in(&both, &old.into()), "a client uses the first");
    assert!(!both_in(&secret().into(), &both));
    assert!(Credentials::from_secrets(Vec::new()).is_err());
}

/// The bytes of a handshake that worked, as the client sent them.
fn recorded(secret: &Secret) -> Vec<u8> {
    let credentials = Credentials::from(secret.clone());
    let (mut client, mut server) = pair(&credentials, &credentials);
    client.seal(&[IoSlice::new(b"c")]);
    let (mut all, mut opened) = (Vec::new(), Vec::new());
    loop {
        let from_client = sent_by(&mut client);
        server
            .receive(&from_client, &mut opened)
            .expect("the client is in");
        all.extend_from_slice(&from_client);
        let from_server = sent_by(&mut server);
        client
            .receive(&from_server, &mut Vec::new())
            .expect("the server is in");
        if from_client.is_empty() && from_server.is_empty() {
            assert_eq!(opened, b"c");
            return all;
        }
    }
}

/// The types and bodies of the extensions of a ClientHello (RFC 8446, section 4.1.2).
fn extensions(wire: &[u8]) -> Vec<(u8, &[u8])> {
    let number = |at: usize| usize::from(wire[at]) << 8 | usize::from(wire[at + 1]);
    // A record, a handshake message, the version, random bytes, and the id of a session.
    let mut at = 5 + 4 + 2 + 32;
    at += 1 + usize::from(wire[at]);
    at += 2 + number(at);
    at += 1 + usize::from(wire[at]);
    let end = at + 2 + number(at);
    at += 2;
    let mut found = Vec::new();
    while at < end {
        let body = at + 4..at + 4 + number(at + 2);
        assert_eq!(wire[at], 0, "a small number");
        found.push((wire[at + 1], &wire[body.clone()]));
        at = body.end;
    }
    found
}

/// docs/spec/handshake.md, SEC 5.
#[test]
fn nothing_in_a_handshake_allows_to_skip_one() {
    const SERVER_NAME: u8 = 0;
    const SIGNATURE_ALGORITHMS: u8 = 13;
    const PRE_SHARED_KEY: u8 = 41;
    const EARLY_DATA: u8 = 42;
    let credentials = Credentials::from(secret());
    let (mut client, _) = pair(&credentials, &credentials);
    let hello = sent_by(&mut client);
    let offered = extensions(&hello);
    let types: Vec<u8> = offered.iter().map(|it| it.0).collect();
    for absent in [SERVER_NAME, PRE_SHARED_KEY, EARLY_DATA] {
        assert!(!types.contains(&absent), "{types:?}");
    }
    let ed25519 = (SIGNATURE_ALGORITHMS, &[0, 2, 8, 7][..]);
    assert!(offered.contains(&ed25519), "{offered:?}");

    // This client would take a session ticket.
    let secret = secret();
    let key = key_of(&secret, Protocol::Store, Role::Client).expect("a key");
    let mut client = odd_client(&secret, Some(key), Protocol::Store);
    let mut server = server_of(&secret);
    let hello = sent_by(&mut client);
    let mut opened = Vec::new();
    server.receive(&hello, &mut opened).expect("a hello");
    let answer = sent_by(&mut server);
    client.receive(&answer, &mut opened).expect("its answer");
    let finished = sent_by(&mut client);
    server.receive(&finished, &mut opened).expect("the rest");
    assert!(sent_by(&mut server).is_empty(), "no session ticket");
}

#[test]
fn a_replayed_handshake_is_refused() {
    let secret = secret();
    let all = recorded(&secret);
    let mut opened = Vec::new();
    let replayed = server_of(&secret).receive(&all, &mut opened);
    replayed.expect_err("old bytes");
    assert!(opened.is_empty());
}

/// Whether a server has computed for a peer whose bytes arrive in these pieces, which it refuses.
fn costs_computation(secret: &Secret, pieces: &[&[u8]]) -> bool {
    let mut server = server_of(secret);
    let result = pieces
        .iter()
        .try_for_each(|piece| server.receive(piece, &mut Vec::new()));
    result.expect_err("a bad record");
    assert!(server.is_handshaking());
    server.has_computed()
}

#[test]
fn a_handshake_that_fails_has_cost_the_same_in_any_split() {
    let secret = secret();
    let (mut client, _) = pair(&secret.clone().into(), &secret.clone().into());
    let hello = sent_by(&mut client);
    let bad = [0x17, 3, 3, 0, 20].into_iter().chain([7; 20]);
    let after_hello: Vec<u8> = hello.iter().copied().chain(bad.clone()).collect();
    // The start of a second message in the record of the hello, which is refused without computing.
    let mut in_hello = hello.clone();
    in_hello.extend_from_slice(&[1, 0, 0, 9]);
    in_hello[4] += 4;
    assert!(in_hello[4] >= 4, "one byte of the length changes");
    // A key that is no point of the curve.
    let mut no_point = hello.clone();
    let share = hello.windows(4).position(|at| at == [0, 0x1d, 0, 0x20]);
    let share = share.expect("a share of X25519") + 4;
    no_point[share..share + 32].fill(0);
    // The server computes nothing before a hello.
    let no_hello: Vec<u8> = bad.collect();
    let cases = [
        (after_hello, true),
        (in_hello, false),
        (no_point, true),
        (no_hello, false),
    ];
    for (case, (bytes, costs)) in cases.iter().enumerate() {
        for at in 0..bytes.len() {
            let (head, tail) = bytes.split_at(at);
            let found = costs_computation(&secret, &[head, tail]);
            assert_eq!(found, *costs, "case {case} split at {at}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(costs_computation(&secret, &single), *costs, "case {case}");
    }
}

/// Whether a receiver ignores this byte: the version in the head of a record (RFC 8446, section 5.1).
fn is_ignored(wire: &[u8], at: usize) -> bool {
    let mut record = 0;
    while record + 5 <= wire.len() {
        let length = usize::from(wire[record + 3]) << 8 | usize::from(wire[record + 4]);
        if (record + 1..record + 3).contains(&at) {
            return true;
        }
        record += 5 + length;
    }
    false
}

#[test]
fn truncated_and_changed_handshakes_open_nothing() {
    let secret = secret();
    let credentials = Credentials::from(secret.clone());
    for cut in 0..2000 {
        let (mut client, mut server) = pair(&credentials, &credentials);
        client.seal(&[IoSlice::new(b"c")]);
        let (mut passed, mut opened) = (0, Vec::new());
        let (mut is_over, mut is_harmed) = (false, false);
        while !is_over {
            let mut wire = sent_by(&mut client);
            is_over = wire.is_empty();
            if (passed..passed + wire.len()).contains(&cut) {
                // Cut there, or one bit of it changed.
                let at = cut - passed;
                if cut % 2 == 0 || is_ignored(&wire, at) {
                    wire.truncate(at);
                } else {
                    wire[at] ^= 1 << (cut % 8);
                }
                is_harmed = true;
            }
            passed += wire.len();
            is_over |= is_harmed | server.receive(&wire, &mut opened).is_err();
            let wire = sent_by(&mut server);
            is_over |= client.receive(&wire, &mut Vec::new()).is_err();
        }
        if !is_harmed {
            assert_eq!(opened, b"c", "the whole handshake has {passed} bytes");
            return;
        }
        assert!(opened.is_empty(), "opened with a change at {cut}");
    }
    panic!("a handshake has less than 2000 bytes");
}

#[test]
fn a_changed_record_ends_the_connection() {
    let credentials = Credentials::from(secret());
    for at in 5..30 {
        let (mut client, mut server) = pair(&credentials, &credentials);
        let met = meet(&mut client, &mut server, usize::MAX);
        assert!(met.client.is_ok() && met.server.is_ok());
        client.seal(&[IoSlice::new(b"data")]);
        let mut wire = sent_by(&mut client);
        let Some(byte) = wire.get_mut(at) else { break };
        *byte ^= 1;
        let mut opened = Vec::new();
        assert!(server.receive(&wire, &mut opened).is_err());
        assert!(opened.is_empty());
    }
}

/// A ClientHello that offers only TLS 1.2, with the suites and groups that its servers like best.
#[test]
fn an_older_version_of_tls_is_refused() {
    let mut body = vec![3, 3];
    body.extend_from_slice(&[7; 32]);
    body.push(0);
    body.extend_from_slice(&[0, 4, 0xc0, 0x2b, 0xc0, 0x2f]);
    body.extend_from_slice(&[1, 0]);
    let extensions: [&[u8]; 3] = [
        &[0, 10, 0, 4, 0, 2, 0, 29],
        &[0, 13, 0, 4, 0, 2, 8, 7],
        &[0, 23, 0, 0],
    ];
    let length: usize = extensions.iter().map(|it| it.len()).sum();
    body.extend_from_slice(&[0, length as u8]);
    extensions.iter().for_each(|it| body.extend_from_slice(it));
    let mut wire = vec![
        0x16,
        3,
        1,
        0,
        (body.len() + 4) as u8,
        1,
        0,
        0,
        body.len() as u8,
    ];
    wire.extend_from_slice(&body);
    assert!(is_tls(wire[0]));
    let mut opened = Vec::new();
    let mut server = server_of(&secret());
    let error = server.receive(&wire, &mut opened);
    let error = error.expect_err("an old version");
    assert!(!server.has_computed());
    assert_eq!(error.to_string(), "the peer does not speak TLS 1.3");
}

/// docs/spec/handshake.md, SEC 1.
#[test]
fn only_a_secret_is_taken_for_one() {
    let secret = secret();
    let text = secret.to_text();
    assert!(text.starts_with("c10ds1_") && text.len() == 59, "{text}");
    assert_eq!(format!("{secret:?}"), "Secret(..)");
    let padded = format!("  {text}\n");
    assert_eq!(Secret::from_text(&padded).expect("a secret"), secret);
    let mut changed = text.clone().into_bytes();
    for at in 0..changed.len() {
        let before = changed[at];
        changed[at] = if before == b'A' { b'B' } else { b'A' };
        let text = String::from_utf8(changed.clone()).expect("ASCII");
        let error = Secret::from_text(&text).expect_err("a typing error");
        assert!(!error.to_string().contains(&text[8..20]), "{error}");
        changed[at] = before;
    }
    for text in ["", "password", "c10ds1_", &text[..58], &format!("{text}A")] {
        assert!(Secret::from_text(text).is_err(), "{text}");
    }
}

#[test]
fn a_file_of_secrets_is_read_only_if_no_other_user_can() {
    let folder = std::env::temp_dir().join(format!("c10d-secret-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("secret");
    let write = |text: &str, mode: u32| {
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("permissions");
        Secret::read_file(&path).map_err(|error| error.to_string())
    };
    let (new, old) = (secret(), secret());
    let both = format!("# new\n{}\n\n  {}\n", new.to_text(), old.to_text());
    assert_eq!(write(&both, 0o600), Ok(vec![new.clone(), old]));
    assert_eq!(write(&both, 0o400).map(|it| it.len()), Ok(2));
    for mode in [0o640, 0o604, 0o644, 0o660] {
        let error = write(&both, mode).expect_err("exposed");
        assert!(error.contains("chmod 600"), "{error}");
    }
    // As root, which can read all of them.
    for mode in [0o000, 0o200, 0o700, 0o4600] {
        let error = write(&both, mode).expect_err("another mode");
        let expected = ["not 0600 or 0400", "Permission denied"];
        assert!(expected.iter().any(|text| error.contains(text)), "{error}");
    }
    let error = write("# none\n", 0o600).expect_err("none");
    assert!(error.contains("contains no secret"), "{error}");
    let error = write("\npassword\n", 0o600).expect_err("a password");
    assert!(
        error.contains("line 2") && !error.contains("password"),
        "{error}"
    );
    let many = format!("{}\n", new.to_text()).repeat(9);
    let error = write(&many, 0o600).expect_err("too many");
    assert!(error.contains("more than 8"), "{error}");
    if crate::own_user() == 0 {
        std::os::unix::fs::chown(&path, Some(1234), None).expect("root may");
        let error = Secret::read_file(&path).expect_err("of another user");
        assert!(
            error.to_string().contains("belongs to user 1234"),
            "{error}"
        );
    }
    fs::remove_file(&path).expect("removed");
    assert!(Secret::read_file(&path).is_err());
    // A pipe, for example of a shell's `<(..)`, delivers its data later.
    let fifo = folder.join("fifo");
    let status = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(status.expect("coreutils").success());
    let error = Secret::read_file(&folder).expect_err("a folder");
    assert!(
        error.to_string().contains("neither a file nor a pipe"),
        "{error}"
    );
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = fs::OpenOptions::new()
                .write(true)
                .open(&fifo)
                .expect("a pipe");
            let text = new.to_text();
            let (head, tail) = text.split_at(20);
            for piece in [head, tail] {
                std::thread::sleep(std::time::Duration::from_millis(20));
                std::io::Write::write_all(&mut writer, piece.as_bytes()).expect("a reader");
            }
        });
        assert_eq!(
            Secret::read_file(&fifo).expect("a secret"),
            std::slice::from_ref(&new)
        );
    });
    // The pipe has no writer.
    let error = Secret::read_file(&fifo).expect_err("nothing comes");
    assert!(
        error.to_string().contains("nothing has come for 10s"),
        "{error}"
    );
    fs::remove_dir_all(&folder).expect("removed");
}

/// Another implementation gets the same keys (docs/spec/handshake.md has this secret as an example).
/// docs/spec/handshake.md, SEC 2, 3 and 8.
#[test]
fn the_keys_of_a_secret_do_not_change() {
    let secret = Secret::from_text(SECRET_OF_THE_DOCUMENT).expect("a secret");
    let shown = |protocol, role| {
        let key = key_of(&secret, protocol, role).expect("a key");
        let key = &key.cert[0];
        assert_eq!(key.len(), 44);
        key[12..]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let of_server = key_of(&secret, Protocol::Store, Role::Server).expect("a key");
    let name = String::from_utf8(alpn_of(Protocol::Store, &of_server)).expect("ASCII");
    let found = [
        shown(Protocol::Store, Role::Server),
        shown(Protocol::Store, Role::Client),
        shown(Protocol::Rpc, Role::Server),
        name,
        Credentials::from(secret.clone())
            .http_token()
            .expect("a token"),
    ];
    assert_eq!(found, OF_THE_DOCUMENT);
}

const SECRET_OF_THE_DOCUMENT: &str = "c10ds1_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh9868wmkpl_";

const OF_THE_DOCUMENT: [&str; 5] = [
    "2406b950fcd323f1f076c5c21bfb18b5665857db28b08a894c4d68787fe55c79",
    "d23e7a245bc9e9ea56fcdb68d2068f2bfd6798e7448610317c78bd2645ea5786",
    "4e9f1f5400c070c850d16cb0fa8cd42ea5e082e599c97b39c28043b25aa17670",
    "c10d-store/1/ac3fac6a580ca0c7",
    "3GYjvwetUl9kcDI-MBOEN5qnGBy2SrIIflYNb35jn8s",
];

fn files(node: &str, authority: &str) -> Result<Credentials, CredentialsError> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tls");
    Credentials::from_files(&CertificateFiles {
        certificate: folder.join(format!("{node}.pem")),
        key: folder.join(format!("{node}.key")),
        authorities: folder.join(format!("{authority}.pem")),
    })
}

#[test]
fn certificates_of_the_same_authority_meet_under_the_right_name() {
    let node = files("node", "authority").expect("files");
    let stranger = files("stranger", "other").expect("files");
    let half = files("stranger", "authority").expect("files");
    assert!(both_in(&node, &node));
    assert!(!both_in(&stranger, &node), "the server refuses");
    assert!(!both_in(&node, &stranger), "the client refuses");
    assert!(!both_in(&half, &node), "its certificate is of another");
    assert!(!both_in(&secret().into(), &node));
    assert!(!both_in(&node, &secret().into()));
    let server = node.server(Protocol::Store).expect("a key");
    for (host, is_right) in [
        ("127.0.0.1", true),
        ("store.test", true),
        ("127.0.0.2", false),
        ("other.test", false),
    ] {
        let client = node.client(Protocol::Store, host).expect("a key");
        let (mut client, mut server) = (client.start().expect("it"), server.start().expect("it"));
        let met = meet(&mut client, &mut server, usize::MAX);
        assert_eq!(met.client.is_ok(), is_right, "{host}");
    }
    for (name, is_right) in [
        ("store.test", true),
        ("other.test", false),
        ("not a name", false),
    ] {
        let named = node
            .clone()
            .with_server_name("third.test")
            .with_server_name(name);
        let client = named.client(Protocol::Store, "127.0.0.2").expect("a key");
        let (mut client, mut server) = (client.start().expect("it"), server.start().expect("it"));
        let met = meet(&mut client, &mut server, usize::MAX);
        assert_eq!(met.client.is_ok(), is_right, "{name}");
    }
    assert!(node.client(Protocol::Store, "not a name").is_err());
    assert!(files("missing", "authority").is_err());
    let wrong = files("node", "README.md").map(drop);
    assert!(wrong.is_err());
}

#[test]
fn authorities_alone_are_enough_for_clients_of_other_projects() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tls");
    let alone = Credentials::from_authorities(&folder.join("authority.pem")).expect("a file");
    let client = alone.client(Protocol::Http, "127.0.0.1");
    client.expect("no certificate is needed");
    let refused = [
        alone.client(Protocol::Store, "127.0.0.1").map(drop),
        alone.server(Protocol::Store).map(drop),
    ];
    for refused in refused {
        let error = refused.expect_err("no certificate").to_string();
        assert!(error.contains("on both sides"), "{error}");
    }
    Credentials::from_authorities(&folder.join("missing.pem")).expect_err("no file");
}

/// A secret does not identify an HTTP server of another project.
#[test]
fn a_secret_does_not_suit_http() {
    let credentials = Credentials::from(Secret::random().expect("random numbers"));
    let error = credentials.client(Protocol::Http, "localhost");
    let error = error.map(|_| ()).expect_err("a secret").to_string();
    assert!(error.contains("certificates"), "{error}");
}
