//! How the launchers of the tests run.

use std::env;
use std::time::Duration;

use integration_tests::launcher::Kind;

/// The environment variable that chooses the mode.
const VARIABLE: &str = "C10D_HANGS_MODE";

/// The options of the launchers, and the time after which they report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// No options, and reports after 5 s.
    Plain,
    Preload,
    Relay,
    Keep,
    /// No options, and no variable either: reports after 30 s.
    Defaults,
    /// Nodes of torchrun with the rendezvous of the package c10d-rs, which PyTorch's Python needs.
    Torchrun,
}

impl Mode {
    /// The mode of the tests of jobs that hang; `None` if only the healthy jobs are tested.
    pub(super) fn of_hangs() -> Option<Self> {
        let name = env::var(VARIABLE).unwrap_or_default();
        match name.as_str() {
            "" | "plain" => Some(Self::Plain),
            "preload" => Some(Self::Preload),
            "relay" => Some(Self::Relay),
            "keep" => Some(Self::Keep),
            "defaults" => Some(Self::Defaults),
            "torchrun" => Some(Self::Torchrun),
            "healthy" => None,
            _ => panic!(
                "{VARIABLE} is plain, preload, relay, keep, defaults, torchrun or healthy, not {name}"
            ),
        }
    }

    /// Whether the healthy jobs are tested.
    pub(super) fn is_healthy() -> bool {
        Self::of_hangs().is_none()
    }

    /// The launchers of the two nodes.
    pub(super) const fn kinds(self) -> [Kind; 2] {
        match self {
            Self::Torchrun => [Kind::Torchrun; 2],
            _ => [Kind::C10d; 2],
        }
    }

    /// The options in addition to those that every job of several nodes needs.
    pub(super) const fn options(self) -> &'static [&'static str] {
        match self {
            Self::Plain | Self::Defaults => &[],
            Self::Preload => &["--preload=torch,torch.distributed"],
            Self::Relay => &["--relay"],
            Self::Keep => &["--keep-workers"],
            // After the other backend.
            Self::Torchrun => &["--rdzv-backend=c10d-rs"],
        }
    }

    /// The value of `PET_EXPLAIN_AFTER`.
    pub(super) const fn explain_after(self) -> Option<&'static str> {
        match self {
            Self::Defaults => None,
            _ => Some("5s"),
        }
    }

    /// How soon after the stall the launchers must have reported it, on a busy machine.
    pub(super) const fn report_limit(self) -> Duration {
        match self {
            Self::Defaults => Duration::from_secs(135),
            _ => Duration::from_secs(60),
        }
    }

    /// The same for the other launchers, which ask the workers' store for a report at longer intervals.
    pub(super) const fn other_report_limit(self) -> Duration {
        match self {
            Self::Defaults => Duration::from_secs(195),
            _ => Duration::from_secs(75),
        }
    }
}
