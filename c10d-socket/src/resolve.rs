//! Name lookup that keeps to a deadline.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::thread;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

use crate::{Deadline, HostPort};

type Answer = io::Result<Vec<SocketAddr>>;

/// The addresses of a host, with its port, in the order to try them (RFC 6724) and each once. An IPv4
/// address in its IPv6 form is given as IPv4. A literal address is its own answer.
///
/// Blocks until `deadline` at most. A lookup that is stuck in the system is left behind on its thread,
/// `c10d-resolve`, which holds a copy of the name and ends when the system answers.
///
/// ```
/// use c10d_socket::{Deadline, HostPort, resolve};
/// use std::time::{Duration, Instant};
///
/// let deadline = Deadline::after(Instant::now(), Duration::from_secs(5));
/// let addresses = resolve(&HostPort::new("localhost", 29500), deadline)?;
/// assert!(addresses.iter().all(|address| address.ip().is_loopback()));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// What the system's resolver reports, [`io::ErrorKind::NotFound`] for a name without an address,
/// [`io::ErrorKind::TimedOut`] when it does not answer in time.
pub fn resolve(target: &HostPort, deadline: Deadline) -> io::Result<Vec<SocketAddr>> {
    Resolver::new(target.clone()).lookup(deadline)
}

/// Looks up one target, any number of times, with at most one lookup under way.
///
/// getaddrinfo(3) knows no deadline and cannot be stopped, so it runs on a thread of its own,
/// `c10d-resolve`, which is left behind when it does not answer in time. The thread holds a copy of
/// the target and one end of a channel, and ends when the system's resolver answers.
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

    /// The addresses of the target, in the order to try them and each once; a literal address needs
    /// no lookup and no thread.
    ///
    /// The order is getaddrinfo's for "any family", by RFC 6724. PyTorch asks for IPv6 with IPv4
    /// addresses mapped into it, and gets the same order: glibc compares an IPv4 address in its
    /// mapped form either way. IPv4 addresses are used unmapped here, which also works where the
    /// system has no IPv6.
    ///
    /// # Errors
    /// What the lookup reports (an answer without addresses is one), or
    /// [`io::ErrorKind::TimedOut`]; the next call then waits for the same lookup and not for another.
    pub(crate) fn lookup(&mut self, deadline: Deadline) -> Answer {
        if let Some(ip) = self.target.literal() {
            return Ok(vec![SocketAddr::new(ip, self.target.port())]);
        }
        let answer = match self.unanswered.take() {
            Some(answer) => answer,
            None => start_lookup(self.target.clone())?,
        };
        let received = match deadline.instant() {
            Some(at) => answer.recv_deadline(at),
            None => answer.recv().map_err(RecvTimeoutError::from),
        };
        match received {
            Ok(result) => result.and_then(each_once),
            Err(RecvTimeoutError::Timeout) => {
                self.unanswered = Some(answer);
                Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the resolver does not answer",
                ))
            }
            Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the resolver panicked")),
        }
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
            // Nobody listens any more when the caller has given up, which is fine.
            let _ = sender.send(answer);
        })?;
    Ok(receiver)
}

/// Leaves out repetitions, as from two lines of a hosts file, and refuses an empty answer. An IPv4
/// address in its IPv6 form (`::ffff:127.0.0.1`, as hosts files for PyTorch have it) is the same
/// address, and is used as IPv4, which also tells a loopback address for what it is.
fn each_once(found: Vec<SocketAddr>) -> Answer {
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
            resolver.lookup(past).unwrap(),
            ["[::1]:80".parse().unwrap()]
        );
    }

    #[test]
    fn a_name_is_looked_up_in_time_or_not_at_all() {
        let in_time = Deadline::after(Instant::now(), Duration::from_secs(60));
        let found = resolve(&HostPort::new("localhost", 80), in_time).unwrap();
        assert!(found.iter().all(|address| address.port() == 80));
        assert!(found.iter().any(|address| address.ip().is_loopback()));
        // No machine has this name (RFC 6761), however fast the answer.
        let past = Deadline::at(Instant::now());
        assert!(resolve(&HostPort::new("name.invalid.", 80), past).is_err());
    }

    #[test]
    fn a_stuck_lookup_is_waited_for_and_not_repeated() {
        let (sender, receiver) = bounded(1);
        let mut resolver = Resolver::new(HostPort::new("node0", 80));
        resolver.unanswered = Some(receiver);
        for _ in 0..2 {
            let soon = Deadline::after(Instant::now(), Duration::from_millis(1));
            let error = resolver.lookup(soon).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
        let address: SocketAddr = "10.0.0.1:80".parse().unwrap();
        sender.send(Ok(vec![address, address])).unwrap();
        assert_eq!(resolver.lookup(Deadline::NEVER).unwrap(), [address]);
        assert!(resolver.unanswered.is_none());
    }

    #[test]
    fn mapped_addresses_are_ipv4_addresses() {
        let found = ["[::ffff:127.0.0.1]:80", "127.0.0.1:80", "[::1]:80"];
        let found = found.map(|text| text.parse().unwrap()).to_vec();
        let v4: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let v6: SocketAddr = "[::1]:80".parse().unwrap();
        assert_eq!(each_once(found).unwrap(), [v4, v6]);
    }

    #[test]
    fn an_answer_without_addresses_is_an_error() {
        assert!(each_once(Vec::new()).is_err());
    }
}
