//! Which requests are answered at all: those for a name of this server, with its word, that change nothing.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use c10d_socket::host_name;
use hyper::header::{ALLOW, AUTHORIZATION, HOST, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{Method, StatusCode, Version};

use super::answer::Answer;

/// Refuses requests before anything else looks at them.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    host_names: Vec<String>,
    token: Option<Token>,
}

impl Guard {
    /// Lets requests for addresses, `localhost`, the name of this machine, with and without its domain, and these names
    /// through. With a token, only those that have it.
    pub(super) fn new(host_names: &[String], token: Option<Token>) -> Self {
        let name = host_name();
        let short = name.split('.').next().unwrap_or_default().to_owned();
        let host_names = [host_names, &[short, name]].concat();
        Self { host_names, token }
    }

    /// Checks a request.
    ///
    /// # Errors
    /// The answer that refuses it.
    pub(super) fn check(&self, request: &Parts) -> Result<(), Answer> {
        self.check_host(request)?;
        let token = self.token.as_ref();
        if token.is_some_and(|token| !token.is_in(&request.headers)) {
            let text = "this job has a secret: `c10d secret token` prints the password of its pages, and commands take \
                        --secret-file";
            let answer = Answer::text(StatusCode::UNAUTHORIZED, text);
            return Err(
                answer.with_header(WWW_AUTHENTICATE, "Basic realm=\"c10d\", charset=\"UTF-8\"")
            );
        }
        if request.method != Method::GET && request.method != Method::HEAD {
            let text = "this server only answers GET and HEAD: it changes nothing";
            let answer = Answer::text(StatusCode::METHOD_NOT_ALLOWED, text);
            return Err(answer.with_header(ALLOW, "GET, HEAD"));
        }
        Ok(())
    }

    fn check_host(&self, request: &Parts) -> Result<(), Answer> {
        let mut hosts = request.headers.get_all(HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host.to_str().unwrap_or_default(),
            // Old clients; every browser sends a Host.
            (None, _) if request.version < Version::HTTP_11 => "localhost",
            _ => {
                let text = "a request needs exactly one Host header";
                return Err(Answer::text(StatusCode::BAD_REQUEST, text));
            }
        };
        let authority = request.uri.authority().map(Authority::as_str);
        if [Some(host), authority]
            .into_iter()
            .flatten()
            .all(|host| is_accepted(host, &self.host_names))
        {
            return Ok(());
        }
        let text = format!(
            "this server does not answer for the host name {host:?}: use its IP address, localhost, or the name of its \
             machine; or, for the page of a store, start it with --status-host NAME. (With a name that anybody can \
             register, a stranger's page could read the answers.)"
        );
        Err(Answer::text(StatusCode::MISDIRECTED_REQUEST, text))
    }
}

/// Whether a request for this host is answered. `host` is a Host header: a name or an address, and maybe a port.
pub(super) fn is_accepted(host: &str, names: &[String]) -> bool {
    let Some(host) = without_port(host) else {
        return false;
    };
    match host.strip_prefix('[') {
        Some(rest) => rest
            .strip_suffix(']')
            .is_some_and(|address| address.parse::<Ipv6Addr>().is_ok()),
        None => {
            let name = host.strip_suffix('.').unwrap_or(host);
            host.parse::<Ipv4Addr>().is_ok()
                || name.eq_ignore_ascii_case("localhost")
                || (!name.is_empty() && names.iter().any(|own| name.eq_ignore_ascii_case(own)))
        }
    }
}

fn without_port(host: &str) -> Option<&str> {
    let address_end = host.rfind(']').map_or(0, |end| end + 1);
    match host[address_end..].find(':') {
        None => Some(host),
        Some(colon) => {
            let (name, port) = host.split_at(address_end + colon);
            port[1..]
                .bytes()
                .all(|byte| byte.is_ascii_digit())
                .then_some(name)
        }
    }
}

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
    use hyper::Request;
    use hyper::header::AUTHORIZATION;

    use super::*;

    fn status(guard: &Guard, request: hyper::http::request::Builder) -> u16 {
        let (parts, ()) = request.body(()).expect("a valid request").into_parts();
        let refused = guard.check(&parts).err();
        refused.map_or(200, |answer| answer.status().as_u16())
    }

    fn checked(method: &str, uri: &str, hosts: &[&str]) -> u16 {
        let mut request = Request::builder().method(method).uri(uri);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        status(&Guard::new(&["node7".to_owned()], None), request)
    }

    #[test]
    fn a_server_with_a_token_answers_nothing_without_it() {
        let guard = Guard::new(&[], Some(Token::new("word".to_owned())));
        let ask = |method, authorization: &str| {
            let request = Request::builder()
                .method(method)
                .header(HOST, "localhost")
                .header(AUTHORIZATION, authorization);
            status(&guard, request)
        };
        assert_eq!(ask("GET", "Bearer other"), 401);
        assert_eq!(ask("POST", "Bearer other"), 401);
        assert_eq!(ask("GET", "Bearer word"), 200);
        assert_eq!(ask("POST", "Bearer word"), 405);
    }

    #[test]
    fn nothing_can_be_changed() {
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FOO"] {
            assert_eq!(checked(method, "/status.json", &["localhost"]), 405);
        }
        assert_eq!(checked("HEAD", "/", &["node7"]), 200);
        let request = Request::builder().method("POST").header(HOST, "node7");
        let (parts, ()) = request.body(()).expect("a valid request").into_parts();
        let refused = Guard::new(&["node7".to_owned()], None).check(&parts);
        let refused = refused.expect_err("a refusal").into_response();
        assert_eq!(refused.headers()[ALLOW], "GET, HEAD");
    }

    /// Old health probes send none.
    #[test]
    fn a_request_of_http_1_0_needs_no_host() {
        let ask = |version| {
            let guard = Guard::new(&[], None);
            status(&guard, Request::builder().version(version))
        };
        assert_eq!(ask(Version::HTTP_10), 200);
        assert_eq!(ask(Version::HTTP_11), 400);
    }

    #[test]
    fn the_host_is_checked_before_anything_else() {
        assert_eq!(checked("GET", "/", &["evil.example.com"]), 421);
        assert_eq!(checked("POST", "/nothing", &["evil.example.com"]), 421);
        let of_stranger = "http://evil.example.com/";
        assert_eq!(checked("GET", of_stranger, &["localhost"]), 421);
        let two = ["localhost", "evil.example.com"];
        assert_eq!(checked("GET", "/", &two), 400);
        assert_eq!(checked("GET", "/", &[]), 400);
        assert_eq!(checked("GET", "/", &[&host_name()]), 200);
    }

    #[test]
    fn only_names_that_a_stranger_cannot_own_are_accepted() {
        let names = ["node7".to_owned(), "status.example.org".to_owned()];
        for host in [
            "127.0.0.1",
            "127.0.0.1:29500",
            "10.0.0.3:",
            "[::1]",
            "[::1]:29500",
            "[fe80::1]:1",
            "localhost",
            "LocalHost:8080",
            "localhost.",
            "node7",
            "NODE7.:29500",
            "status.example.org:443",
        ] {
            assert!(is_accepted(host, &names), "{host}");
        }
        for host in [
            "",
            ".",
            ":29500",
            "evil.example.com",
            "evil.example.com:29500",
            "node7.evil.example.com",
            "localhost.evil.example.com",
            "127.0.0.1.evil.example.com",
            "127.0.0.1@evil.example.com",
            "[::1",
            "::1",
            "[::1]x",
            "[evil]",
            "localhost:x",
            "node",
            "[::1]:80:90",
        ] {
            assert!(!is_accepted(host, &names), "{host}");
        }
    }

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
            let request = Request::builder().header(AUTHORIZATION, &header);
            let (parts, ()) = request.body(()).expect("a request").into_parts();
            assert_eq!(token.is_in(&parts.headers), is_right, "{header}");
        }
        assert!(!token.is_in(&HeaderMap::new()));
        assert_eq!(format!("{token:?}"), "Token(..)");
    }
}
