//! One line of a file of cases, and the script that it is for a column.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value};

use crate::column::Column;
use crate::script::{Act, Script, Send, Step};

/// The only connection of a case that names none.
const CONNECTION: &str = "A";

/// A line of a file of cases cannot be understood.
#[derive(Debug, thiserror::Error)]
#[error("case {name}: {source}")]
pub struct MalformedCase {
    name: String,
    source: serde_json::Error,
}

impl MalformedCase {
    pub(crate) fn new(name: &str, source: serde_json::Error) -> Self {
        let name = name.chars().take(60).collect();
        Self { name, source }
    }
}

/// A case of all columns.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) operation: String,
    pub(crate) is_quirk: bool,
    pub(crate) is_alone: bool,
    fields: Map<String, Value>,
}

/// A column's answer to a case.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Script(Script),
    /// This server has no answer to the case.
    Skip(String),
}

#[derive(Deserialize)]
struct Head {
    name: String,
    op: String,
    #[serde(default)]
    tags: Vec<String>,
}

#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    skip: Option<String>,
    #[serde(default = "yes")]
    handshake: bool,
    #[serde(default)]
    setup: Vec<Hex>,
    #[serde(default)]
    request_hex: Hex,
    #[serde(default)]
    response_hex: Hex,
    #[serde(default)]
    closes: bool,
    #[serde(default)]
    split: Split,
    #[serde(default)]
    pause: f64,
    #[serde(default)]
    steps: Option<Vec<BodyStep>>,
}

/// Several fields of one step take effect in this order.
#[derive(Deserialize)]
struct BodyStep {
    #[serde(rename = "c")]
    connection: String,
    #[serde(default)]
    send: Option<Hex>,
    #[serde(default)]
    recv: Option<Hex>,
    #[serde(default)]
    recv_one_of: Option<Vec<Hex>>,
    #[serde(default)]
    fence: bool,
    #[serde(default)]
    eof: bool,
    #[serde(default)]
    silent: f64,
    #[serde(default)]
    sleep: f64,
    #[serde(default)]
    close: bool,
    /// How many connections take the step; their names are numbered.
    #[serde(default)]
    times: Option<usize>,
}

#[derive(Debug, Default)]
struct Hex(Vec<u8>);

#[derive(Deserialize, Default)]
#[serde(untagged)]
enum Split {
    #[default]
    Nowhere,
    At(Vec<usize>),
    /// At each byte: any text, like in `"bytes"`.
    Each(de::IgnoredAny),
}

/// The cases of a text, one a line.
pub(crate) fn read(text: &str) -> Result<Vec<Case>, MalformedCase> {
    text.lines().map(Case::of_line).collect()
}

impl Case {
    fn of_line(line: &str) -> Result<Self, MalformedCase> {
        let malformed = |source| MalformedCase::new(line, source);
        let fields: Map<String, Value> = serde_json::from_str(line).map_err(malformed)?;
        let head: Head = serde_json::from_value(fields.clone().into()).map_err(malformed)?;
        let has_tag = |tag: &str| head.tags.iter().any(|it| it == tag);
        Ok(Self {
            is_quirk: has_tag("quirk"),
            is_alone: has_tag("alone"),
            name: head.name,
            operation: head.op,
            fields,
        })
    }

    /// The answers that pass, the column's own first.
    pub(crate) fn answers(&self, column: Column) -> Result<Vec<Answer>, MalformedCase> {
        let own = self.answer(column.answers())?;
        if self.is_quirk && column.has_quirks() {
            return Ok(vec![own, self.answer(&["c10d"])?]);
        }
        Ok(vec![own])
    }

    fn answer(&self, names: &[&str]) -> Result<Answer, MalformedCase> {
        let malformed = |source| MalformedCase::new(&self.name, source);
        let mut fields = self.fields.clone();
        let answers = fields.remove("as").unwrap_or_default();
        let different = names.iter().find_map(|name| answers.get(name)?.as_object());
        for (field, value) in different.into_iter().flatten() {
            fields.insert(field.clone(), value.clone());
        }
        let body: Body = serde_json::from_value(fields.into()).map_err(malformed)?;
        Ok(body.into_answer())
    }
}

impl Body {
    fn into_answer(self) -> Answer {
        match (self.skip, self.steps) {
            (Some(reason), _) => Answer::Skip(reason),
            (None, Some(steps)) => Answer::Script(script_of_steps(steps)),
            (None, None) => Answer::Script(
                Self {
                    skip: None,
                    steps: None,
                    ..self
                }
                .on_one_connection(),
            ),
        }
    }

    fn on_one_connection(self) -> Script {
        let has_handshake = self.handshake;
        let mut acts = vec![Act::Open { has_handshake }];
        if !self.setup.is_empty() {
            let sends = self.setup.into_iter();
            acts.extend(sends.map(|hex| Act::Send(Send::whole(hex.0))));
            acts.push(Act::Fence);
        }
        let bytes = self.request_hex.0;
        let cuts = match self.split {
            Split::Nowhere => Vec::new(),
            Split::At(cuts) => cuts,
            Split::Each(_) => (1..bytes.len()).collect(),
        };
        let pause = Duration::from_secs_f64(self.pause);
        acts.push(Act::Send(Send { bytes, cuts, pause }));
        if !self.response_hex.0.is_empty() {
            acts.push(Act::Receive(vec![self.response_hex.0]));
        }
        acts.push(if self.closes { Act::End } else { Act::Fence });
        let on_connection = |act| Step {
            connection: CONNECTION.to_owned(),
            act,
        };
        acts.into_iter().map(on_connection).collect()
    }
}

fn script_of_steps(steps: Vec<BodyStep>) -> Script {
    let mut script = Script::new();
    for step in steps {
        let times = step.times.map_or_else(
            || vec![step.connection.clone()],
            |times| {
                (0..times)
                    .map(|n| format!("{}{n}", step.connection))
                    .collect()
            },
        );
        for connection in times {
            let is_open = script.iter().any(|it| it.connection == connection);
            let mut act = |act| {
                script.push(Step {
                    connection: connection.clone(),
                    act,
                });
            };
            if !is_open {
                act(Act::Open {
                    has_handshake: true,
                });
            }
            if let Some(Hex(bytes)) = &step.send {
                act(Act::Send(Send::whole(bytes.clone())));
            }
            if let Some(Hex(bytes)) = &step.recv {
                act(Act::Receive(vec![bytes.clone()]));
            }
            if let Some(choices) = &step.recv_one_of {
                act(Act::Receive(
                    choices.iter().map(|hex| hex.0.clone()).collect(),
                ));
            }
            if step.fence {
                act(Act::Fence);
            }
            if step.eof {
                act(Act::End);
            }
            if step.silent > 0.0 {
                act(Act::Silence(Duration::from_secs_f64(step.silent)));
            }
            if step.sleep > 0.0 {
                act(Act::Pause(Duration::from_secs_f64(step.sleep)));
            }
            if step.close {
                act(Act::Close);
            }
        }
    }
    script
}

fn yes() -> bool {
    true
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits;

        impl de::Visitor<'_> for Digits {
            type Value = Hex;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an even number of hex digits")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Hex, E> {
                let malformed = || E::invalid_value(de::Unexpected::Str(text), &self);
                let pairs = text.as_bytes().chunks(2);
                let bytes: Option<Vec<u8>> = pairs
                    .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
                    .collect();
                match bytes {
                    Some(bytes) if text.len().is_multiple_of(2) => Ok(Hex(bytes)),
                    _ => Err(malformed()),
                }
            }
        }
        deserializer.deserialize_str(Digits)
    }
}
