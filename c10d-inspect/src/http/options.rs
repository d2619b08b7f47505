//! Settings of a status server.

use super::token::Token;
use crate::ExplainOptions;

/// Settings of a status server.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
#[must_use]
pub struct StatusOptions {
    title: String,
    host_names: Vec<String>,
    explain: ExplainOptions,
    token: Option<Token>,
}

impl StatusOptions {
    /// Sets the name of the job, which the page shows. The default is none.
    pub fn with_title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// Adds a name under which browsers reach this server, as of a reverse proxy. IP addresses, `localhost` and
    /// this machine's own name are always accepted; requests for other names are refused, because a stranger's page
    /// could send them (DNS rebinding).
    pub fn with_host_name(mut self, name: impl Into<String>) -> Self {
        self.host_names.push(name.into());
        self
    }

    /// Adds several names; see [`with_host_name`](Self::with_host_name).
    pub fn with_host_names(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.host_names.extend(names);
        self
    }

    /// Sets what is known about the job beforehand.
    pub fn with_explain(mut self, explain: ExplainOptions) -> Self {
        self.explain = explain;
        self
    }

    /// Answers only requests that have this word, as a bearer token or as the password of any user. It is sent in
    /// clear, so it must be good for nothing else.
    pub fn with_token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(Token::new(token.into()));
        self
    }

    pub(super) const fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// The name of the job.
    #[must_use]
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The additional names of this server.
    #[must_use]
    pub fn host_names(&self) -> &[String] {
        &self.host_names
    }

    /// What is known about the job beforehand.
    pub const fn explain(&self) -> &ExplainOptions {
        &self.explain
    }
}
