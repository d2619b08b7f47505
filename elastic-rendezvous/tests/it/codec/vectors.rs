//! Tests states written by PyTorch 2.9.1 and 2.15.0, and encodings that a decoder must accept or refuse.

use elastic_rendezvous::codec::{self, CodecLimits};
use elastic_rendezvous::{DatetimeStyle, NodeId, RendezvousState, Timestamp};
use serde_json::Value as Json;

/// States that PyTorch has written.
const STATES: &str = include_str!("../../../testdata/rendezvous-state.jsonl");
/// Foreign encodings and hostile input.
const EXTRA: &str = include_str!("../../../testdata/rendezvous-state-extra.jsonl");

/// One line of the files.
pub(crate) struct Vector {
    pub(crate) name: String,
    pub(crate) verdict: String,
    /// The stored text.
    pub(crate) text: String,
    pub(crate) pickle: Vec<u8>,
    pub(crate) state: Option<RendezvousState>,
}

/// All states of PyTorch.
pub(crate) fn states() -> Vec<Vector> {
    STATES.lines().map(vector).collect()
}

/// All other vectors.
pub(crate) fn extra() -> Vec<Vector> {
    EXTRA.lines().map(vector).collect()
}

fn vector(line: &str) -> Vector {
    let json: Json = serde_json::from_str(line).expect("a vector is one line of JSON");
    let text = string(&json["pickle_base64"]);
    let version = json["torch_version"].as_str().unwrap_or("extra");
    Vector {
        name: format!("{version} {}", string(&json["name"])),
        verdict: json["verdict"].as_str().unwrap_or("accept").to_owned(),
        pickle: codec::from_base64(text.as_bytes(), &CodecLimits::default()).expect("base64"),
        text,
        state: (!json["state"].is_null()).then(|| state(&json["state"])),
    }
}

fn state(json: &Json) -> RendezvousState {
    let list = |name: &str| json[name].as_array().expect("a list");
    let heartbeats = list("last_heartbeats");
    let times = heartbeats.iter().map(|entry| &entry["time"]);
    let is_naive = times
        .chain(Some(&json["deadline"]))
        .filter_map(Json::as_str)
        .any(|time| time.len() == NAIVE_TIME_LEN);
    RendezvousState {
        round: json["round"].as_i64().expect("round"),
        complete: json["complete"].as_bool().expect("complete"),
        deadline: json["deadline"].as_str().map(time),
        closed: json["closed"].as_bool().expect("closed"),
        participants: list("participants")
            .iter()
            .map(|entry| (node(entry), entry["rank"].as_i64().expect("rank")))
            .collect(),
        wait_list: list("wait_list").iter().map(node).collect(),
        redundancy_list: list("redundancy_list").iter().map(node).collect(),
        last_heartbeats: heartbeats
            .iter()
            .map(|entry| (node(entry), time(&string(&entry["time"]))))
            .collect(),
        datetime_style: if is_naive {
            DatetimeStyle::Naive
        } else {
            DatetimeStyle::Aware
        },
    }
}

fn node(json: &Json) -> NodeId {
    NodeId::new(
        string(&json["addr"]),
        json["pid"].as_i64().expect("pid"),
        json["local_id"].as_i64().expect("local_id"),
    )
}

fn string(json: &Json) -> String {
    json.as_str().expect("a string").to_owned()
}

const NAIVE_TIME_LEN: usize = "2026-01-02T03:04:05.678901".len();

/// Parses `2026-01-02T03:04:05.678901+00:00`; a naive time has no offset.
fn time(text: &str) -> Timestamp {
    let number = |from: usize, to: usize| text[from..to].parse::<i64>().expect("digits");
    let (year, month, day) = (number(0, 4), number(5, 7), number(8, 10));
    let is_leap = |year: i64| (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let mut days: i64 = (1970..year).map(|y| 365 + i64::from(is_leap(y))).sum();
    let february = 28 + i64::from(is_leap(year));
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30];
    days += months.iter().take(month as usize - 1).sum::<i64>() + day - 1;
    let mut seconds = days * 86_400 + number(11, 13) * 3600 + number(14, 16) * 60 + number(17, 19);
    if text.len() > NAIVE_TIME_LEN {
        let offset = number(27, 29) * 3600 + number(30, 32) * 60;
        seconds -= if &text[26..27] == "-" {
            -offset
        } else {
            offset
        };
    }
    Timestamp::from_micros(seconds * 1_000_000 + number(20, 26))
}

fn decode(pickle: &[u8]) -> Result<RendezvousState, codec::CorruptState> {
    codec::decode(pickle, &CodecLimits::default())
}

#[test]
fn states_of_pytorch_match_their_description() {
    let vectors = states();
    assert_eq!(vectors.len(), 64);
    for vector in vectors {
        let text = vector.text.as_bytes();
        let state = codec::from_text(text, &CodecLimits::default());
        assert_eq!(state.ok(), vector.state, "{}", vector.name);
        // Equality ignores the order of maps, which must be the stored one.
        let state = decode(&vector.pickle).expect("just decoded");
        let expected = vector.state.expect("a description");
        assert!(state.participants.keys().eq(expected.participants.keys()));
        assert!(
            state
                .last_heartbeats
                .keys()
                .eq(expected.last_heartbeats.keys())
        );
    }
}

#[test]
fn states_of_pytorch_keep_their_bytes_when_written_again() {
    let mut different = Vec::new();
    for vector in states() {
        let state = decode(&vector.pickle).expect(&vector.name);
        let again = codec::encode(&state);
        assert_eq!(decode(&again).as_ref(), Ok(&state), "{}", vector.name);
        if again == vector.pickle {
            assert_eq!(codec::to_text(&state), vector.text.as_bytes());
        } else {
            different.push(vector.name);
        }
    }
    // Python writes sets in a random order (`full-house`), a node twice if it is two equal objects
    // (`microsecond-zero`, `second-object`), and a datetime that is in two places once (`deadline-object`).
    let expected = [
        "2.15.0 redundancy-list-full-house",
        "2.15.0 deadline-microsecond-zero-heartbeat-microsecond-one",
        "2.15.0 heartbeat-key-is-a-second-object-equal-to-the-participant-key",
        "2.15.0 deadline-object-shared-with-heartbeat",
        "2.9.1 deadline-microsecond-zero-heartbeat-microsecond-one",
        "2.9.1 heartbeat-key-is-a-second-object-equal-to-the-participant-key",
        "2.9.1 deadline-object-shared-with-heartbeat",
    ];
    assert_eq!(different, expected);
}

/// docs/spec/rendezvous.md, CODEC 1.
#[test]
fn foreign_encodings_of_a_state_are_accepted() {
    let mut count = 0;
    for vector in extra().iter().filter(|vector| vector.verdict == "accept") {
        let state = decode(&vector.pickle);
        assert_eq!(
            state.as_ref().ok(),
            vector.state.as_ref(),
            "{}: {state:?}",
            vector.name
        );
        let state = state.expect("just compared");
        assert_eq!(decode(&codec::encode(&state)), Ok(state), "{}", vector.name);
        count += 1;
    }
    assert_eq!(count, 12);
}

/// docs/spec/rendezvous.md, CODEC 3.
#[test]
fn other_values_are_refused() {
    let mut count = 0;
    for vector in extra().iter().filter(|vector| vector.verdict != "accept") {
        let error = decode(&vector.pickle).expect_err(&vector.name);
        // PyTorch accepts a node that is created by a call of its class, but never writes one.
        if vector.verdict == "optional" {
            let text = error.to_string();
            assert!(text.contains("what REDUCE calls is a class"), "{text}");
        }
        assert!(
            error.offset <= vector.pickle.len(),
            "{}: {error}",
            vector.name
        );
        assert!(error.to_string().len() < 300, "{}: {error}", vector.name);
        count += 1;
    }
    assert_eq!(count, 25);
}

#[test]
fn our_encoding_equals_that_of_python_picklers() {
    let identical: Vec<String> = extra()
        .into_iter()
        .filter(|vector| {
            let state = vector.state.as_ref();
            state.is_some_and(|state| codec::encode(state) == vector.pickle)
        })
        .map(|vector| vector.name)
        .collect();
    assert_eq!(
        identical,
        [
            "extra pure-python-pickler",
            "extra handwritten-canonical",
            "extra naive-utc-datetimes",
        ]
    );
}
