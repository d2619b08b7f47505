//! Name lookup with a deadline.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::task::Wake;
use std::thread;

use crossbeam_channel::{Receiver, Sender, at, bounded, never, select_biased};

use crate::{Cancel, Deadline, HostPort};

type Answer = io::Result<Vec<SocketAddr>>;

/// Returns the addresses of a host, with its port, in the order to try them (RFC 6724), without duplicates. IPv4
/// addresses mapped into IPv6 are returned as IPv4. A literal address needs no lookup.
///
/// Blocks until `deadline` at most, or until `cancel` interrupts it. A lookup that does not return in time continues
/// on its own thread, `c10d-resolve`, which ends when the system's resolver returns.
///
/// ```
/// use c10d_socket::{Cancel, Deadline, HostPort, resolve};
/// use std::time::{Duration, Instant};
///
/// let deadline = Deadline::after(Instant::now(), Duration::from_secs(5));
/// let addresses = resolve(&HostPort::new("localhost", 29500), deadline, &Cancel::NEVER)?;
/// assert!(addresses.iter().all(|address| address.ip().is_loopback()));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The error of the system's resolver, [`io::ErrorKind::NotFound`] for a name without an address,
/// [`io::ErrorKind::TimedOut`] when it does not answer in time, [`io::ErrorKind::Interrupted`] after a cancel.
pub fn resolve(
    target: &HostPort,
    deadline: Deadline,
    cancel: &Cancel,
) -> io::Result<Vec<SocketAddr>> {
    Resolver::new(target.clone()).lookup(deadline, cancel)
}

/// Looks up one target any number of times, with at most one lookup in progress.
///
/// getaddrinfo(3) has no deadline and cannot be cancelled, so it runs on its own thread,
/// `c10d-resolve`, which is abandoned when it does not return in time. The thread holds a copy of the
/// target and one end of a channel, and ends when getaddrinfo(3) returns.
#[derive(Debug)]
pub(crate) struct Resolver {
    target: HostPort,
    unanswered: Option<Receiver<Answer>>,
}

impl Resolver {
    pub(crate) fn new(target: HostPort) -> Self {
        Self {
            target,
            unanswered: None,
        }
    }

    /// The addresses of the target in the order to try them, without duplicates. A literal address
    /// needs no lookup and no thread.
    ///
    /// The order is that of getaddrinfo(3) for any address family (RFC 6724). PyTorch asks for IPv6
    /// with mapped IPv4 addresses and gets the same order, since glibc compares IPv4 addresses in their
    /// mapped form. Unmapped addresses also work on a system without IPv6.
    ///
    /// # Errors
    /// The error of the lookup, also for an answer without addresses. After
    /// [`io::ErrorKind::TimedOut`] and [`io::ErrorKind::Interrupted`] the next call waits for the same lookup.
    pub(crate) fn lookup(&mut self, deadline: Deadline, cancel: &Cancel) -> Answer {
        if let Some(ip) = self.target.literal() {
            return Ok(vec![SocketAddr::new(ip, self.target.port())]);
        }
        let answer = match self.unanswered.take() {
            Some(answer) => answer,
            None => start_lookup(self.target.clone())?,
        };
        let late = deadline.instant().map_or_else(never, at);
        let (bell, rung) = bounded(1);
        let mut watch = cancel.watch();
        let error = loop {
            if watch.is_due() && watch.ask(|| Arc::new(Bell(bell.clone())).into()) {
                break io::ErrorKind::Interrupted.into();
            }
            select_biased! {
                recv(answer) -> result => return match result {
                    Ok(found) => found.and_then(without_duplicates),
                    Err(_) => Err(io::Error::other("the resolver panicked")),
                },
                recv(rung) -> _ => {}
                recv(late) -> _ => break io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the system's resolver did not answer in time",
                ),
            }
        };
        self.unanswered = Some(answer);
        Err(error)
    }
}

/// Ends a wait for an answer.
struct Bell(Sender<()>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // A full channel wakes as well.
        let _ = self.0.try_send(());
    }
}

fn start_lookup(target: HostPort) -> io::Result<Receiver<Answer>> {
    let (sender, receiver) = bounded(1);
    thread::Builder::new()
        .name("c10d-resolve".to_owned())
        .spawn(move || {
            let answer = (target.host(), target.port())
                .to_socket_addrs()
                .map(Iterator::collect);
            // Fails when the caller has abandoned the lookup, which is fine.
            let _ = sender.send(answer);
        })?;
    Ok(receiver)
}

/// Removes duplicates, as from two lines of a hosts file, and refuses an empty answer. A mapped IPv4
/// address (`::ffff:127.0.0.1`, as in hosts files for PyTorch) becomes IPv4, which also lets
/// `is_loopback` recognize it.
fn without_duplicates(found: Vec<SocketAddr>) -> Answer {
    let mut addresses: Vec<SocketAddr> = Vec::with_capacity(found.len());
    for mut address in found {
        if let SocketAddr::V6(v6) = address
            && let Some(v4) = v6.ip().to_ipv4_mapped()
        {
            address = SocketAddr::new(v4.into(), v6.port());
        }
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the name has no address",
        ));
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_literal_address_needs_no_lookup() {
        let mut resolver = Resolver::new(HostPort::new("::1", 80));
        let past = Deadline::at(Instant::now());
        assert_eq!(
            resolver.lookup(past, &Cancel::NEVER).unwrap(),
            ["[::1]:80".parse().unwrap()]
        );
    }

    #[test]
    fn a_lookup_keeps_its_deadline() {
        let in_time = Deadline::after(Instant::now(), Duration::from_secs(60));
        let found = resolve(&HostPort::new("localhost", 80), in_time, &Cancel::NEVER).unwrap();
        assert!(found.iter().all(|address| address.port() == 80));
        assert!(found.iter().any(|address| address.ip().is_loopback()));
        // RFC 6761: this name does not exist, so the lookup fails even if the answer is in time.
        let past = Deadline::at(Instant::now());
        assert!(resolve(&HostPort::new("name.invalid.", 80), past, &Cancel::NEVER).is_err());
    }

    #[test]
    fn an_unanswered_lookup_is_not_repeated() {
        let (sender, receiver) = bounded(1);
        let mut resolver = Resolver::new(HostPort::new("node0", 80));
        resolver.unanswered = Some(receiver);
        for _ in 0..2 {
            let soon = Deadline::after(Instant::now(), Duration::from_millis(1));
            let error = resolver.lookup(soon, &Cancel::NEVER).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
        let address: SocketAddr = "10.0.0.1:80".parse().unwrap();
        sender.send(Ok(vec![address, address])).unwrap();
        let found = resolver.lookup(Deadline::NEVER, &Cancel::NEVER);
        assert_eq!(found.unwrap(), [address]);
        assert!(resolver.unanswered.is_none());
    }

    #[test]
    fn mapped_addresses_are_ipv4_addresses() {
        let found = ["[::ffff:127.0.0.1]:80", "127.0.0.1:80", "[::1]:80"];
        let found = found.map(|text| text.parse().unwrap()).to_vec();
        let v4: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let v6: SocketAddr = "[::1]:80".parse().unwrap();
        assert_eq!(without_duplicates(found).unwrap(), [v4, v6]);
    }

    #[test]
    fn an_answer_without_addresses_is_an_error() {
        assert!(without_duplicates(Vec::new()).is_err());
    }
}
