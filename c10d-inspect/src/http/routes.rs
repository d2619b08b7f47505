//! Which request gets which answer, and which gets none.

use std::borrow::Cow;

use hyper::StatusCode;
use hyper::http::request::Parts;

use super::answer::Answer;
use super::exposition::Format;

/// The rows of a list unless the request says how many.
const ROWS_DEFAULT: usize = 1000;

/// The content that a request asks for.
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
    Metrics(Format),
    Health,
}

/// Reads a request.
///
/// # Errors
/// The answer that refuses it.
pub(super) fn route(request: &Parts) -> Result<Wanted, Answer> {
    Ok(match request.uri.path() {
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
        "/metrics" => Wanted::Metrics(Format::accepted(&request.headers)),
        "/healthz" => Wanted::Health,
        _ => {
            let text = "there is no such page: try / for the page, or /why.json, /status.json, /ranks.json, \
                        /clients.json, /keys.json, /stats.json, /metrics, /healthz";
            return Err(Answer::text(StatusCode::NOT_FOUND, text));
        }
    })
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

    fn get(uri: &str) -> Result<Wanted, u16> {
        let request = Request::builder().uri(uri).body(());
        let (parts, ()) = request.expect("a valid request").into_parts();
        route(&parts).map_err(|answer| answer.status().as_u16())
    }

    #[test]
    fn each_path_has_its_answer() {
        assert_eq!(get("/"), Ok(Wanted::Page));
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
}
