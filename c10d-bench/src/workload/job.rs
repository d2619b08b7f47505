//! The ranks of a large job: they connect, meet in barriers, wait and cancel, with a connection each or through simulated
//! relays.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use c10d_socket::TlsClient;

use super::requests;
use super::setting::Setting;
use crate::failure::Failure;
use crate::fleet::{Ask, Fleet, Turns};

/// The size of a job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// The number of connections of ranks, or of relays.
    pub(crate) connections: usize,
    /// `None`: each rank has a connection.
    pub(crate) ranks_per_relay: Option<usize>,
}

impl Shape {
    pub(crate) fn ranks(self) -> usize {
        self.connections * self.ranks_per_relay.unwrap_or(1)
    }
}

/// The connected ranks of one round. Each round has different keys, because a barrier key can be used once.
#[derive(Debug)]
pub(crate) struct Job {
    fleet: Fleet,
    round: usize,
    /// Keys to delete at the end.
    keys: Vec<String>,
}

impl Job {
    /// Measures connect, the handshakes of ranks and relays, and PING and ADD to `init/` of each rank, until the last
    /// answer.
    pub(crate) fn connect(
        shape: Shape,
        round: usize,
        setting: &Setting,
        tls: Option<&TlsClient>,
    ) -> Result<(Self, Duration), Failure> {
        let mut fleet = Fleet::new(setting.server, tls.cloned(), shape.ranks_per_relay)?;
        // A relay makes the handshake for its ranks.
        let first = match shape.ranks_per_relay {
            Some(_) => requests::ping(),
            None => requests::hello(),
        };
        let count = requests::count_worker();
        let join = Ask {
            requests: &[&first, &count],
            reply_bytes: requests::HELLO_REPLY.len() + 8,
        };
        let mut joined = Vec::with_capacity(shape.ranks());
        let start = Instant::now();
        fleet.connect(shape.connections, join, |reply| {
            let (nonce, count) = reply.split_at(requests::HELLO_REPLY.len());
            joined.extend(requests::number(count));
            expect(setting.server, "PING", nonce, requests::HELLO_REPLY).map(drop)
        })?;
        let time = start.elapsed();
        if !requests::are_consecutive(joined, shape.ranks()) {
            return Err(fleet.wrong_answer("ADD", "the counts are not consecutive"));
        }
        let job = Self {
            fleet,
            round,
            keys: Vec::new(),
        };
        Ok((job, time))
    }

    fn ranks(&self) -> usize {
        self.fleet.ranks()
    }

    /// ADD, then WAIT on one key, which the last one to arrive SETs. From the first request to the last wake. Returns also
    /// the number of frames with requests of relays.
    pub(crate) fn barrier_by_add_and_wait(
        &mut self,
        turns: Turns,
    ) -> Result<(Duration, usize), Failure> {
        let (ranks, address) = (self.ranks(), self.fleet.address());
        // The keys of the two barriers of a round differ.
        let [arrivals, done] =
            ["arrivals", "done"].map(|name| self.key(&format!("{turns:?}/{name}")));
        let (arrive, wait) = (requests::add(&arrivals, 1), requests::wait(&done));
        let set = requests::set(&done, b"1");
        let (arrive, pass) = ([arrive.as_slice()], [wait.as_slice()]);
        let release = [set.as_slice(), &wait];
        let frames_before = self.fleet.frames();
        let start = Instant::now();
        self.fleet.ask_all(turns, |_| Ask {
            requests: &arrive,
            reply_bytes: 8,
        })?;
        self.fleet.run(turns, |_, reply| {
            let Some(arrived) = requests::number(reply) else {
                return expect(address, "WAIT", reply, requests::STOP_WAITING);
            };
            let last = usize::try_from(arrived) == Ok(ranks);
            Ok(Some(Ask {
                requests: if last { &release } else { &pass },
                reply_bytes: 1,
            }))
        })?;
        Ok((start.elapsed(), self.fleet.frames() - frames_before))
    }

    pub(crate) fn barrier_by_command(&mut self) -> Result<Duration, Failure> {
        let world_size = i64::try_from(self.ranks()).unwrap_or(i64::MAX);
        let barrier = requests::barrier(&self.key("barrier"), world_size);
        let start = Instant::now();
        self.all_ask(&[&barrier], "BARRIER", requests::STOP_WAITING)?;
        Ok(start.elapsed())
    }

    /// All ranks wait for one key: from its SET to the last wake-up.
    pub(crate) fn one_key_wakes_all(&mut self) -> Result<Duration, Failure> {
        let key = self.key("go");
        let wait = requests::wait(&key);
        self.each_waits(|_| &wait)?;
        self.fleet.expect_all(requests::STOP_WAITING.len());
        let set = requests::set(&key, b"1");
        let start = Instant::now();
        self.fleet.send(0, &set)?;
        self.expect_all("WAIT", requests::STOP_WAITING)?;
        Ok(start.elapsed())
    }

    /// Each rank waits for a different key, then cancels: from the first WAIT until all are known to wait,
    /// and from the first cancel to the last answer.
    pub(crate) fn wait_apart_then_cancel(&mut self) -> Result<(Duration, Duration), Failure> {
        let key = |rank| format!("bench/{}/never/{rank}", self.round);
        let waits: Vec<_> = (0..self.ranks())
            .map(|rank| requests::wait(&key(rank)))
            .collect();
        let start = Instant::now();
        self.each_waits(|rank| &waits[rank])?;
        let waiting = start.elapsed();
        let cancel = requests::cancel();
        let start = Instant::now();
        self.all_ask(&[&cancel], "CANCEL_WAIT", requests::WAIT_CANCELED)?;
        Ok((waiting, start.elapsed()))
    }

    /// Starts a wait of every rank; the answer to a PING behind it proves that it has started.
    fn each_waits<'w>(&mut self, wait: impl Fn(usize) -> &'w [u8]) -> Result<(), Failure> {
        let ping = requests::ping();
        let requests: Vec<[&[u8]; 2]> = (0..self.ranks()).map(|rank| [wait(rank), &ping]).collect();
        self.fleet.ask_all(Turns::Together, |rank| Ask {
            requests: &requests[rank],
            reply_bytes: requests::HELLO_REPLY.len(),
        })?;
        self.expect_all("PING", requests::HELLO_REPLY)
    }

    /// All ranks send the same, and get the same.
    fn all_ask<const N: usize>(
        &mut self,
        requests: &[&[u8]],
        name: &'static str,
        reply: [u8; N],
    ) -> Result<(), Failure> {
        self.fleet.ask_all(Turns::Together, |_| Ask {
            requests,
            reply_bytes: N,
        })?;
        self.expect_all(name, reply)
    }

    /// Waits for the replies to all ranks that have asked.
    fn expect_all<const N: usize>(
        &mut self,
        request: &'static str,
        expected: [u8; N],
    ) -> Result<(), Failure> {
        let address = self.fleet.address();
        self.fleet.run(Turns::Together, |_, reply| {
            expect(address, request, reply, expected)
        })
    }

    /// Deletes the round's keys and closes all connections. Returns when the server has noticed, which the
    /// answer to a new connection proves.
    pub(crate) fn leave(mut self, setting: &Setting) -> Result<(), Failure> {
        for key in &self.keys {
            self.fleet.call(0, &requests::delete(key), 8)?;
        }
        drop(self.fleet);
        let mut newcomer = setting.fleet(1)?;
        newcomer.call(0, &requests::ping(), requests::HELLO_REPLY.len())?;
        Ok(())
    }

    fn key(&mut self, name: &str) -> String {
        let key = format!("bench/{}/{name}", self.round);
        self.keys.push(key.clone());
        key
    }
}

fn expect<const N: usize>(
    address: SocketAddr,
    request: &'static str,
    reply: &[u8],
    expected: [u8; N],
) -> Result<Option<Ask<'static>>, Failure> {
    if reply == expected {
        return Ok(None);
    }
    let detail = format!("{reply:02x?}");
    Err(Failure::wrong_answer(address, request, detail))
}
