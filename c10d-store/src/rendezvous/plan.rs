//! Turns a URL into the store to open. Pure.

use super::error::UrlError;
use super::url::{self, Url};

const TCP_EXAMPLE: &str = "tcp://node0:29500?rank=0&world_size=4";
const FILE_EXAMPLE: &str = "file:///shared/job17?rank=0&world_size=4";

const PORT_RANGE: &str = "a number from 0 to 65535";

/// A store to open, with the rank and the world size.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) target: Target,
    pub(super) rank: usize,
    pub(super) world_size: Option<usize>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target {
    Tcp {
        host: String,
        port: u16,
        is_master: bool,
        multi_tenant: bool,
    },
    File {
        path: String,
    },
}

type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Plan {
    /// Parses a URL, with the rank and world size of the caller's options.
    pub(super) fn new(
        url: &str,
        rank: Option<usize>,
        world_size: Option<usize>,
        variable: Variable<'_>,
    ) -> Result<Self, UrlError> {
        let cleaned = url::clean(url);
        let parsed = Url::parse(&cleaned).map_err(|detail| malformed(url, detail.to_owned()))?;
        let request = Request {
            url,
            parsed,
            rank,
            world_size,
            variable,
        };
        if request.has_arguments()
            && (request.parameter("rank")?.is_some() || request.parameter("world_size")?.is_some())
        {
            return Err(UrlError::NodeSpecific {
                url: url.to_owned(),
            });
        }
        let (target, rank, world_size) = match request.parsed.scheme.as_str() {
            "tcp" => request.tcp()?,
            "env" => request.env()?,
            "file" => request.file()?,
            scheme => {
                return Err(UrlError::Scheme {
                    url: url.to_owned(),
                    scheme: scheme.to_owned(),
                });
            }
        };
        Ok(Self {
            target,
            rank: usize::try_from(rank.value).map_err(|_| rank.not("a number from 0 on"))?,
            // PyTorch's -1.
            world_size: usize::try_from(world_size.value).ok(),
        })
    }
}

/// A URL, the arguments of the caller, and the environment.
struct Request<'a> {
    url: &'a str,
    parsed: Url<'a>,
    rank: Option<usize>,
    world_size: Option<usize>,
    variable: Variable<'a>,
}

impl Request<'_> {
    fn tcp(&self) -> Result<(Target, Number, Number), UrlError> {
        let missing = |what| self.missing("tcp", what, TCP_EXAMPLE);
        let (host, port) = self.parsed.host_and_port();
        let port = port.ok_or_else(|| missing("port number"))?;
        let port = port_in_url(port, self.url)?;
        // Read all parameters first: a malformed one is reported before a missing one.
        let (rank, world_size) = (self.rank()?, self.world_size()?);
        let rank = rank.ok_or_else(|| missing("rank parameter"))?;
        let world_size = world_size.ok_or_else(|| missing("world size parameter"))?;
        let host = host.ok_or_else(|| missing("host"))?;
        Ok((tcp(host, port, &rank, self.variable), rank, world_size))
    }

    fn env(&self) -> Result<(Target, Number, Number), UrlError> {
        let rank = match self.rank()? {
            Some(rank) => rank,
            None => number_in("RANK", self.variable)?,
        };
        let world_size = match self.world_size()? {
            Some(world_size) => world_size,
            None => number_in("WORLD_SIZE", self.variable)?,
        };
        let host = value_of("MASTER_ADDR", self.variable)?;
        let port = number_in("MASTER_PORT", self.variable)?;
        let port = u16::try_from(port.value).map_err(|_| port.not(PORT_RANGE))?;
        Ok((tcp(host, port, &rank, self.variable), rank, world_size))
    }

    fn file(&self) -> Result<(Target, Number, Number), UrlError> {
        let missing = |what| self.missing("file", what, FILE_EXAMPLE);
        let (rank, world_size) = (self.rank()?, self.world_size()?);
        if self.parsed.path.is_empty() {
            return Err(missing("path"));
        }
        let rank = rank.ok_or_else(|| missing("rank parameter"))?;
        let world_size = world_size.ok_or_else(|| missing("world size parameter"))?;
        let mut path = self.parsed.path.to_owned();
        if self.has_arguments() && !path.starts_with('/') {
            // PyTorch puts the arguments into the URL, which makes its path absolute.
            path.insert(0, '/');
        }
        Ok((Target::File { path }, rank, world_size))
    }

    fn rank(&self) -> Result<Option<Number>, UrlError> {
        self.number("rank", self.rank)
    }

    fn world_size(&self) -> Result<Option<Number>, UrlError> {
        self.number("world_size", self.world_size)
    }

    /// A number that the caller or the URL gives.
    fn number(&self, name: &str, argument: Option<usize>) -> Result<Option<Number>, UrlError> {
        let text = match argument {
            Some(number) => Some(number.to_string()),
            None => self.parameter(name)?.map(str::to_owned),
        };
        let place = || format!("{name} in the URL {:?}", self.url);
        text.map(|text| number(&text, place)).transpose()
    }

    fn has_arguments(&self) -> bool {
        self.rank.is_some() || self.world_size.is_some()
    }

    fn parameter(&self, name: &str) -> Result<Option<&str>, UrlError> {
        self.parsed.parameter(name).map_err(|pair| {
            let detail = format!("the parameter {pair:?} has no value (it needs a =)");
            malformed(self.url, detail)
        })
    }

    fn missing(&self, scheme: &'static str, what: &'static str, example: &'static str) -> UrlError {
        UrlError::Missing {
            url: self.url.to_owned(),
            scheme,
            what,
            example,
        }
    }
}

fn malformed(url: &str, detail: String) -> UrlError {
    UrlError::Malformed {
        url: url.to_owned(),
        detail,
    }
}

/// Rank 0 hosts the store, unless the launcher does: PyTorch's `_create_c10d_store`.
fn tcp(host: String, port: u16, rank: &Number, variable: Variable<'_>) -> Target {
    let is = |name, value: &str| variable(name).is_some_and(|present| present == value);
    let launcher_serves = is("TORCHELASTIC_USE_AGENT_STORE", "True")
        && is("MASTER_ADDR", &host)
        && is("MASTER_PORT", &port.to_string());
    Target::Tcp {
        host,
        port,
        is_master: rank.value == 0 && !launcher_serves,
        multi_tenant: !launcher_serves,
    }
}

/// A number and its place, for errors.
struct Number {
    value: i64,
    text: String,
    place: String,
}

impl Number {
    fn not(&self, expected: &'static str) -> UrlError {
        UrlError::Number {
            place: self.place.clone(),
            value: self.text.clone(),
            expected,
        }
    }
}

fn number(text: &str, place: impl FnOnce() -> String) -> Result<Number, UrlError> {
    match python_int(text) {
        Some(value) => Ok(Number {
            value,
            text: text.to_owned(),
            place: place(),
        }),
        None => Err(UrlError::Number {
            place: place(),
            value: text.to_owned(),
            expected: "a number",
        }),
    }
}

fn port_in_url(text: &str, url: &str) -> Result<u16, UrlError> {
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let port = is_digits.then(|| text.parse().ok()).flatten();
    port.ok_or_else(|| UrlError::Number {
        place: format!("the port in the URL {url:?}"),
        value: text.to_owned(),
        expected: PORT_RANGE,
    })
}

/// An empty variable counts as unset, like in PyTorch.
fn value_of(name: &'static str, variable: Variable<'_>) -> Result<String, UrlError> {
    variable(name)
        .filter(|value| !value.is_empty())
        .ok_or(UrlError::MissingVariable { name })
}

fn number_in(name: &'static str, variable: Variable<'_>) -> Result<Number, UrlError> {
    let text = value_of(name, variable)?;
    number(&text, || format!("environment variable {name}"))
}

/// Parses a number as Python's `int()`, in ASCII: surrounding spaces, a sign, leading zeros, and single
/// underscores between digits are allowed.
fn python_int(text: &str) -> Option<i64> {
    let text = text.trim();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_number = digits
        .split('_')
        .all(|group| !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_digit()));
    is_number
        .then(|| text.replace('_', "").parse().ok())
        .flatten()
}
