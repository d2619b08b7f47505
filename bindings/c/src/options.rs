//! Options of stores and servers, set one by one, so that new options need no new functions to open a store; and the times
//! of calls, in milliseconds.

use std::net::IpAddr;
use std::time::Duration;

use c10d::GroupOptions;
use c10d_store::journal::JournalSource;
use c10d_store::{
    Credentials, FileStoreOptions, ListenOn, ServerOptions, TcpStoreOptions, WireLimits,
};

use crate::border::{self, CText};
use crate::cancel::{self, CancelHandle};
use crate::failure::Failure;
use crate::interface::{Argument, frees, operations};
use crate::status::Status;

/// A time limit: the call waits until it succeeds.
pub const C10D_FOREVER: i64 = -1;

/// A time limit: the call checks once, without waiting.
pub const C10D_CHECK_ONCE: i64 = 0;

/// A time limit: the default timeout of the store.
pub const C10D_DEFAULT: i64 = -2;

/// Options for opening a store, starting a server or joining a group. One thread at a time may use such an object.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The inner one is a time limit as everywhere, the outer one whether it is set.
    pub(crate) timeout: Option<Option<Duration>>,
    world_size: Option<usize>,
    wait_for_workers: Option<bool>,
    multi_tenant: bool,
    listen_on: ListenOn,
    resume: Option<Duration>,
    credentials: Option<Credentials>,
    limits: WireLimits,
    connections_max: Option<usize>,
    journal: Option<JournalSource>,
    cancel: Option<CancelHandle>,
}

/// Options of Rust with those values that are set.
macro_rules! with_given {
    ($options:expr, $($method:ident($value:expr)),+ $(,)?) => {{
        let mut options = $options;
        $(if let Some(value) = $value {
            options = options.$method(value);
        })+
        options
    }};
}

impl Options {
    /// # Errors
    /// [`Failure`] if the options' cancel handle was cancelled. This applies to all kinds.
    pub(crate) fn tcp(&self, is_master: bool) -> Result<TcpStoreOptions, Failure> {
        let options = TcpStoreOptions::default()
            .with_master(is_master)
            .with_multi_tenant(self.multi_tenant)
            .with_listen_on(self.listen_on)
            .with_server_options(self.server())
            .with_limits(self.limits)
            .with_cancel(cancel::of_call(self.cancel.as_ref())?);
        Ok(with_given!(
            options,
            with_timeout(self.timeout),
            with_world_size(self.world_size),
            with_wait_for_workers(self.wait_for_workers),
            with_resume(self.resume),
            with_credentials(self.credentials.clone()),
        ))
    }

    pub(crate) fn server(&self) -> ServerOptions {
        with_given!(
            ServerOptions::default()
                .with_groups(c10d_membership::groups)
                .with_limits(self.limits),
            with_connections_max(self.connections_max),
            with_credentials(self.credentials.clone()),
            with_journal(self.journal.clone()),
        )
    }

    pub(crate) fn file(&self) -> Result<FileStoreOptions, Failure> {
        let cancel = cancel::of_call(self.cancel.as_ref())?;
        let options = FileStoreOptions::default().with_cancel(cancel);
        let (timeout, world_size) = (self.timeout, self.world_size);
        Ok(with_given!(
            options,
            with_timeout(timeout),
            with_world_size(world_size)
        ))
    }

    pub(crate) fn group(&self) -> Result<GroupOptions, Failure> {
        let options = GroupOptions::default()
            .with_value_bytes_max(self.limits.value_bytes_max)
            .with_cancel(cancel::of_call(self.cancel.as_ref())?);
        let (timeout, credentials) = (self.timeout, self.credentials.clone());
        Ok(with_given!(
            options,
            with_timeout(timeout),
            with_credentials(credentials)
        ))
    }

    pub(crate) const fn key_bytes_max(&self) -> usize {
        self.limits.key_bytes_max
    }
}

impl Argument for Option<&Options> {
    type Checked = Options;

    /// The defaults for null.
    fn check(self, _: &'static str) -> Result<Options, Failure> {
        Ok(self.cloned().unwrap_or_default())
    }
}

impl<'a> Argument for Option<&'a mut Options> {
    type Checked = &'a mut Options;

    fn check(self, name: &'static str) -> Result<&'a mut Options, Failure> {
        border::not_null(self, name)
    }
}

fn listen_on(address: &str) -> Result<ListenOn, Failure> {
    if address == "*" {
        return Ok(ListenOn::AllInterfaces);
    }
    let parsed = address.parse::<IpAddr>().map_err(|_| {
        Failure::invalid_argument(format!(
            "cannot listen on {address:?}: give an IP address, or * for all interfaces"
        ))
    });
    Ok(ListenOn::Address(parsed?))
}

#[cfg(feature = "tls")]
fn read_secrets(path: &str) -> Result<Credentials, Failure> {
    let secrets = c10d_store::Secret::read_file(path.as_ref());
    let credentials = secrets.and_then(Credentials::from_secrets);
    credentials.map_err(|error| Failure::new(Status::C10D_ERROR_CREDENTIALS, error.to_string()))
}

#[cfg(not(feature = "tls"))]
fn read_secrets(path: &str) -> Result<Credentials, Failure> {
    Err(Failure::new(
        Status::C10D_ERROR_UNSUPPORTED,
        format!("cannot use the secret of {path}: the library was built without the feature tls"),
    ))
}

#[cfg(feature = "journal")]
#[expect(clippy::unnecessary_wraps, reason = "fails without the feature")]
fn journal_in(path: &str) -> Result<JournalSource, Failure> {
    let path = std::path::PathBuf::from(path);
    let open =
        move |_: &c10d_socket::Cancel| Ok(Box::new(c10d_journal::SqliteJournal::open(&path)?) as _);
    Ok(JournalSource {
        open: std::sync::Arc::new(open),
        on_failure: None,
    })
}

#[cfg(not(feature = "journal"))]
fn journal_in(path: &str) -> Result<JournalSource, Failure> {
    Err(Failure::new(
        Status::C10D_ERROR_UNSUPPORTED,
        format!("cannot keep a store in {path}: the library was built without the feature journal"),
    ))
}

/// The time limit; the outer `None` is the default.
#[expect(
    clippy::option_option,
    reason = "the inner one is a time limit as everywhere, the outer one whether there is one"
)]
pub(crate) fn explicit_timeout(timeout_ms: i64) -> Result<Option<Option<Duration>>, Failure> {
    match timeout_ms {
        C10D_DEFAULT => Ok(None),
        C10D_FOREVER => Ok(Some(None)),
        _ => match u64::try_from(timeout_ms) {
            Ok(ms) => Ok(Some(Some(Duration::from_millis(ms)))),
            Err(_) => Err(Failure::invalid_argument(format!(
                "a timeout of {timeout_ms} ms: give milliseconds from 0 on, C10D_FOREVER or C10D_DEFAULT"
            ))),
        },
    }
}

/// The milliseconds that C reads, rounded up.
pub(crate) fn to_ms(timeout: Option<Duration>) -> i64 {
    timeout.map_or(C10D_FOREVER, |timeout| {
        let ms = timeout.as_nanos().div_ceil(1_000_000);
        i64::try_from(ms).unwrap_or(i64::MAX)
    })
}

operations! {
    /// New options with all defaults. Free them with `c10d_options_free`. Functions that take options take null for the
    /// defaults, and keep no reference to them.
    fn c10d_options_new() -> options: Option<Box<Options>> = Box::<Options>::default();
}

frees! {
    /// Frees options. Null is left alone.
    fn c10d_options_free(options: Options);
}

operations! {
    /// The time limit for opening the store or joining the group, and its default timeout. 300 s by default, like in
    /// PyTorch.
    fn c10d_options_set_timeout(options: Option<&mut Options>, timeout_ms: i64) =
        options.timeout = explicit_timeout(timeout_ms)?;

    /// The number of workers, at least 1. A master then waits until all workers have opened the store. The last of this
    /// number of closed file stores removes the file. By default workers are not counted.
    fn c10d_options_set_world_size(options: Option<&mut Options>, world_size: usize) = {
        if world_size == 0 {
            return Err(Failure::invalid_argument("a world size of 0: give at least 1"));
        }
        options.world_size = Some(world_size);
    };

    /// Whether a master with a world size waits for the other workers while it opens. True by default, like in PyTorch.
    fn c10d_options_set_wait_for_workers(options: Option<&mut Options>, wait_for_workers: bool) =
        options.wait_for_workers = Some(wait_for_workers);

    /// Whether masters of this process on the same port share one server. False by default, like in PyTorch.
    fn c10d_options_set_multi_tenant(options: Option<&mut Options>, multi_tenant: bool) =
        options.multi_tenant = multi_tenant;

    /// The address at which a master listens: a literal address, `*` for all interfaces, or null for the addresses of
    /// the store's host, the default. A plain server listens on the host that it is started with.
    fn c10d_options_set_listen_address(options: Option<&mut Options>, address: CText) =
        options.listen_on = address.optional("address")?.map_or(Ok(ListenOn::Host), listen_on)?;

    /// How long a TCP store tries to reconnect after it lost its connection, in milliseconds. Each request takes effect
    /// exactly once. With 0, the default, a lost connection is final, like in PyTorch, whose servers have no sessions.
    fn c10d_options_set_resume(options: Option<&mut Options>, resume_ms: u64) =
        options.resume = Some(Duration::from_millis(resume_ms)).filter(|it| !it.is_zero());

    /// Connects only to servers, and serves only clients, that have the same secret. The file is written by `c10d
    /// secret new`, and only its owner may read it. PyTorch's clients and servers do not support secrets.
    /// `C10D_ERROR_UNSUPPORTED` if the library was built without the feature `tls`.
    fn c10d_options_set_secret_file(options: Option<&mut Options>, path: CText) =
        options.credentials = Some(read_secrets(path.required("path")?)?);

    /// The longest key in bytes, including one for the client's prefix. 8192 by default, like in PyTorch. The limit
    /// applies to every kind of store: a longer key is refused before it is read. A server closes the connection on a
    /// longer key, so change the limit on both sides.
    fn c10d_options_set_key_bytes_max(options: Option<&mut Options>, bytes: usize) =
        options.limits.key_bytes_max = bytes;

    /// The longest value of a store or a group in bytes. 8 MiB by default, like in PyTorch. A server closes the
    /// connection on a longer value, so change the limit on both sides.
    fn c10d_options_set_value_bytes_max(options: Option<&mut Options>, bytes: usize) =
        options.limits.value_bytes_max = bytes;

    /// The maximum number of connections of a server at a time; it closes further connections. 262,144 by default.
    fn c10d_options_set_connections_max(options: Option<&mut Options>, connections: usize) =
        options.connections_max = Some(connections);

    /// Keeps the store of a server or a master in this directory, and continues with the data in it. A missing
    /// directory is created for this user only. Only one server can use a directory at a time. Confirmed writes survive
    /// the server's process. With null, the default, the data is lost when the server stops. If the server cannot
    /// write, it closes all connections and stops, and `c10d_server_check` reports the reason. `C10D_ERROR_UNSUPPORTED`
    /// if the library was built without the feature `journal`.
    fn c10d_options_set_directory(options: Option<&mut Options>, path: CText) =
        options.journal = path.optional("path")?.map(journal_in).transpose()?;

    /// Lets `cancel` interrupt the calls that open a store or join a group with these options; later calls take a
    /// separate handle. With null, the default, only the timeout interrupts them. The handle may be freed before the
    /// options.
    fn c10d_options_set_cancel(options: Option<&mut Options>, cancel: Option<&CancelHandle>) =
        options.cancel = cancel.cloned();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_become_limits_and_back() {
        assert_eq!(explicit_timeout(-2).unwrap(), None);
        assert_eq!(explicit_timeout(-1).unwrap(), Some(None));
        assert_eq!(explicit_timeout(0).unwrap(), Some(Some(Duration::ZERO)));
        let limit = explicit_timeout(1500).unwrap();
        assert_eq!(limit, Some(Some(Duration::from_millis(1500))));
        assert!(explicit_timeout(i64::MAX).unwrap().is_some());
        for refused in [-3, i64::MIN] {
            let failure = explicit_timeout(refused).unwrap_err();
            assert!(failure.text.contains(&refused.to_string()), "{failure:?}");
        }
        assert_eq!(to_ms(None), C10D_FOREVER);
        assert_eq!(to_ms(Some(Duration::from_micros(1))), 1);
        assert_eq!(to_ms(Some(Duration::from_secs(300))), 300_000);
        assert_eq!(to_ms(Some(Duration::MAX)), i64::MAX);
    }
}
