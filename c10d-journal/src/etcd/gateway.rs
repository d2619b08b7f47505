//! Calls of etcd through the JSON gateway of one member after another.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{
    Cancel, Credentials, Deadline, HostPort, Protocol, TlsClient, printable, sleep,
    wait_for_input_of,
};
use serde_json::{Value, json};

use super::http::{Connection, HttpError, Response};
use super::message::{Answer, Failure, Request, Watched, code, refusal, watch_to_json};

/// The most bytes of an answer: a page of 16 values of etcd's largest size, in base64.
const ANSWER_BYTES_MAX: usize = 40 << 20;

/// The most bytes of a line of a watch: the puts of one transaction.
const LINE_BYTES_MAX: usize = 40 << 20;

/// How long an attempt takes at first. A stopped member accepts connections and never answers.
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(400);

/// How long an attempt takes at most: after a round without an answer, all members are slow, not stopped.
const ATTEMPT_TIMEOUT_MAX: Duration = Duration::from_millis(6400);

/// The pause after a round in which each member has failed at once.
const ROUND_PAUSE: Duration = Duration::from_millis(50);

/// The most characters that are shown of an answer that is not etcd's.
const TEXT_CHARS_MAX: usize = 300;

/// The members of etcd, and the credentials for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) endpoints: Vec<HostPort>,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) user: Option<User>,
}

/// A user of etcd.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) password: String,
}

impl std::fmt::Debug for User {
    /// Shows everything except the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("User").field(&self.name).finish()
    }
}

/// Why a call has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// etcd refused it; so it would any other member.
    #[error("etcd refuses {path}: {message} (code {code})")]
    Refused {
        path: &'static str,
        code: u64,
        message: String,
    },
    /// The outcome is not known in time: the call may have been carried out, or may be carried out later.
    #[error("{0}")]
    Unknown(String),
    /// This member cannot be used as it is set up.
    #[error("{0}")]
    Setup(String),
    #[error("it was cancelled")]
    Cancelled,
}

/// A connection to one of the members, the next one after a failure.
#[derive(Debug)]
pub(crate) struct Gateway {
    site: Arc<Site>,
    cancel: Cancel,
    /// The member that answered last.
    current: usize,
    connection: Option<Connection>,
    token: Option<String>,
}

impl Gateway {
    pub(crate) fn new(site: Arc<Site>, cancel: Cancel) -> Self {
        Self {
            site,
            cancel,
            current: 0,
            connection: None,
            token: None,
        }
    }

    /// Another connection, to the same member.
    pub(crate) fn another(&self, cancel: Cancel) -> Self {
        Self {
            site: Arc::clone(&self.site),
            cancel,
            current: self.current,
            connection: None,
            token: self.token.clone(),
        }
    }

    /// Calls until a member has settled it, or the deadline. The same request may arrive more than once, and late.
    pub(crate) fn call(
        &mut self,
        request: &Request,
        deadline: Deadline,
    ) -> Result<Answer, CallError> {
        let body = request.to_json();
        let parse = |answer: &Value| request.parse(answer);
        self.repeat(request.path(), &body, deadline, parse)
    }

    /// A call that the journal does not need.
    #[cfg(test)]
    pub(crate) fn call_other(
        &mut self,
        path: &'static str,
        body: &Value,
        deadline: Deadline,
    ) -> Result<Value, CallError> {
        self.repeat(path, body, deadline, |answer| Ok(answer.clone()))
    }

    fn repeat<T>(
        &mut self,
        path: &'static str,
        body: &Value,
        deadline: Deadline,
        parse: impl Fn(&Value) -> Result<T, &'static str>,
    ) -> Result<T, CallError> {
        let body = body.to_string();
        let mut timeout = ATTEMPT_TIMEOUT;
        let mut failures = 0;
        let mut last_whole = None;
        loop {
            let own = Deadline::after(Instant::now(), timeout);
            let by = own.min(deadline);
            let result = self.attempt(path, body.as_bytes(), by);
            let result = result.and_then(|answer| {
                parse(&answer).map_err(|what| CallError::Unknown(format!("the answer has {what}")))
            });
            let unknown = match result {
                Err(CallError::Unknown(what)) => what,
                settled => return settled,
            };
            let member = &self.site.endpoints[self.current];
            let unknown = format!("etcd at {member} does not answer {path}: {unknown}");
            log::debug!("{unknown}");
            self.next_member();
            failures += 1;
            if failures % self.site.endpoints.len() == 0 {
                timeout = (timeout * 2).min(ATTEMPT_TIMEOUT_MAX);
                let left = deadline.remaining(Instant::now());
                let pause = left.map_or(ROUND_PAUSE, |left| left.min(ROUND_PAUSE));
                sleep(pause, [&self.cancel]).map_err(|_| CallError::Cancelled)?;
            }
            // The last attempt may have had no time for more than to run out of it: the previous failure has the
            // reason.
            let told = match last_whole.take() {
                Some(earlier) if by != own => earlier,
                _ => unknown,
            };
            if deadline.has_passed(Instant::now()) {
                return Err(CallError::Unknown(told));
            }
            last_whole = Some(told);
        }
    }

    /// Continues with the next member.
    pub(crate) fn next_member(&mut self) {
        self.connection = None;
        self.current = (self.current + 1) % self.site.endpoints.len();
    }

    /// One exchange with the current member, or two if the member requires a user.
    fn attempt(
        &mut self,
        path: &'static str,
        body: &[u8],
        by: Deadline,
    ) -> Result<Value, CallError> {
        let first = self.exchange(path, body, by);
        let Err(CallError::Refused { code, message, .. }) = &first else {
            return first;
        };
        // The error for an unknown token differs from the error for a missing token.
        let asks_for_user = *code == code::UNAUTHENTICATED
            // With certificates, one without a token is the user of a certificate that names none.
            || (*code == code::DENIED && self.token.is_none())
            || message.contains("user name is empty")
            || message.contains("invalid auth token");
        if !asks_for_user || self.site.user.is_none() {
            return first;
        }
        self.authenticate(by)?;
        self.exchange(path, body, by)
    }

    fn authenticate(&mut self, by: Deadline) -> Result<(), CallError> {
        let Some(user) = &self.site.user else {
            return Ok(());
        };
        let body = json!({ "name": user.name, "password": user.password }).to_string();
        self.token = None;
        let answer = self.exchange("/v3/auth/authenticate", body.as_bytes(), by)?;
        let token = answer["token"].as_str().unwrap_or_default();
        let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_token {
            return Err(CallError::Unknown("etcd has given no token".to_owned()));
        }
        self.token = Some(token.to_owned());
        Ok(())
    }

    fn exchange(
        &mut self,
        path: &'static str,
        body: &[u8],
        by: Deadline,
    ) -> Result<Value, CallError> {
        let result = self.post(path, &[], body, by);
        let (mut connection, response) = result?;
        let status = response.status;
        let read = connection.read_all(response, ANSWER_BYTES_MAX, by);
        let (body, is_kept) = read.map_err(|error| self.failed(error))?;
        if is_kept {
            self.connection = Some(connection);
        }
        self.judge(path, status, &body)
    }

    /// Sends a request on the connection, or on a new one. The caller puts it back if it can be used again.
    fn post(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        by: Deadline,
    ) -> Result<(Connection, Response), CallError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect(by)?,
        };
        let mut headers = headers.to_vec();
        if let Some(token) = &self.token {
            headers.push(("Authorization", token));
        }
        match connection.post(path, &headers, body, by) {
            Ok(response) => Ok((connection, response)),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn connect(&self, by: Deadline) -> Result<Connection, CallError> {
        let target = &self.site.endpoints[self.current];
        let tls = self.tls_client(target)?;
        Connection::open(target, tls.as_ref(), by, &self.cancel)
            .map_err(|error| self.failed(error.into()))
    }

    fn tls_client(&self, target: &HostPort) -> Result<Option<TlsClient>, CallError> {
        let credentials = self.site.credentials.as_ref();
        let client = credentials.map(|it| it.client(Protocol::Http, target.host()));
        client
            .transpose()
            .map_err(|error| CallError::Setup(error.to_string()))
    }

    fn failed(&self, error: HttpError) -> CallError {
        if let HttpError::TooLarge { .. } = error {
            return CallError::Refused {
                path: "an answer",
                code: code::EXHAUSTED,
                message: error.to_string(),
            };
        }
        if self.cancel.is_cancelled() {
            return CallError::Cancelled;
        }
        CallError::Unknown(match error {
            HttpError::Io(error) if error.kind() == io::ErrorKind::TimedOut => {
                "no answer in time".to_owned()
            }
            HttpError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                "it closed the connection".to_owned()
            }
            error => error.to_string(),
        })
    }

    /// Interprets an answer. The status depends on the version; the body does not.
    fn judge(&self, path: &'static str, status: u16, body: &[u8]) -> Result<Value, CallError> {
        let member = &self.site.endpoints[self.current];
        let text = printable(body.trim_ascii(), TEXT_CHARS_MAX);
        let value: Option<Value> = serde_json::from_slice(body).ok();
        let error = value
            .as_ref()
            .map(|value| value.get("error").unwrap_or(value));
        // The `error` of a stream is an object, that of older members a text beside the code.
        let error = match error {
            Some(Value::String(_)) => value.as_ref(),
            error => error,
        };
        if status != 200
            && let Some(error) = error
            && error.get("code").is_some()
        {
            return Err(match refusal(error) {
                Failure::Unknown(what) => CallError::Unknown(what),
                Failure::Refused { code, message } => CallError::Refused {
                    path,
                    code,
                    message,
                },
            });
        }
        match (status, value) {
            (200, Some(value)) => Ok(value),
            (200, None) => Err(CallError::Unknown("the answer is no JSON".to_owned())),
            (404, _) => Err(CallError::Setup(format!(
                "etcd at {member} has no JSON gateway at {path}: it was started with --enable-grpc-gateway=false, or is older than 3.4"
            ))),
            (500.., _) => Err(CallError::Unknown(format!("status {status}: {text}"))),
            (_, _) => Err(CallError::Setup(format!(
                "etcd at {member} refuses {path} with status {status}: {text}"
            ))),
        }
    }

    /// Watches the keys from `key` up to `end`, from a revision on.
    pub(crate) fn watch(
        mut self,
        key: &str,
        end: &str,
        from_revision: u64,
    ) -> Result<WatchStream, CallError> {
        let body = watch_to_json(key, end, from_revision).to_string();
        // Else a member without a majority keeps silent.
        let headers = [("Grpc-Metadata-hasleader", "true")];
        let by = Deadline::after(Instant::now(), ATTEMPT_TIMEOUT * 3);
        if self.site.user.is_some() && self.token.is_none() {
            self.authenticate(by)?;
        }
        let path = "/v3/watch";
        let (mut connection, response) = self.post(path, &headers, body.as_bytes(), by)?;
        if response.status != 200 {
            let status = response.status;
            let read = connection.read_all(response, ANSWER_BYTES_MAX, by);
            let (body, _) = read.map_err(|error| self.failed(error))?;
            self.judge(path, status, &body)?;
            return Err(CallError::Unknown(format!("status {status}")));
        }
        Ok(WatchStream {
            gateway: self,
            connection,
            response,
            received: Vec::new(),
            searched: 0,
        })
    }
}

/// A watch that continues until it fails or is dropped.
#[derive(Debug)]
pub(crate) struct WatchStream {
    gateway: Gateway,
    connection: Connection,
    response: Response,
    received: Vec<u8>,
    /// The bytes before this one contain no line end.
    searched: usize,
}

impl WatchStream {
    /// Waits until a message may be there, or `other` can be read, or the deadline.
    pub(crate) fn wait_beside(
        &self,
        other: BorrowedFd<'_>,
        deadline: Deadline,
    ) -> Result<(), CallError> {
        let timeout = deadline.remaining(Instant::now());
        let fds = [self.connection.socket().as_fd(), other];
        let waited = wait_for_input_of(fds, timeout, &self.gateway.cancel);
        waited
            .map(drop)
            .map_err(|error| self.gateway.failed(error.into()))
    }

    /// The next message; `None` if there is none by the deadline.
    pub(crate) fn next(&mut self, deadline: Deadline) -> Result<Option<Watched>, CallError> {
        loop {
            let unsearched = &self.received[self.searched..];
            if let Some(end) = unsearched.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=self.searched + end).collect();
                self.searched = 0;
                if line.trim_ascii().is_empty() {
                    continue;
                }
                let line = serde_json::from_slice(&line);
                let line: Value =
                    line.map_err(|_| CallError::Unknown("a watch's line is no JSON".to_owned()))?;
                return Watched::parse(&line)
                    .map(Some)
                    .map_err(|error| match error {
                        Failure::Unknown(what) => CallError::Unknown(what),
                        Failure::Refused { code, message } => CallError::Refused {
                            path: "/v3/watch",
                            code,
                            message,
                        },
                    });
            }
            self.searched = self.received.len();
            if self.received.len() > LINE_BYTES_MAX {
                return Err(CallError::Unknown("a watch's line is too long".to_owned()));
            }
            let connection = &mut self.connection;
            match connection.read_some(&mut self.response, &mut self.received, deadline) {
                Ok(true) => {}
                Ok(false) => return Err(CallError::Unknown("the watch has ended".to_owned())),
                Err(HttpError::Io(error)) if error.kind() == io::ErrorKind::TimedOut => {
                    return Ok(None);
                }
                Err(error) => return Err(self.gateway.failed(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_attempt_that_the_deadline_cuts_hides_no_reason() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let site = Site {
            endpoints: vec![address.to_string().parse().unwrap()],
            credentials: None,
            user: None,
        };
        let mut gateway = Gateway::new(Arc::new(site), Cancel::NEVER);
        std::thread::scope(|scope| {
            // The first connection is closed at once, the next ones are not answered.
            scope.spawn(|| drop(listener.accept().unwrap()));
            let deadline = Deadline::after(Instant::now(), ATTEMPT_TIMEOUT / 2 + ROUND_PAUSE);
            let error = gateway.call_other("/v3/kv/range", &json!({}), deadline);
            let error = error.unwrap_err().to_string();
            assert!(!error.contains("no answer in time"), "{error}");
        });
    }
}
