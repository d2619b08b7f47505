#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod acceptor;
mod addr;
mod backoff;
mod buf;
mod cancel;
mod connect;
mod deadline;
mod dial;
mod error;
mod host;
mod listen;
mod listeners;
mod listening_process;
mod loopback_user;
mod moment;
mod open_files;
mod options;
mod own_sockets;
mod printable;
mod process_bound;
mod process_stat;
mod refusal_log;
mod resolve;
mod silence;
mod strangers;
mod sys;
mod tls;
mod wait;

pub use acceptor::{AcceptLimits, Acceptor, Refusal, Stage};
pub use addr::{HostPort, HostPortError, is_loopback_name};
pub use backoff::{Backoff, BackoffOptions};
pub use buf::{SendBuf, send_vectored};
pub use cancel::{Cancel, Watch, sleep};
pub use connect::{ConnectOptions, Dialer, connect};
pub use deadline::Deadline;
pub use error::{ConnectError, DialFailure, DialStage, ListenError};

pub use host::{host_name, interface_addresses, own_address_towards};
pub use listen::{
    ListenOptions, adopt_listener, adopt_listener_raw, listen, listen_at, resolve_local,
};
pub use listeners::{Listeners, Step};
pub use listening_process::ListeningProcess;
pub use loopback_user::{check_own_user, loopback_user, own_user};
pub use moment::Moment;
pub use open_files::{file_limit, raise_file_limit, restore_file_limit};
pub use options::{KeepAlive, SocketOptions, configure_accepted, limit_unsent};
pub use own_sockets::OwnConnections;
pub use printable::{Printable, is_printable, printable};
pub use process_bound::{OtherProcess, Process, ProcessBound};
pub use process_stat::ProcessStat;
pub use resolve::resolve;
pub use silence::{Liveness, Silence};

pub use sys::{is_signal_ignored, recv_into_spare, release_freed_memory};
#[cfg(feature = "tls")]
pub use tls::{CertificateFiles, Secret};
pub use tls::{
    Credentials, CredentialsError, Protocol, TlsClient, TlsError, TlsLayer, TlsServer, is_tls,
};
pub use wait::{wait_for_either, wait_for_input, wait_for_input_of, wait_for_output};
