//! Which requests are answered at all: those for a name of this server, with its word, that change nothing.

use c10d_socket::host_name;
use hyper::header::{ALLOW, HOST, WWW_AUTHENTICATE};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{Method, StatusCode, Version};

use super::answer::Answer;
use super::hosts;
use super::token::Token;

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
            .all(|host| hosts::is_accepted(host, &self.host_names))
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
}
