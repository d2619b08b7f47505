//! Warns if a connection can take the port of a server before this launcher starts that server.

use c10d_socket::is_loopback_name;
use elastic_agent::LauncherOptions;
use elastic_rendezvous::{
    Endpoint, RendezvousParameters, STATIC_BACKEND, StartWarning, WarningKind,
};

use super::arguments::Surroundings;

/// The warning about given ports that the system also gives to outgoing connections.
pub(super) fn warning(
    launcher: &LauncherOptions,
    store_port: Option<u16>,
    surroundings: &Surroundings<'_>,
) -> Option<StartWarning> {
    let rendezvous = &launcher.rendezvous;
    let workers = rendezvous.workers_port();
    let workers = workers.and_then(|ports| surroundings.ephemeral_ports.of_range(ports));
    let served = [
        ("--workers-port", workers),
        ("--rdzv-endpoint", served_here(rendezvous, surroundings)),
        ("--store-port", store_port),
        ("--relay-port", launcher.agent.relay_port),
    ];
    served.into_iter().find_map(|(option, port)| {
        let port = port?;
        let range = surroundings.ephemeral_ports.range_with(port)?;
        let text = format!(
            "port {port} ({option}) may be taken by an outgoing connection, because the system uses ports {}-{} for them; choose a lower port",
            range.start(),
            range.end(),
        );
        Some(StartWarning::new(WarningKind::Port, text))
    })
}

/// Returns the port of the endpoint, if this node is known to serve it without a name lookup. Returns `None` for a
/// loopback address, because a job of one machine shows at once that its port is in use.
fn served_here(rendezvous: &RendezvousParameters, surroundings: &Surroundings<'_>) -> Option<u16> {
    if rendezvous.get_as_bool("is_host") == Ok(Some(false)) {
        return None;
    }
    let endpoint: Endpoint = rendezvous.endpoint().parse().ok()?;
    let host = endpoint.host();
    if is_loopback_name(host) {
        return None;
    }
    let address = host.parse();
    let has_address = address.is_ok_and(|address| (surroundings.site.has_address)(address));
    let is_here = if rendezvous.backend() == STATIC_BACKEND {
        rendezvous.get("rank") == Some("0")
    } else {
        host == (surroundings.site.host_name)() || has_address
    };
    endpoint.port().filter(|_| is_here)
}
