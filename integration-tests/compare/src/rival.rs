//! The frameworks that are compared.

use std::fmt;

use clap::ValueEnum;

/// One column of figures. Frameworks on tokio appear once per runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rival {
    /// Blocking sockets, one thread on each side, length-prefixed payloads: the lower bound.
    Bare,
    RpcAgent,
    TarpcMultiThread,
    TarpcCurrentThread,
    TonicMultiThread,
    TonicCurrentThread,
}

/// A framework. The table shows the better of its runtimes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Bare,
    RpcAgent,
    Tarpc,
    Tonic,
}

impl Family {
    pub(crate) const ALL: [Self; 4] = [Self::Bare, Self::RpcAgent, Self::Tarpc, Self::Tonic];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare TCP",
            Self::RpcAgent => "rpc-agent",
            Self::Tarpc => "tarpc",
            Self::Tonic => "tonic",
        }
    }
}

impl Rival {
    pub(crate) fn family(self) -> Family {
        match self {
            Self::Bare => Family::Bare,
            Self::RpcAgent => Family::RpcAgent,
            Self::TarpcMultiThread | Self::TarpcCurrentThread => Family::Tarpc,
            Self::TonicMultiThread | Self::TonicCurrentThread => Family::Tonic,
        }
    }

    /// The scheduler of the tokio runtime; `None` without tokio.
    pub(crate) fn flavor(self) -> Option<Flavor> {
        match self {
            Self::Bare | Self::RpcAgent => None,
            Self::TarpcMultiThread | Self::TonicMultiThread => Some(Flavor::MultiThread),
            Self::TarpcCurrentThread | Self::TonicCurrentThread => Some(Flavor::CurrentThread),
        }
    }
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.family().name())?;
        match self.flavor() {
            Some(flavor) => write!(f, " ({})", flavor.name()),
            None => Ok(()),
        }
    }
}

/// The scheduler of the tokio runtime, on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Flavor {
    /// tokio's default: as many workers as cores.
    #[default]
    MultiThread,
    CurrentThread,
}

impl Flavor {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::MultiThread => "multi-thread",
            Self::CurrentThread => "current-thread",
        }
    }
}
