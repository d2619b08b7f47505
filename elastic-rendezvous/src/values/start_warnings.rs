//! The warnings and notes about the start of a node, which are reported in one line, whichever part of the launcher has
//! found them.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The kinds of [`StartWarning`], the most severe kind first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum WarningKind {
    /// The address that this node advertises, or where its servers listen.
    Address,
    /// A note: the address that is used instead of the host name or of the address that another node advertises.
    Route,
    /// The interpreter of the workers.
    Interpreter,
    /// The limits of a secret, such as traffic that it does not protect.
    Secret,
    /// Limits of the system, for example of open files.
    Limits,
    /// A quota of the control group.
    Quota,
    /// A port that another program may take.
    Port,
    /// A timeout that has no effect, because another timeout always expires first.
    Timeouts,
    /// An option or a setting that has no effect.
    Option,
    /// A note about something usual, such as the effects of an option.
    Note,
}

impl WarningKind {
    /// Whether nothing is wrong, so that a line that has only this is not a warning.
    const fn is_note(self) -> bool {
        matches!(self, Self::Route | Self::Note)
    }
}

/// A thing that is unusual about the start of a node, and what to do about it, in one sentence.
///
/// Its text is its [`Display`](fmt::Display). Text alone is a warning of [`WarningKind::Option`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartWarning {
    kind: WarningKind,
    text: String,
}

/// The warnings about the start of one node, which all parts of a launcher add to. Clones share them.
///
/// The default value logs each warning at once. A [collecting](Self::collecting) value keeps the warnings until
/// [`report`](Self::report) logs the most severe warning and the number of the other warnings, in one line.
///
/// ```
/// use elastic_rendezvous::{StartWarning, StartWarnings, WarningKind};
///
/// let warnings = StartWarnings::collecting([StartWarning::from("--role has no effect")]);
/// warnings.add(WarningKind::Quota, "the quota allows 2 of 64 processors");
/// // the quota allows 2 of 64 processors (1 more: --dry-run)
/// warnings.report();
/// ```
#[derive(Debug, Clone, Default)]
pub struct StartWarnings(Arc<Mutex<Option<Vec<StartWarning>>>>);

impl StartWarning {
    /// A warning of this kind. The text should have at most 110 characters, because the line of a log with the time, the
    /// level, the text and the number of the other warnings has at most 160.
    pub fn new(kind: WarningKind, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { kind, text }
    }
}

impl From<String> for StartWarning {
    fn from(text: String) -> Self {
        Self::new(WarningKind::Option, text)
    }
}

impl From<&str> for StartWarning {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl fmt::Display for StartWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl StartWarnings {
    /// Warnings that wait for a report. These are known already.
    #[must_use]
    pub fn collecting(known: impl IntoIterator<Item = StartWarning>) -> Self {
        Self(Arc::new(Mutex::new(Some(known.into_iter().collect()))))
    }

    /// Adds a warning of this kind. After the report it is logged at once.
    pub fn add(&self, kind: WarningKind, text: impl Into<String>) {
        self.push(StartWarning::new(kind, text));
    }

    /// Adds a warning. After the report it is logged at once.
    pub fn push(&self, warning: StartWarning) {
        let late = match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(waiting) => {
                waiting.push(warning);
                None
            }
            None => Some(warning),
        };
        if let Some(warning) = late {
            log::log!(level([&warning]), "{warning}");
        }
    }

    /// Logs the most severe warning and the number of the other warnings, which are logged at the level "debug". Only
    /// the first call does something.
    pub fn report(&self) {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut warnings = waiting.unwrap_or_default();
        warnings.sort_by_key(|warning| warning.kind);
        if let Some(line) = line(&warnings) {
            log::log!(level(&warnings), "{line}");
        }
        for other in warnings.iter().skip(1) {
            log::debug!("{other}");
        }
    }
}

/// Two values always compare equal, because warnings are not part of the request to a node.
impl PartialEq for StartWarnings {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for StartWarnings {}

/// The level of a line about these warnings.
fn level<'w>(warnings: impl IntoIterator<Item = &'w StartWarning>) -> log::Level {
    match warnings.into_iter().all(|warning| warning.kind.is_note()) {
        true => log::Level::Info,
        false => log::Level::Warn,
    }
}

/// The line about sorted warnings; `None` if there are none.
fn line(sorted: &[StartWarning]) -> Option<String> {
    let (first, others) = sorted.split_first()?;
    Some(match others.len() {
        0 => first.text.clone(),
        count => format!("{first} ({count} more: --dry-run)"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_has_the_most_severe_warning() {
        use WarningKind::*;
        let by_severity = [
            Address,
            Route,
            Interpreter,
            Secret,
            Limits,
            Quota,
            Port,
            Timeouts,
            Option,
            Note,
        ];
        for (index, kind) in by_severity.into_iter().enumerate() {
            let warnings = StartWarnings::collecting([]);
            for kind in by_severity[index..].iter().rev() {
                warnings.add(*kind, format!("{kind:?}"));
            }
            warnings.add(by_severity[9], "x");
            let mut sorted = warnings.0.lock().unwrap().clone().unwrap();
            sorted.sort_by_key(|warning| warning.kind);
            let line = line(&sorted).unwrap();
            assert!(line.starts_with(&format!("{kind:?} (")), "{line}");
        }
        let many = ["a", "b", "c"].map(StartWarning::from);
        assert_eq!(line(&[]), None);
        assert_eq!(line(&many[..1]).unwrap(), "a");
        assert_eq!(line(&many[..2]).unwrap(), "a (1 more: --dry-run)");
        assert_eq!(line(&many).unwrap(), "a (2 more: --dry-run)");
    }

    #[test]
    fn a_line_with_only_notes_is_not_a_warning() {
        let of = |kinds: &[WarningKind]| {
            let all: Vec<_> = kinds.iter().map(|it| StartWarning::new(*it, "")).collect();
            level(&all)
        };
        use WarningKind::{Note, Port, Route};
        assert_eq!(of(&[Route, Note]), log::Level::Info);
        assert_eq!(of(&[Route, Port]), log::Level::Warn);
    }

    #[test]
    fn nothing_is_collected_after_the_report() {
        let warnings = StartWarnings::collecting(["a".into()]);
        let clone = warnings.clone();
        warnings.report();
        clone.add(WarningKind::Port, "late");
        assert_eq!(*warnings.0.lock().unwrap(), None);
    }
}
