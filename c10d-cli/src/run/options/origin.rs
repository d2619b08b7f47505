//! Where the values of a plan are from, for `--dry-run`.

/// A value of the plan, and the option or variables that it is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    pub(crate) from: String,
}
