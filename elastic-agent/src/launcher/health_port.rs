//! Answers whether this launcher is alive, on the port of `TORCHELASTIC_HEALTH_CHECK_PORT`.
//!
//! PyTorch reads the variable, and leaves the server to those that replace `create_healthcheck_server`
//! (`torch/distributed/elastic/agent/server/health_check_server.py`). The answer is meant for a liveness probe of
//! Kubernetes and the like.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use crate::agent::AgentHandle;
use c10d_inspect::http::{HttpResponse, RequestServer};
use serde_json::json;

use super::feature::Feature;
use crate::wording::epoch_ms;

const THREAD: &str = "health-port";

/// The server. Dropping it closes the port.
#[derive(Debug)]
pub(super) struct HealthPort {
    agent: Arc<OnceLock<AgentHandle>>,
    _server: RequestServer,
}

impl HealthPort {
    /// Answers on all interfaces, because probes are sent from other hosts. Until there is an agent, the launcher
    /// is alive.
    ///
    /// # Errors
    /// The error of the operating system, for example for a port that is in use.
    pub(super) fn open(port: u16) -> io::Result<Self> {
        // Listens on both kinds of addresses, unless this machine has no IPv6.
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
            .or_else(|error| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).map_err(|_| error))?;
        let agent: Arc<OnceLock<AgentHandle>> = Arc::default();
        let of_server = Arc::clone(&agent);
        let handler = move |_: &str| answer(of_server.get());
        Ok(Self {
            agent,
            _server: RequestServer::start(listener, THREAD, None, Arc::new(handler))?,
        })
    }
}

impl Feature for HealthPort {
    /// Answers for this agent from now on.
    fn watch(&mut self, agent: &AgentHandle) {
        // There is one agent.
        let _ = self.agent.set(agent.clone());
    }
}

fn answer(agent: Option<&AgentHandle>) -> HttpResponse {
    let (is_alive, last_progress) = match agent.map(AgentHandle::pulse) {
        Some(pulse) => (pulse.is_alive, pulse.last_progress),
        None => (true, epoch_ms(SystemTime::now()) / 1000),
    };
    let text = json!({ "alive": is_alive, "last_progress": last_progress });
    HttpResponse::new(if is_alive { 200 } else { 503 }, format!("{text}\n"))
}
