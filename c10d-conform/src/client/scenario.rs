//! What a client has to do, and what it should print: data of this crate.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::case::MalformedCase;
use crate::cases;
use crate::client::service::Manners;

/// What a client prints for an operation that it does not have.
pub(crate) const UNSUPPORTED: &str = "unsupported";

/// A store with its manners, and operations for a client.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub(crate) name: String,
    about: String,
    #[serde(default)]
    pub(crate) manners: Manners,
    pub(crate) steps: Vec<Step>,
    /// Values that the store must have in the end.
    #[serde(default)]
    state: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    /// A line for the client.
    #[serde(rename = "do")]
    pub(crate) operation: String,
    prints: OneOf,
    /// No earlier than this.
    #[serde(default)]
    pub(crate) after_ms: u64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum OneOf {
    One(String),
    Several(Vec<String>),
}

/// All scenarios.
///
/// # Errors
/// A scenario is malformed, which a test rules out for those of this crate.
pub fn scenarios() -> Result<Vec<Scenario>, MalformedCase> {
    let read = |line: &str| {
        let scenario: Scenario =
            serde_json::from_str(line).map_err(|source| MalformedCase::new(line, source))?;
        Ok(scenario.expanded())
    };
    cases::CLIENT.lines().map(read).collect()
}

impl Scenario {
    /// Its name, which stays the same between versions of the cases.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the store does, in a phrase.
    #[must_use]
    pub fn about(&self) -> &str {
        &self.about
    }

    pub(crate) fn state(&self) -> impl Iterator<Item = (&str, &str)> {
        self.state.iter().map(|(key, value)| (&**key, &**value))
    }

    fn expanded(mut self) -> Self {
        for step in &mut self.steps {
            step.operation = expanded(&step.operation);
            if let OneOf::One(text) = &mut step.prints {
                *text = expanded(text);
            }
        }
        for value in self.state.values_mut() {
            *value = expanded(value);
        }
        self
    }
}

impl Step {
    /// What the client should print.
    pub(crate) fn prints(&self) -> &[String] {
        match &self.prints {
            OneOf::One(text) => std::slice::from_ref(text),
            OneOf::Several(texts) => texts,
        }
    }

    /// Whether the client has printed what it should. `error` may be followed by a text; a client may lack an operation.
    pub(crate) fn is_passed_by(&self, line: &str) -> bool {
        let is_error = line == "error" || line.starts_with("error ");
        let fits = |text: &String| text == line || (text == "error" && is_error);
        line == UNSUPPORTED || self.prints().iter().any(fits)
    }
}

/// A text in which `{ab*3}` stands for `ababab`.
fn expanded(text: &str) -> String {
    let parts = text.split_once('{').and_then(|(before, rest)| {
        let (inside, after) = rest.split_once('}')?;
        let (repeated, times) = inside.split_once('*')?;
        Some((before, repeated.repeat(times.parse().ok()?), after))
    });
    match parts {
        Some((before, repeated, after)) => format!("{before}{repeated}{after}"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scenarios_can_be_read() {
        let scenarios = scenarios().expect("they are well-formed");
        assert_eq!(scenarios.len(), 8);
        assert!(scenarios.iter().all(|it| !it.about().is_empty()));
        let long = &scenarios[0].steps[4];
        assert_eq!(long.operation.len(), "set long ".len() + 6000);
        assert!(long.is_passed_by("ok") && !long.is_passed_by("error"));
    }

    #[test]
    fn an_error_may_have_a_text_and_an_operation_may_be_missing() {
        let step = Step {
            operation: String::new(),
            prints: OneOf::One("error".to_owned()),
            after_ms: 0,
        };
        assert!(step.is_passed_by("error") && !step.is_passed_by("error: no"));
        assert!(step.is_passed_by("error closed") && step.is_passed_by("unsupported"));
        assert!(!step.is_passed_by("errors"));
    }
}
