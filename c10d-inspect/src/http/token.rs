//! The word that requests for pages must have, if the server has one.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};

/// A word that is sent with each request, in clear: it gives access to pages and to nothing else.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    pub(super) const fn new(text: String) -> Self {
        Self(text)
    }

    /// The value of the header `Authorization`.
    pub(super) fn to_header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Whether a request has it: as a bearer token (RFC 6750), or as the password of any user (RFC 7617), for which
    /// browsers ask.
    pub(super) fn is_in(&self, headers: &HeaderMap) -> bool {
        let headers = headers.get_all(AUTHORIZATION);
        headers.iter().any(|header| self.is_shown(header))
    }

    fn is_shown(&self, header: &HeaderValue) -> bool {
        let Some((scheme, word)) = header.to_str().ok().and_then(|text| text.split_once(' '))
        else {
            return false;
        };
        if scheme.eq_ignore_ascii_case("bearer") {
            return self.equals(word.trim().as_bytes());
        }
        if !scheme.eq_ignore_ascii_case("basic") {
            return false;
        }
        let decoded = STANDARD.decode(word.trim()).unwrap_or_default();
        let mut parts = decoded.splitn(2, |byte| *byte == b':');
        parts.next();
        parts.next().is_some_and(|password| self.equals(password))
    }

    /// Compares in a time that does not depend on how much of the token is right.
    fn equals(&self, other: &[u8]) -> bool {
        let differences = self.0.bytes().zip(other).map(|(one, other)| one ^ other);
        let differs = differences.fold(0, |sum, difference| sum | difference);
        std::hint::black_box(differs) == 0 && self.0.len() == other.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_is_a_bearer_token_or_a_password() {
        let token = Token::new("word".to_owned());
        let basic = |text: &str| format!("Basic {}", STANDARD.encode(text));
        for (header, is_right) in [
            (token.to_header(), true),
            ("bearer  word".to_owned(), true),
            ("Bearer".to_owned(), false),
            ("Bearer wor".to_owned(), false),
            ("Bearer words".to_owned(), false),
            ("Bearer wore".to_owned(), false),
            ("Bearer ".to_owned(), false),
            ("Digest word".to_owned(), false),
            ("word".to_owned(), false),
            (basic(":word"), true),
            (basic("anyone:word"), true),
            (basic("word"), false),
            (basic("word:"), false),
            (basic(""), false),
            ("Basic %%%".to_owned(), false),
        ] {
            let request = hyper::Request::builder().header(AUTHORIZATION, &header);
            let (parts, ()) = request.body(()).expect("a request").into_parts();
            assert_eq!(token.is_in(&parts.headers), is_right, "{header}");
        }
        assert!(!token.is_in(&HeaderMap::new()));
        assert_eq!(format!("{token:?}"), "Token(..)");
    }
}
