//! The prefix of each line of a worker's output on the console.

use crate::command_line::substitute;

/// The values that a prefix can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinePrefix<'a> {
    /// The worker's role.
    pub role: &'a str,
    /// The worker's rank on this node.
    pub local_rank: usize,
    /// The worker's global rank.
    pub rank: usize,
    /// The short name of this host.
    pub host: &'a str,
}

impl LinePrefix<'_> {
    /// The prefix: `template` with `${role_name}`, `${local_rank}`, `${rank}` and `${hostname}` replaced;
    /// without a template PyTorch's, as in `[default0]:`.
    ///
    /// ```
    /// use elastic_agent::LinePrefix;
    ///
    /// let prefix = LinePrefix { role: "default", local_rank: 1, rank: 9, host: "node1" };
    /// assert_eq!(prefix.text(None), "[default1]:");
    /// assert_eq!(prefix.text(Some("${hostname} $rank $x ")), "node1 9 $x ");
    /// ```
    #[must_use]
    pub fn text(&self, template: Option<&str>) -> String {
        let template = template.unwrap_or("[${role_name}${local_rank}]:");
        let text = substitute(template.as_bytes(), |name| match name {
            "role_name" => Some(self.role.to_owned()),
            "local_rank" => Some(self.local_rank.to_string()),
            "rank" => Some(self.rank.to_string()),
            "hostname" => Some(self.host.to_owned()),
            _ => None,
        });
        // UTF-8 stays valid when UTF-8 replaces ASCII.
        String::from_utf8_lossy(&text).into_owned()
    }
}
