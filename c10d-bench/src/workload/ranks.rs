//! The start of a large job: thousands of ranks that connect, meet in barriers, wait and cancel.

use std::time::{Duration, Instant};

use c10d_socket::TlsClient;

use super::nccl_roots::NcclRoots;
use super::requests;
use super::setting::Setting;
use crate::child::ServerChild;
use crate::failure::Failure;
use crate::fleet::{Fleet, Links};
use crate::floor::{FloorArgs, FloorMode};
use crate::report::{Goal, Row, Unit};

/// The size of the job, and the number of rounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RanksShape {
    pub(crate) ranks: usize,
    pub(crate) rounds: usize,
    /// Whether the server is this project's.
    pub(crate) has_extensions: bool,
}

/// All figures of a job, with one connection per rank.
pub(crate) fn ranks(shape: RanksShape, setting: &Setting) -> Result<Vec<Row>, Failure> {
    let mut rows = [
        "ranks connect",
        "ranks barrier add+wait",
        "ranks barrier command",
        "ranks one key wakes all",
        "ranks get ids of NCCL",
        "ranks wait apart",
        "ranks cancel",
        "ranks wait apart + cancel",
    ]
    .map(|name| Row::new(name, Unit::Milliseconds));
    let mut broadcast = Row::new("ranks get 128 bytes", Unit::Milliseconds);
    let mut death = Row::new("ranks learn of a death", Unit::Milliseconds);
    death.goal = Some(Goal::AtMost(200.0));
    let mut memory = Row::new("memory per connection", Unit::Bytes);
    let floor_child = if setting.floor {
        let command = FloorArgs::command_line(
            FloorMode::WakeAll,
            requests::join().len(),
            requests::JOINED_BYTES,
        );
        Some(ServerChild::start(&command, setting.cores)?)
    } else {
        None
    };
    for round in 0..shape.rounds {
        // Only the first round shows the memory of the server's tables, which are empty before it.
        let before = setting
            .process
            .and_then(|process| process.anonymous_bytes());
        let (mut job, connect_time) = Job::connect(shape.ranks, round, setting, None)?;
        let after = setting
            .process
            .and_then(|process| process.anonymous_bytes());
        if let (0, Some(before), Some(after)) = (round, before, after) {
            let grown = after.saturating_sub(before) as f64;
            memory.samples.push(grown / shape.ranks as f64);
        }
        let add_wait = job.barrier_by_add_and_wait()?;
        let command = job.barrier_by_command()?;
        let wake_all = job.one_key_wakes_all()?;
        let ids = job.ids_of_nccl()?;
        if shape.has_extensions {
            broadcast.push(false, job.value_reaches_all()?.as_secs_f64() * 1e3);
            death.push(false, job.death_reaches_all(setting)?.as_secs_f64() * 1e3);
        }
        let (wait_apart, cancel) = job.wait_apart_then_cancel()?;
        let times = [
            connect_time,
            add_wait,
            command,
            wake_all,
            ids,
            wait_apart,
            cancel,
            wait_apart + cancel,
        ];
        for (row, time) in rows.iter_mut().zip(times) {
            row.samples.push(time.as_secs_f64() * 1e3);
        }
        job.leave(setting)?;
        if let Some(child) = &floor_child {
            let (connect_time, wake_all) = floor(shape.ranks, child, setting)?;
            rows[CONNECT].floor.push(connect_time.as_secs_f64() * 1e3);
            rows[WAKE_ALL].floor.push(wake_all.as_secs_f64() * 1e3);
        }
    }
    let mut rows = Vec::from(rows);
    if shape.has_extensions {
        rows.push(broadcast);
        rows.push(death);
    }
    if memory.samples.median().is_some() {
        rows.push(memory);
    }
    Ok(rows)
}

/// The rows that have a floor.
const CONNECT: usize = 0;
const WAKE_ALL: usize = 3;

/// The same two phases without a store: connects with one exchange each, and one byte to each connection.
fn floor(
    ranks: usize,
    child: &ServerChild,
    setting: &Setting,
) -> Result<(Duration, Duration), Failure> {
    let mut fleet = Fleet::new(child.address(), None)?;
    let start = Instant::now();
    fleet.connect(
        ranks,
        setting.connect_window,
        &requests::join(),
        requests::JOINED_BYTES,
        |_, _| Ok(()),
    )?;
    let connect_time = start.elapsed();
    for rank in 0..ranks {
        fleet.links().expect(rank, 1);
    }
    let start = Instant::now();
    fleet.links().send(0, &[1])?;
    fleet.run(|_, _, _| Ok(()))?;
    Ok((connect_time, start.elapsed()))
}

/// The connected ranks of one round, with keys of its own, as a barrier key can be used once.
#[derive(Debug)]
pub(crate) struct Job {
    fleet: Fleet,
    round: usize,
    /// Keys to delete at the end.
    keys: Vec<String>,
}

impl Job {
    /// Measures connect, VALIDATE, PING and ADD to `init/`, until the last answer.
    pub(crate) fn connect(
        ranks: usize,
        round: usize,
        setting: &Setting,
        tls: Option<&TlsClient>,
    ) -> Result<(Self, Duration), Failure> {
        let mut fleet = Fleet::new(setting.server, tls.cloned())?;
        let join = requests::join();
        let mut joined = Vec::with_capacity(ranks);
        let start = Instant::now();
        fleet.connect(
            ranks,
            setting.connect_window,
            &join,
            requests::JOINED_BYTES,
            |links, reply| {
                let (nonce, count) = reply.split_at(4);
                joined.extend(requests::number(count));
                if nonce == requests::HELLO_REPLY {
                    Ok(())
                } else {
                    Err(links.wrong_answer("PING", format!("{nonce:02x?}")))
                }
            },
        )?;
        let time = start.elapsed();
        if !requests::are_consecutive(joined, ranks) {
            let detail = "the counts are not consecutive".to_owned();
            return Err(fleet.links().wrong_answer("ADD", detail));
        }
        let job = Self {
            fleet,
            round,
            keys: Vec::new(),
        };
        Ok((job, time))
    }

    /// ADD, then WAIT on one key, which the last one to arrive SETs. From the first request to the
    /// last wake.
    pub(crate) fn barrier_by_add_and_wait(&mut self) -> Result<Duration, Failure> {
        let ranks = self.fleet.len();
        let arrivals = self.key("arrivals");
        let done = self.key("done");
        let arrive = requests::add(&arrivals, 1);
        let wait = requests::wait(&done);
        let release = [requests::set(&done, b"1"), wait.clone()].concat();
        let start = Instant::now();
        for rank in 0..ranks {
            self.fleet.links().ask(rank, &arrive, 8)?;
        }
        self.fleet.run(|links, rank, reply| {
            if let Some(arrived) = requests::number(reply) {
                let last = usize::try_from(arrived) == Ok(ranks);
                links.ask(rank, if last { &release } else { &wait }, 1)
            } else {
                expect(links, "WAIT", reply, requests::STOP_WAITING)
            }
        })?;
        Ok(start.elapsed())
    }

    fn barrier_by_command(&mut self) -> Result<Duration, Failure> {
        let ranks = self.fleet.len();
        let world_size = i64::try_from(ranks).unwrap_or(i64::MAX);
        let barrier = requests::barrier(&self.key("barrier"), world_size);
        let start = Instant::now();
        for rank in 0..ranks {
            self.fleet.links().ask(rank, &barrier, 1)?;
        }
        self.fleet
            .run(|links, _, reply| expect(links, "BARRIER", reply, requests::STOP_WAITING))?;
        Ok(start.elapsed())
    }

    /// All ranks wait for one key: from its SET to the last wake-up.
    pub(crate) fn one_key_wakes_all(&mut self) -> Result<Duration, Failure> {
        let ranks = self.fleet.len();
        let key = self.key("go");
        self.wait_and_make_sure(|_| requests::wait(&key))?;
        for rank in 0..ranks {
            self.fleet.links().expect(rank, 1);
        }
        let set = requests::set(&key, b"1");
        let start = Instant::now();
        self.fleet.links().send(0, &set)?;
        self.fleet
            .run(|links, _, reply| expect(links, "WAIT", reply, requests::STOP_WAITING))?;
        Ok(start.elapsed())
    }

    /// All ranks wait for the ids of NCCL's roots, which some of them set, and get them: from the first request to the last
    /// byte received.
    pub(crate) fn ids_of_nccl(&mut self) -> Result<Duration, Failure> {
        let ranks = self.fleet.len();
        let roots = NcclRoots::new(ranks, &format!("bench/{}", self.round));
        self.keys.extend(roots.keys().map(str::to_owned));
        let start = Instant::now();
        for rank in 0..ranks {
            if let Some(set) = roots.set(rank) {
                self.fleet.links().send(rank, &set)?;
            }
            self.fleet.links().ask(rank, &roots.wait, 1)?;
        }
        self.fleet.run(|links, rank, reply| {
            if reply == requests::STOP_WAITING {
                return links.ask(rank, &roots.get, roots.ids.len());
            }
            if reply == roots.ids {
                return Ok(());
            }
            Err(links.wrong_answer("WAIT or MULTI_GET", format!("{} bytes", reply.len())))
        })?;
        Ok(start.elapsed())
    }

    /// All ranks wait for a value of 128 bytes, as that of a broadcast: from its SET to the last byte received.
    fn value_reaches_all(&mut self) -> Result<Duration, Failure> {
        let value = [7; 128];
        let key = self.key("broadcast");
        let set = requests::set(&key, &value);
        self.all_wait_for(&key, &value, |fleet| fleet.links().send(0, &set))
    }

    /// All ranks wait for the will of another connection: from its end to the last byte received.
    fn death_reaches_all(&mut self, setting: &Setting) -> Result<Duration, Failure> {
        let (alive, dead) = (self.key("alive"), self.key("dead"));
        let will = [7; 128];
        let mut member = setting.fleet(1, None)?;
        member.call(0, &requests::set_ephemeral(&alive, &dead, &will), 1)?;
        self.all_wait_for(&dead, &will, |_| {
            drop(member);
            Ok(())
        })
    }

    /// All ranks wait for this value of the key: from the start of what writes it to the last byte received.
    fn all_wait_for(
        &mut self,
        key: &str,
        value: &[u8],
        write: impl FnOnce(&mut Fleet) -> Result<(), Failure>,
    ) -> Result<Duration, Failure> {
        let answer = [&requests::STOP_WAITING[..], &requests::blob(value)].concat();
        let expected = |links: &Links, reply: &[u8]| {
            if reply == answer {
                return Ok(());
            }
            Err(links.wrong_answer("WAIT_GET", format!("{reply:02x?}")))
        };
        self.wait_and_make_sure(|_| requests::wait_get(key))?;
        for rank in 0..self.fleet.len() {
            self.fleet.links().expect(rank, answer.len());
        }
        let start = Instant::now();
        write(&mut self.fleet)?;
        self.fleet.run(|links, _, reply| expected(links, reply))?;
        Ok(start.elapsed())
    }

    /// Each rank waits for a key of its own, then cancels: from the first WAIT until all are known to wait,
    /// and from the first cancel to the last answer.
    fn wait_apart_then_cancel(&mut self) -> Result<(Duration, Duration), Failure> {
        let round = self.round;
        let start = Instant::now();
        self.wait_and_make_sure(|rank| requests::wait(&format!("bench/{round}/never/{rank}")))?;
        let waiting = start.elapsed();
        let cancel = requests::cancel();
        let start = Instant::now();
        for rank in 0..self.fleet.len() {
            self.fleet.links().ask(rank, &cancel, 1)?;
        }
        self.fleet
            .run(|links, _, reply| expect(links, "CANCEL_WAIT", reply, requests::WAIT_CANCELED))?;
        Ok((waiting, start.elapsed()))
    }

    /// Starts a wait on every link; the answer to a PING behind it proves that it has started.
    fn wait_and_make_sure(&mut self, wait: impl Fn(usize) -> Vec<u8>) -> Result<(), Failure> {
        let ping = requests::ping();
        for rank in 0..self.fleet.len() {
            let request = [wait(rank).as_slice(), &ping].concat();
            self.fleet
                .links()
                .ask(rank, &request, requests::HELLO_REPLY.len())?;
        }
        self.fleet
            .run(|links, _, reply| expect(links, "PING", reply, requests::HELLO_REPLY))
    }

    /// Deletes the round's keys and closes all connections. Returns when the server has noticed, which the
    /// answer to a new connection proves.
    fn leave(mut self, setting: &Setting) -> Result<(), Failure> {
        for key in &self.keys {
            self.fleet.call(0, &requests::delete(key), 8)?;
        }
        drop(self.fleet);
        let mut newcomer = setting.fleet(1, None)?;
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
    links: &Links,
    request: &'static str,
    reply: &[u8],
    expected: [u8; N],
) -> Result<(), Failure> {
    if reply == expected {
        return Ok(());
    }
    Err(links.wrong_answer(request, format!("{reply:02x?}")))
}
