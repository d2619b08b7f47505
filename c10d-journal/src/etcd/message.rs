//! The calls of etcd's v3 API that the journal needs, and their JSON.
//!
//! etcd ignores unknown fields, so a misspelt comparison has no effect: every request is made of these types, and
//! each field's name is written once, here. Answers omit zero, false and empty values. See the tests against a real
//! etcd.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use c10d_socket::printable;
use serde_json::{Map, Value, json};

/// The most characters that are shown of an error.
const MESSAGE_CHARS_MAX: usize = 400;

/// A call of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    Range(Range),
    Txn(Txn),
    /// Drops what is older than this revision.
    Compact {
        revision: u64,
    },
    Grant {
        ttl_seconds: u64,
    },
    KeepAlive {
        lease: u64,
    },
    Revoke {
        lease: u64,
    },
    /// Requests the status of the member.
    Status,
}

/// Keys from `key` up to `end`, in order; only `key` without an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) key: String,
    pub(crate) end: Option<String>,
    /// The most keys; 0 for all.
    pub(crate) limit: u64,
    /// The revision to read at; 0 for the newest revision.
    pub(crate) revision: u64,
    /// Values are empty.
    pub(crate) is_without_values: bool,
}

/// Carries out `success` if all comparisons hold, `failure` if not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Txn {
    pub(crate) compare: Vec<Compare>,
    pub(crate) success: Vec<Op>,
    pub(crate) failure: Vec<Op>,
}

/// A condition for a key. Both revisions of a missing key are 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Compare {
    Created {
        key: String,
        revision: u64,
    },
    Modified {
        key: String,
        revision: u64,
    },
    /// The value of the key. It is not true of a missing key.
    Value {
        key: String,
        value: Vec<u8>,
    },
    /// No key from `key` up to `end` was made after this revision.
    NoneCreatedAfter {
        key: String,
        end: String,
        revision: u64,
    },
}

/// A part of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    Range(Range),
    Put {
        key: String,
        value: Vec<u8>,
        /// The key ends with this lease; 0 for none.
        lease: u64,
    },
    Delete {
        key: String,
        end: String,
    },
}

/// The answer of etcd to a call that it carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Range {
        /// The revision of the whole store when the range was read.
        revision: u64,
        keys: Keys,
    },
    Txn {
        revision: u64,
        succeeded: bool,
        /// The keys of the ranges that were carried out.
        ranges: Vec<Keys>,
    },
    /// `ttl_seconds` is 0 if the lease has ended.
    Lease {
        id: u64,
        ttl_seconds: u64,
    },
    Status(MemberStatus),
    Done,
}

/// The status of a member of etcd, as it reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberStatus {
    /// The version of etcd.
    pub version: String,
    /// Whether it is the leader of etcd.
    pub leads: bool,
    /// The size of its database.
    pub database_bytes: u64,
    /// The bytes of the database in use; defragmentation would release the rest.
    pub used_bytes: u64,
    /// Problems that the member reports: alarms such as `NOSPACE` with the member's number, or a missing leader.
    pub errors: Vec<String>,
}

/// The result of a range.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) keys: Vec<KeyValue>,
    /// The limit has cut it.
    pub(crate) is_cut: bool,
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyValue {
    pub(crate) key: String,
    pub(crate) value: Vec<u8>,
    /// The revision at which the key was last made.
    pub(crate) created: u64,
    /// The revision at which the key was last written.
    pub(crate) modified: u64,
}

/// Why etcd did not carry out a call, or may not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No answer, or none that settles it: it may have been carried out, or may be yet.
    Unknown(String),
    /// etcd did not carry out the call. The code is gRPC's.
    Refused { code: u64, message: String },
}

/// gRPC's codes that are decided by.
pub(crate) mod code {
    pub(crate) const CANCELLED: u64 = 1;
    pub(crate) const UNKNOWN: u64 = 2;
    pub(crate) const DEADLINE: u64 = 4;
    pub(crate) const NOT_FOUND: u64 = 5;
    pub(crate) const DENIED: u64 = 7;
    pub(crate) const EXHAUSTED: u64 = 8;
    pub(crate) const ABORTED: u64 = 10;
    pub(crate) const OUT_OF_RANGE: u64 = 11;
    pub(crate) const INTERNAL: u64 = 13;
    pub(crate) const UNAVAILABLE: u64 = 14;
    pub(crate) const UNAUTHENTICATED: u64 = 16;
}

/// A line of a watch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Watched {
    pub(crate) events: Vec<Event>,
    /// Whether the watch has ended.
    pub(crate) is_canceled: bool,
}

/// A change of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    Put(KeyValue),
    Delete { key: String, revision: u64 },
}

impl Event {
    /// Returns the revision of the event.
    pub(crate) const fn revision(&self) -> u64 {
        match self {
            Self::Put(put) => put.modified,
            Self::Delete { revision, .. } => *revision,
        }
    }
}

impl Range {
    /// One key, now.
    pub(crate) const fn key(key: String) -> Self {
        Self {
            key,
            end: None,
            limit: 0,
            revision: 0,
            is_without_values: false,
        }
    }
}

impl Keys {
    /// Returns its only key.
    pub(crate) fn first(&self) -> Option<&KeyValue> {
        self.keys.first()
    }
}

impl Request {
    /// Returns the path of the call at the gateway.
    pub(crate) const fn path(&self) -> &'static str {
        match self {
            Self::Range(_) => "/v3/kv/range",
            Self::Txn(_) => "/v3/kv/txn",
            Self::Compact { .. } => "/v3/kv/compaction",
            Self::Grant { .. } => "/v3/lease/grant",
            Self::KeepAlive { .. } => "/v3/lease/keepalive",
            Self::Revoke { .. } => "/v3/lease/revoke",
            Self::Status => "/v3/maintenance/status",
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Range(range) => range.to_json(),
            Self::Txn(txn) => json!({
                "compare": txn.compare.iter().map(Compare::to_json).collect::<Vec<_>>(),
                "success": txn.success.iter().map(Op::to_json).collect::<Vec<_>>(),
                "failure": txn.failure.iter().map(Op::to_json).collect::<Vec<_>>(),
            }),
            Self::Compact { revision } => json!({ "revision": number(*revision) }),
            Self::Grant { ttl_seconds } => json!({ "TTL": number(*ttl_seconds) }),
            Self::KeepAlive { lease } | Self::Revoke { lease } => json!({ "ID": number(*lease) }),
            Self::Status => json!({}),
        }
    }

    /// The answer to this call.
    ///
    /// # Errors
    /// What is missing in it, or is not what it must be.
    pub(crate) fn parse(&self, answer: &Value) -> Result<Answer, &'static str> {
        let revision = || number_of(&answer["header"], "revision");
        Ok(match self {
            Self::Range(_) => Answer::Range {
                revision: revision()?,
                keys: Keys::parse(answer)?,
            },
            Self::Txn(_) => Answer::Txn {
                revision: revision()?,
                succeeded: answer["succeeded"].as_bool().unwrap_or(false),
                ranges: list(answer, "responses")
                    .filter_map(|response| response.get("response_range"))
                    .map(Keys::parse)
                    .collect::<Result<_, _>>()?,
            },
            Self::Grant { .. } => lease_of(answer)?,
            Self::KeepAlive { .. } => lease_of(&answer["result"])?,
            Self::Status => Answer::Status(MemberStatus::parse(answer)?),
            Self::Compact { .. } | Self::Revoke { .. } => Answer::Done,
        })
    }
}

impl Range {
    fn to_json(&self) -> Value {
        let mut fields = Map::new();
        fields.insert("key".to_owned(), encoded(self.key.as_bytes()));
        if let Some(end) = &self.end {
            fields.insert("range_end".to_owned(), encoded(end.as_bytes()));
        }
        if self.limit > 0 {
            fields.insert("limit".to_owned(), number(self.limit));
        }
        if self.revision > 0 {
            fields.insert("revision".to_owned(), number(self.revision));
        }
        if self.is_without_values {
            fields.insert("keys_only".to_owned(), true.into());
        }
        fields.into()
    }
}

impl Compare {
    fn to_json(&self) -> Value {
        match self {
            Self::Created { key, revision } => json!({
                "key": encoded(key.as_bytes()),
                "target": "CREATE",
                "result": "EQUAL",
                "create_revision": number(*revision),
            }),
            Self::Modified { key, revision } => json!({
                "key": encoded(key.as_bytes()),
                "target": "MOD",
                "result": "EQUAL",
                "mod_revision": number(*revision),
            }),
            Self::Value { key, value } => json!({
                "key": encoded(key.as_bytes()),
                "target": "VALUE",
                "result": "EQUAL",
                "value": encoded(value),
            }),
            // True of each key of the range, and of an empty one.
            Self::NoneCreatedAfter { key, end, revision } => json!({
                "key": encoded(key.as_bytes()),
                "range_end": encoded(end.as_bytes()),
                "target": "CREATE",
                "result": "LESS",
                "create_revision": number(*revision + 1),
            }),
        }
    }
}

impl Op {
    fn to_json(&self) -> Value {
        match self {
            Self::Range(range) => json!({ "request_range": range.to_json() }),
            Self::Put { key, value, lease } => json!({ "request_put": {
                "key": encoded(key.as_bytes()),
                "value": encoded(value),
                "lease": number(*lease),
            } }),
            Self::Delete { key, end } => json!({ "request_delete_range": {
                "key": encoded(key.as_bytes()),
                "range_end": encoded(end.as_bytes()),
            } }),
        }
    }
}

impl MemberStatus {
    fn parse(answer: &Value) -> Result<Self, &'static str> {
        let number = |name| match &answer[name] {
            Value::Null => Ok(0),
            _ => number_of(answer, name),
        };
        let shown = |text: &Value| {
            let text = text.as_str().unwrap_or_default().trim();
            printable(text, MESSAGE_CHARS_MAX).to_string()
        };
        let leader = number("leader")?;
        Ok(Self {
            version: shown(&answer["version"]),
            leads: leader != 0 && leader == number_of(&answer["header"], "member_id")?,
            database_bytes: number("dbSize")?,
            used_bytes: number("dbSizeInUse")?,
            errors: list(answer, "errors").map(shown).collect(),
        })
    }
}

impl Keys {
    fn parse(answer: &Value) -> Result<Self, &'static str> {
        let keys = list(answer, "kvs");
        Ok(Self {
            keys: keys.map(KeyValue::parse).collect::<Result<_, _>>()?,
            is_cut: answer["more"].as_bool().unwrap_or(false),
        })
    }
}

impl KeyValue {
    fn parse(answer: &Value) -> Result<Self, &'static str> {
        Ok(Self {
            key: key_of(answer)?,
            value: decoded(answer, "value")?,
            created: number_of(answer, "create_revision")?,
            modified: number_of(answer, "mod_revision")?,
        })
    }
}

impl Watched {
    /// The line of a watch. `Err` is the error that ends it.
    pub(crate) fn parse(line: &Value) -> Result<Self, Failure> {
        if let Some(error) = line.get("error") {
            return Err(refusal(error));
        }
        let result = &line["result"];
        let broken = |what: &'static str| Failure::Unknown(format!("the watch has {what}"));
        let events = list(result, "events").map(|event| {
            let key_value = &event["kv"];
            Ok(match event["type"].as_str() {
                None | Some("PUT") => Event::Put(KeyValue::parse(key_value)?),
                Some("DELETE") => Event::Delete {
                    key: key_of(key_value)?,
                    revision: number_of(key_value, "mod_revision")?,
                },
                Some(_) => return Err("an unknown event"),
            })
        });
        Ok(Self {
            events: events.collect::<Result<_, _>>().map_err(broken)?,
            is_canceled: result["canceled"].as_bool().unwrap_or(false),
        })
    }
}

/// The request of a watch of these keys, from this revision on.
pub(crate) fn watch_to_json(key: &str, end: &str, from_revision: u64) -> Value {
    json!({ "create_request": {
        "key": encoded(key.as_bytes()),
        "range_end": encoded(end.as_bytes()),
        "start_revision": number(from_revision),
    } })
}

/// Interprets an error. Its shape depends on the version; these two fields do not.
pub(crate) fn refusal(error: &Value) -> Failure {
    let code = error["code"].as_u64();
    let code = code.or_else(|| error["grpc_code"].as_u64());
    let message = error["message"]
        .as_str()
        .or_else(|| error["error"].as_str());
    let message = message.unwrap_or_default();
    let message = printable(message, MESSAGE_CHARS_MAX).to_string();
    match code.unwrap_or(code::UNKNOWN) {
        code::CANCELLED
        | code::UNKNOWN
        | code::DEADLINE
        | code::ABORTED
        | code::INTERNAL
        | code::UNAVAILABLE => Failure::Unknown(message),
        // The server is busy; that the database is full settles it.
        code::EXHAUSTED if message.contains("too many requests") => Failure::Unknown(message),
        code => Failure::Refused { code, message },
    }
}

fn lease_of(answer: &Value) -> Result<Answer, &'static str> {
    Ok(Answer::Lease {
        id: number_of(answer, "ID")?,
        ttl_seconds: match &answer["TTL"] {
            Value::Null => 0,
            // A lease that has ended can have a TTL of -1.
            _ => number_of(answer, "TTL").unwrap_or(0),
        },
    })
}

fn list<'v>(answer: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> {
    answer[name].as_array().into_iter().flatten()
}

/// Numbers as strings, because JSON's numbers are not exact enough.
fn number(number: u64) -> Value {
    number.to_string().into()
}

fn number_of(answer: &Value, name: &str) -> Result<u64, &'static str> {
    let value = &answer[name];
    let number = match value {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64(),
    };
    number.ok_or("a field without a number")
}

fn key_of(answer: &Value) -> Result<String, &'static str> {
    String::from_utf8(decoded(answer, "key")?).map_err(|_| "a key that is no text")
}

fn encoded(bytes: &[u8]) -> Value {
    STANDARD.encode(bytes).into()
}

fn decoded(answer: &Value, name: &str) -> Result<Vec<u8>, &'static str> {
    let text = answer[name].as_str().unwrap_or_default();
    STANDARD
        .decode(text)
        .map_err(|_| "a value that is not base64")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Value {
        serde_json::from_str(text).expect("JSON")
    }

    #[test]
    fn a_transaction_is_what_etcd_documents() {
        let txn = Request::Txn(Txn {
            compare: vec![
                Compare::Created {
                    key: "lock".to_owned(),
                    revision: 0,
                },
                Compare::Modified {
                    key: "a".to_owned(),
                    revision: 7,
                },
            ],
            success: vec![
                Op::Put {
                    key: "lock".to_owned(),
                    value: b"me".to_vec(),
                    lease: 5,
                },
                Op::Delete {
                    key: "a".to_owned(),
                    end: "b".to_owned(),
                },
            ],
            failure: vec![Op::Range(Range::key("lock".to_owned()))],
        });
        let expected = r#"{
            "compare":[{"key":"bG9jaw==","target":"CREATE","result":"EQUAL","create_revision":"0"},
                {"key":"YQ==","target":"MOD","result":"EQUAL","mod_revision":"7"}],
            "success":[{"request_put":{"key":"bG9jaw==","value":"bWU=","lease":"5"}},
                {"request_delete_range":{"key":"YQ==","range_end":"Yg=="}}],
            "failure":[{"request_range":{"key":"bG9jaw=="}}]}"#;
        assert_eq!(txn.to_json(), parse(expected));
        let refused = parse(
            r#"{"header":{"revision":"4"},"responses":[{"response_range":{"header":{},
                "kvs":[{"key":"bG9jaw==","create_revision":"4","mod_revision":"5","value":"bWU="}],"count":"1"}}]}"#,
        );
        let held = KeyValue {
            key: "lock".to_owned(),
            value: b"me".to_vec(),
            created: 4,
            modified: 5,
        };
        let ranges = vec![Keys {
            keys: vec![held],
            is_cut: false,
        }];
        let expected = Answer::Txn {
            revision: 4,
            succeeded: false,
            ranges,
        };
        assert_eq!(txn.parse(&refused), Ok(expected));
    }

    #[test]
    fn what_is_left_out_is_zero_false_or_empty() {
        let range = Request::Range(Range::key("a".to_owned()));
        let missing = range.parse(&parse(r#"{"header":{"revision":"2"}}"#));
        assert!(matches!(missing, Ok(Answer::Range { revision: 2, keys }) if keys.keys.is_empty()));
        assert!(range.parse(&parse("{}")).is_err());
        let dead = Request::KeepAlive { lease: 7 };
        let dead = dead.parse(&parse(r#"{"result":{"header":{},"ID":"7"}}"#));
        let expected = Answer::Lease {
            id: 7,
            ttl_seconds: 0,
        };
        assert_eq!(dead, Ok(expected));
    }

    #[test]
    fn a_member_says_how_it_is() {
        let healthy = parse(
            r#"{"header":{"cluster_id":"4","member_id":"178","revision":"2","raft_term":"2"},"version":"3.5.16",
                "dbSize":"24576","leader":"178","raftIndex":"5","raftTerm":"2","raftAppliedIndex":"5","dbSizeInUse":"16384"}"#,
        );
        let mut expected = MemberStatus {
            version: "3.5.16".to_owned(),
            leads: true,
            database_bytes: 24_576,
            used_bytes: 16_384,
            errors: Vec::new(),
        };
        let status = Request::Status.parse(&healthy);
        assert_eq!(status, Ok(Answer::Status(expected.clone())));
        let ill = parse(
            r#"{"header":{"member_id":"178"},"version":"3.5.16","dbSize":"24576","dbSizeInUse":"16384",
                "errors":["memberID:178 alarm:NOSPACE ","etcdserver: no leader"]}"#,
        );
        expected.leads = false;
        expected.errors = vec![
            "memberID:178 alarm:NOSPACE".to_owned(),
            "etcdserver: no leader".to_owned(),
        ];
        assert_eq!(Request::Status.parse(&ill), Ok(Answer::Status(expected)));
    }

    #[test]
    fn an_error_is_decided_by_its_code_and_message() {
        let refused = |code, message: &str| Failure::Refused {
            code,
            message: message.to_owned(),
        };
        for (text, expected) in [
            (
                r#"{"error":"etcdserver: requested lease not found","code":5,"message":"etcdserver: requested lease not found"}"#,
                refused(5, "etcdserver: requested lease not found"),
            ),
            (
                r#"{"code":8, "message":"etcdserver: mvcc: database space exceeded", "details":[]}"#,
                refused(8, "etcdserver: mvcc: database space exceeded"),
            ),
            (
                r#"{"code":8,"message":"etcdserver: too many requests"}"#,
                Failure::Unknown("etcdserver: too many requests".to_owned()),
            ),
            (
                r#"{"code":14,"message":"etcdserver: leader changed"}"#,
                Failure::Unknown("etcdserver: leader changed".to_owned()),
            ),
        ] {
            assert_eq!(refusal(&parse(text)), expected);
        }
    }

    #[test]
    fn a_watch_has_puts_deletions_and_an_end() {
        let line = r#"{"result":{"header":{"revision":"17"},"events":[
            {"kv":{"key":"YQ==","create_revision":"17","mod_revision":"17","version":"1","value":"MQ=="}},
            {"type":"DELETE","kv":{"key":"Yg==","mod_revision":"17"}}]}}"#;
        let watched = Watched::parse(&parse(line)).expect("a message");
        assert!(matches!(&watched.events[0], Event::Put(put) if put.value == b"1"));
        assert!(matches!(&watched.events[1], Event::Delete { key, revision: 17 } if key == "b"));
        let end =
            r#"{"result":{"header":{"revision":"20"},"canceled":true,"compact_revision":"16"}}"#;
        assert!(Watched::parse(&parse(end)).expect("a message").is_canceled);
        let error = r#"{"error":{"code":14,"message":"etcdserver: no leader"}}"#;
        Watched::parse(&parse(error)).expect_err("it has ended");
    }
}
