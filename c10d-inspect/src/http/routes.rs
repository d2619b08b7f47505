//! Which request gets which answer, and which gets none.

use std::borrow::Cow;

use hyper::header::{ALLOW, HOST, WWW_AUTHENTICATE};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode, Version};

use super::answer::Answer;
use super::hosts;
use super::options::StatusOptions;

/// The rows of a list unless the request says how many.
const ROWS_DEFAULT: usize = 1000;

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    Page,
    Status,
    Why {
        all_ranks: bool,
    },
    Rank(usize),
    FindRanks(String),
    Ranks {
        from: usize,
        count: usize,
    },
    Clients {
        from: usize,
        count: usize,
    },
    Keys {
        prefix: String,
        from: usize,
        count: usize,
    },
    Stats,
    Metrics,
    Health,
}

/// Reads a request.
///
/// # Errors
/// The answer that refuses it.
pub(super) fn route(request: &Parts, options: &StatusOptions) -> Result<Wanted, Answer> {
    check_host(request, options.host_names())?;
    if options
        .token()
        .is_some_and(|token| !token.is_in(&request.headers))
    {
        let text = "this store has a secret: `c10d secret token` prints the password of its pages";
        let answer = Answer::text(StatusCode::UNAUTHORIZED, text);
        return Err(answer.with_header(WWW_AUTHENTICATE, "Basic realm=\"c10d\", charset=\"UTF-8\""));
    }
    let wanted = match request.uri.path() {
        "/" => Wanted::Page,
        "/status.json" => Wanted::Status,
        "/why.json" => Wanted::Why {
            all_ranks: Query::of(request).text("ranks").as_deref() == Some("all"),
        },
        "/ranks.json" => wanted_ranks(Query::of(request))?,
        "/clients.json" => Wanted::Clients {
            from: Query::of(request).number("from")?.unwrap_or(0),
            count: Query::of(request).number("count")?.unwrap_or(ROWS_DEFAULT),
        },
        "/keys.json" => Wanted::Keys {
            prefix: Query::of(request)
                .text("prefix")
                .unwrap_or_default()
                .into_owned(),
            from: Query::of(request).number("from")?.unwrap_or(0),
            count: Query::of(request).number("count")?.unwrap_or(ROWS_DEFAULT),
        },
        "/stats.json" => Wanted::Stats,
        "/metrics" => Wanted::Metrics,
        "/healthz" => Wanted::Health,
        _ => {
            let text = "there is no such page: try / for the page, or /why.json, /status.json, /ranks.json, \
                        /clients.json, /keys.json, /stats.json, /metrics, /healthz";
            return Err(Answer::text(StatusCode::NOT_FOUND, text));
        }
    };
    if request.method != Method::GET && request.method != Method::HEAD {
        let answer = Answer::text(
            StatusCode::METHOD_NOT_ALLOWED,
            "this server only answers GET and HEAD: it changes nothing",
        );
        return Err(answer.with_header(ALLOW, "GET, HEAD"));
    }
    Ok(wanted)
}

fn wanted_ranks(query: Query<'_>) -> Result<Wanted, Answer> {
    if let Some(rank) = query.number("rank")? {
        return Ok(Wanted::Rank(rank));
    }
    if let Some(text) = query.text("find") {
        return Ok(Wanted::FindRanks(text.into_owned()));
    }
    Ok(Wanted::Ranks {
        from: query.number("from")?.unwrap_or(0),
        count: query.number("count")?.unwrap_or(ROWS_DEFAULT),
    })
}

fn check_host(request: &Parts, host_names: &[String]) -> Result<(), Answer> {
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
    let authority = request
        .uri
        .authority()
        .map(hyper::http::uri::Authority::as_str);
    if [Some(host), authority]
        .into_iter()
        .flatten()
        .all(|host| hosts::is_accepted(host, host_names))
    {
        return Ok(());
    }
    let text = format!(
        "this server does not answer for the host name {host:?}: use its IP address, localhost, or the name of its \
         machine; or start it with --status-host NAME. (With a name that anybody can register, a stranger's page could \
         read the answers.)"
    );
    Err(Answer::text(StatusCode::MISDIRECTED_REQUEST, text))
}

/// The part of the address behind `?`.
#[derive(Clone, Copy)]
struct Query<'a>(&'a str);

impl<'a> Query<'a> {
    fn of(request: &'a Parts) -> Self {
        Self(request.uri.query().unwrap_or_default())
    }

    fn text(self, name: &str) -> Option<Cow<'a, str>> {
        form_urlencoded::parse(self.0.as_bytes())
            .find(|(key, _)| key == name)
            .map(|(_, value)| value)
    }

    fn number(self, name: &str) -> Result<Option<usize>, Answer> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(Answer::text(
                StatusCode::BAD_REQUEST,
                format!("{name} must be a number, not {text:?}"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn wanted(method: &str, uri: &str, hosts: &[&str]) -> Result<Wanted, u16> {
        let mut request = Request::builder().method(method).uri(uri);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let (parts, ()) = request.body(()).expect("a valid request").into_parts();
        let options = StatusOptions::default().with_host_name("node7");
        route(&parts, &options).map_err(|answer| answer.status().as_u16())
    }

    #[test]
    fn each_path_has_its_answer() {
        let get = |uri| wanted("GET", uri, &["127.0.0.1:29500"]);
        assert_eq!(get("/"), Ok(Wanted::Page));
        assert_eq!(wanted("HEAD", "/", &["node7"]), Ok(Wanted::Page));
        assert_eq!(get("/why.json"), Ok(Wanted::Why { all_ranks: false }));
        assert_eq!(
            get("/why.json?ranks=all"),
            Ok(Wanted::Why { all_ranks: true })
        );
        assert_eq!(get("/ranks.json?rank=7"), Ok(Wanted::Rank(7)));
        assert_eq!(
            get("/ranks.json?find=a%20b"),
            Ok(Wanted::FindRanks("a b".to_owned()))
        );
        let ranks = Wanted::Ranks { from: 5, count: 10 };
        assert_eq!(get("/ranks.json?from=5&count=10"), Ok(ranks));
        let keys = Wanted::Keys {
            prefix: "/a/".to_owned(),
            from: 0,
            count: ROWS_DEFAULT,
        };
        assert_eq!(get("/keys.json?prefix=%2Fa%2F"), Ok(keys));
        assert_eq!(get("/ranks.json?rank=-1"), Err(400));
        assert_eq!(get("/clients.json?from=x"), Err(400));
        assert_eq!(get("/etc/passwd"), Err(404));
    }

    #[test]
    fn a_server_with_a_token_answers_nothing_without_it() {
        let options = StatusOptions::default().with_token("word");
        let ask = |path: &str, authorization: &str| {
            let request = Request::builder()
                .uri(path)
                .header(HOST, "localhost")
                .header(hyper::header::AUTHORIZATION, authorization);
            let (parts, ()) = request.body(()).expect("a valid request").into_parts();
            route(&parts, &options).map_err(|answer| answer.status().as_u16())
        };
        for path in ["/", "/why.json", "/metrics", "/healthz", "/nothing"] {
            assert_eq!(ask(path, "Bearer other"), Err(401), "{path}");
        }
        assert_eq!(ask("/", "Bearer word"), Ok(Wanted::Page));
        assert_eq!(ask("/nothing", "Bearer word"), Err(404));
    }

    #[test]
    fn nothing_can_be_changed() {
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FOO"] {
            assert_eq!(
                wanted(method, "/status.json", &["localhost"]),
                Err(405),
                "{method}"
            );
        }
    }

    #[test]
    fn the_host_is_checked_before_anything_else() {
        assert_eq!(wanted("GET", "/", &["evil.example.com"]), Err(421));
        assert_eq!(wanted("POST", "/nothing", &["evil.example.com"]), Err(421));
        assert_eq!(
            wanted("GET", "http://evil.example.com/", &["localhost"]),
            Err(421)
        );
        assert_eq!(
            wanted("GET", "/", &["localhost", "evil.example.com"]),
            Err(400)
        );
        assert_eq!(wanted("GET", "/", &[]), Err(400));
    }
}
