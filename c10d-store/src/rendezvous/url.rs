//! Parses URLs like Python's `urllib.parse`, for the three schemes that name a store.
//!
//! The url crate follows browsers, which decode and normalize: a Python rank and a Rust rank would then
//! use different files.

/// The parts of a URL.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Url<'a> {
    /// The scheme in lower case; empty if there is none.
    pub(super) scheme: String,
    /// The part between `//` and the path: user, host and port.
    authority: &'a str,
    pub(super) path: &'a str,
    query: &'a str,
}

/// Removes the characters that Python ignores anywhere in a URL.
pub(super) fn clean(url: &str) -> String {
    url.trim_start_matches(|c| c <= ' ')
        .chars()
        .filter(|c| !matches!(c, '\t' | '\r' | '\n'))
        .collect()
}

impl<'a> Url<'a> {
    /// Parses a [cleaned](clean) URL. `Err` names the problem.
    pub(super) fn parse(url: &'a str) -> Result<Self, &'static str> {
        let is_scheme = |text: &str| {
            text.starts_with(|c: char| c.is_ascii_alphabetic())
                && text
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        };
        let (scheme, rest) = match url.split_once(':') {
            Some((scheme, rest)) if is_scheme(scheme) => (scheme.to_ascii_lowercase(), rest),
            _ => (String::new(), url),
        };
        let (authority, rest) = match rest.strip_prefix("//") {
            Some(rest) => rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len())),
            None => ("", rest),
        };
        if authority.contains('[') != authority.contains(']') {
            return Err("an unmatched bracket (IPv6 addresses are written [::1])");
        }
        let (rest, _fragment) = rest.split_once('#').unwrap_or((rest, ""));
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        Ok(Self {
            scheme,
            authority,
            path,
            query,
        })
    }

    /// The host, in lower case except for an IPv6 zone, and the port as text; either may be missing.
    pub(super) fn host_and_port(&self) -> (Option<String>, Option<&'a str>) {
        let (_user, address) = self
            .authority
            .rsplit_once('@')
            .unwrap_or(("", self.authority));
        let (host, port) = match address.split_once('[') {
            Some((_, bracketed)) => {
                let (host, rest) = bracketed.split_once(']').unwrap_or((bracketed, ""));
                (host, rest.split_once(':').map_or("", |(_, port)| port))
            }
            None => address.split_once(':').unwrap_or((address, "")),
        };
        let zone_start = host.find('%').unwrap_or(host.len());
        let host = host[..zone_start].to_lowercase() + &host[zone_start..];
        (
            (!host.is_empty()).then_some(host),
            (!port.is_empty()).then_some(port),
        )
    }

    /// The value of a parameter of the query, the last one if it is repeated. `Err` is a parameter
    /// without `=`, for which PyTorch raises an IndexError.
    pub(super) fn parameter(&self, name: &str) -> Result<Option<&'a str>, &'a str> {
        let mut found = None;
        for pair in self.query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or(pair)?;
            if key == name {
                // PyTorch drops everything after a second `=`.
                found = value.split('=').next();
            }
        }
        Ok(found)
    }
}
