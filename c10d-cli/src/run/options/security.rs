//! The options about strangers, and about relays, which keep them out of the workers' store.

use clap::Args;
use elastic_agent::AgentOptions;
use elastic_rendezvous::StartWarning;

use super::arguments::{Parsed, Read, value_of};
use super::error::UsageError;
use super::values::port;
use crate::secret::SecretArgs;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Security and relays")]
pub(super) struct SecurityArgs {
    #[command(flatten)]
    pub(super) secret: SecretArgs,

    #[cfg(feature = "etcd")]
    #[command(flatten)]
    pub(super) etcd: crate::etcd::EtcdAccessArgs,

    /// Connect this node's workers to their store through a relay in this launcher, at a loopback address.
    ///
    /// With a secret, this also protects the workers' store of several nodes. All nodes need this option, and none of them
    /// can run torchrun. An endpoint etcd://.. implies it.
    #[arg(hide_short_help = true, long)]
    relay: bool,

    /// Serve the relays on this port, the same on all nodes. [default: the nodes agree on a free port]
    #[arg(hide_short_help = true, long, value_name = "PORT", allow_negative_numbers = true, value_parser = Read(port))]
    relay_port: Option<Parsed<u16>>,
}

impl SecurityArgs {
    pub(super) fn apply(
        &self,
        agent: &mut AgentOptions,
        is_in_etcd: bool,
        warnings: &mut Vec<StartWarning>,
    ) -> Result<(), UsageError> {
        agent.has_relay = self.relay || is_in_etcd;
        match &self.relay_port {
            Some(port) if !agent.has_relay => {
                warnings.push(port.given.has_no_effect("--relay is not given"));
            }
            port => agent.relay_port = value_of(port)?,
        }
        Ok(())
    }
}
