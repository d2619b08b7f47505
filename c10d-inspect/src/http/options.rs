//! Settings of a status server.

use super::token::Token;

/// Settings of a status server.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
#[must_use]
pub struct StatusOptions {
    title: String,
    host_names: Vec<String>,
    world_size: Option<usize>,
    token: Option<Token>,
}

impl StatusOptions {
    /// Sets the name of the job, which the page shows. The default is none.
    pub fn with_title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// Adds names that browsers use for this server, for example the name of a reverse proxy. IP addresses, `localhost`
    /// and this machine's own name are always accepted; requests for other names are refused, because a stranger's page
    /// could send them (DNS rebinding).
    pub fn with_host_names(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.host_names.extend(names);
        self
    }

    /// Sets the number of ranks of the job, if it is known beforehand. The default is unknown.
    pub fn with_world_size(mut self, world_size: impl Into<Option<usize>>) -> Self {
        self.world_size = world_size.into();
        self
    }

    /// Answers only requests with this token, as a bearer token or as the password of any user. The token is sent
    /// unencrypted. Therefore do not use it for anything else.
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

    /// The number of ranks of the job, if it is known beforehand.
    #[must_use]
    pub const fn world_size(&self) -> Option<usize> {
        self.world_size
    }
}
