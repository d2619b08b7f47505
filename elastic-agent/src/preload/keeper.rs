//! The thread that keeps a template, and hands out the workers that it forks.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, printable};
use crossbeam_channel::{Receiver, Sender, bounded, select, unbounded};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::process::Pid;

use super::forks::ForkedWorkers;
use super::life::{Effect, Input, Life};
use super::packet::{self, REPLY_BYTES_MAX, Received, Reply};

use super::options::{NotForked, TemplatePlan};
use super::process::{Subreaper, Template};
use crate::output::LineSplitter;
use crate::threads::{Cancelled, JoinedThread};

const THREAD: &str = "preload";

/// How often a template that a start waits for is checked for having been stopped.
const STALL_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The most characters that are shown of a line that a template prints.
const LINE_CHARS_MAX: usize = 1000;

/// How long workers that were asked for ahead are of use. Later, sources may have changed.
const AHEAD_MAX: Duration = Duration::from_secs(5);

/// A template and its thread, `preload`. Dropping it ends both, and workers that wait at their gate.
#[derive(Debug)]
pub(crate) struct Preloader {
    commands: Sender<Command>,
    wake: PipeWriter,
    thread: JoinedThread,
    is_required: bool,
    /// When workers were asked for ahead, and where they arrive.
    ahead: Option<(Instant, Receiver<Answer>)>,
}

type Answer = Result<ForkedWorkers, String>;

#[derive(Debug)]
enum Command {
    Fork(Sender<Answer>),
    Cancel,
    Stop,
}

impl Preloader {
    /// Starts the thread, which starts the template.
    ///
    /// # Errors
    /// An error of the operating system if it has no thread or descriptor left.
    pub(crate) fn start(plan: TemplatePlan) -> io::Result<Self> {
        let (commands, received) = unbounded();
        let (woken, wake) = io::pipe()?;
        ioctl_fionbio(&woken, true)?;
        ioctl_fionbio(&wake, true)?;
        let is_required = plan.preload.is_required;
        let thread = JoinedThread::start(THREAD, move || {
            Keeper::new(plan).run(&received, &woken);
        })?;
        Ok(Self {
            commands,
            wake,
            thread,
            is_required,
            ahead: None,
        })
    }

    /// Whether workers must not start without a template.
    pub(crate) const fn is_required(&self) -> bool {
        self.is_required
    }

    /// Asks for the workers of a start that follows in a moment, so that they are forked while others stop. Does not
    /// block.
    pub(crate) fn fork_ahead(&mut self) {
        self.ahead = Some((Instant::now(), self.ask()));
    }

    /// Workers at their gate, as many as the plan says. Blocks while the template imports and forks: for at most two
    /// minutes, or until `stop` ends it.
    ///
    /// # Errors
    /// [`NotForked`] with the reason why there are no forked workers.
    pub(crate) fn fork(&mut self, stop: &Cancel) -> Result<ForkedWorkers, NotForked> {
        let ahead = self.ahead.take();
        let ahead = ahead.filter(|(asked_at, _)| asked_at.elapsed() < AHEAD_MAX);
        let answered = ahead.map_or_else(|| self.ask(), |(_, answered)| answered);
        let stopped = Cancelled::of(stop);
        select! {
            recv(answered) -> answer => match answer {
                Ok(answer) => answer.map_err(NotForked::Declined),
                Err(_) => Err(NotForked::Declined(format!("thread {THREAD} has ended"))),
            },
            recv(stopped.receiver) -> _ => {
                self.send(Command::Cancel);
                Err(NotForked::Interrupted)
            }
        }
    }

    fn ask(&self) -> Receiver<Answer> {
        let (answer, answered) = bounded(1);
        self.send(Command::Fork(answer));
        answered
    }

    fn send(&self, command: Command) {
        // Fails when the thread has panicked.
        let _ = self.commands.send(command);
        // Fails when the pipe is full, which wakes as well.
        let _ = (&self.wake).write(&[0]);
    }
}

impl Drop for Preloader {
    fn drop(&mut self) {
        self.send(Command::Stop);
        self.thread.join();
    }
}

/// The state of the thread.
struct Keeper {
    plan: TemplatePlan,
    life: Life,
    template: Option<Template>,
    lines: LineSplitter,
    is_output_open: bool,
    began: Instant,
    /// While a fork is under way.
    fork: Option<Fork>,
    workers: Option<ForkedWorkers>,
    /// Whether workers of this template were handed out.
    has_given: bool,
    answer: Option<Sender<Answer>>,
}

/// A fork that is under way.
struct Fork {
    gate: OwnedFd,
    workers: Vec<Pid>,
    _subreaper: Subreaper,
}

impl Keeper {
    fn new(plan: TemplatePlan) -> Self {
        let now = Instant::now();
        Self {
            life: Life::new(
                u32::try_from(plan.workers).unwrap_or(u32::MAX),
                plan.preload.has_standbys,
                now,
            ),
            plan,
            template: None,
            lines: LineSplitter::default(),
            is_output_open: false,
            began: now,
            fork: None,
            workers: None,
            has_given: false,
            answer: None,
        }
    }

    fn run(mut self, commands: &Receiver<Command>, mut woken: &PipeReader) {
        self.carry_out(vec![Effect::Spawn]);
        loop {
            self.wait(woken);
            // Wakes are not counted: all commands are taken.
            let _ = woken.read(&mut [0; 64]);
            while let Ok(command) = commands.try_recv() {
                match command {
                    Command::Fork(answer) => {
                        self.answer = Some(answer);
                        if self.workers.as_ref().is_some_and(|it| !it.are_alive()) {
                            self.step(Input::StandbysEnded);
                        }
                        self.step(Input::Asked);
                    }
                    Command::Cancel => {
                        self.answer = None;
                        self.step(Input::Cancelled);
                    }
                    Command::Stop => {
                        self.workers = None;
                        let has_group = self.has_group();
                        if let Some(template) = self.template.take() {
                            template.close(has_group);
                        }
                        return;
                    }
                }
            }
            self.show_output();
            self.receive();
            if self.life.is_waiting() && self.template.as_ref().is_some_and(Template::is_stopped) {
                self.step(Input::Stalled("a signal has stopped the template"));
            }
            self.step(Input::Tick);
        }
    }

    /// Waits until there is something to do.
    fn wait(&self, woken: &PipeReader) {
        let now = Instant::now();
        let mut left = self
            .life
            .deadline()
            .map(|at| at.saturating_duration_since(now));
        if self.life.is_waiting() {
            left = Some(left.map_or(STALL_CHECK_INTERVAL, |left| left.min(STALL_CHECK_INTERVAL)));
        }
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let mut watched = vec![PollFd::new(woken, PollFlags::IN)];
        if let Some(template) = &self.template {
            watched.push(PollFd::from_borrowed_fd(template.control(), PollFlags::IN));
            if self.is_output_open {
                watched.push(PollFd::new(template.output(), PollFlags::IN));
            }
        }
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // Out of memory.
            Err(_) => std::thread::sleep(STALL_CHECK_INTERVAL),
        }
    }

    fn show_output(&mut self) {
        let Some(template) = &self.template else {
            return;
        };
        let mut buffer = [0; 4096];
        while self.is_output_open {
            match template.output().read(&mut buffer) {
                Ok(length @ 1..) => self.lines.push(&buffer[..length], show),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(_) | Err(_) => self.is_output_open = false,
            }
        }
    }

    fn receive(&mut self) {
        let mut buffer = vec![0; REPLY_BYTES_MAX];
        while let Some(template) = &self.template {
            let input = match packet::receive(template.control(), &mut buffer) {
                Received::Nothing => return,
                Received::Packet(packet) => match Reply::parse(packet) {
                    Some(reply) => self.reply(reply),
                    None => {
                        Input::Reply(Reply::Refused("the template answers nonsense".to_owned()))
                    }
                },
                Received::End => {
                    self.show_output();
                    Input::Ended(self.end_template())
                }
            };
            self.step(input);
        }
    }

    /// Notes forked workers, and checks that they are children of this process.
    fn reply(&mut self, reply: Reply) -> Input {
        match &reply {
            Reply::Ready(seconds) => log::debug!(
                "the modules are imported after {:.1} s: {}",
                self.began.elapsed().as_secs_f64(),
                seconds.join(", ")
            ),
            Reply::Forked(pids) => {
                if let Some(fork) = &mut self.fork {
                    fork.workers = pids.iter().copied().filter_map(Pid::from_raw).collect();
                }
            }
            Reply::Adopted => {
                if let Some(fork) = self.fork.take() {
                    let workers = ForkedWorkers::new(fork.gate, fork.workers);
                    if !workers.are_alive() {
                        workers.disown();
                        let why = "this system does not give forked workers to the launcher";
                        return Input::Reply(Reply::Refused(why.to_owned()));
                    }
                    self.workers = Some(workers);
                }
            }
            Reply::Changed(_) => self.fork = None,
            _ => {}
        }
        Input::Reply(reply)
    }

    fn step(&mut self, input: Input) {
        let effects = self.life.step(Instant::now(), input);
        self.carry_out(effects);
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Spawn => {
                    self.began = Instant::now();
                    self.has_given = false;
                    self.lines = LineSplitter::default();
                    match Template::spawn(&self.plan) {
                        Ok(template) => {
                            self.template = Some(template);
                            self.is_output_open = true;
                        }
                        Err(error) => {
                            let program = self.plan.program.display();
                            self.step(Input::NotSpawned(format!(
                                "cannot start {program}: {error}"
                            )));
                        }
                    }
                }
                Effect::Kill => {
                    self.end_template();
                }
                Effect::Fork => {
                    if let Err(error) = self.fork() {
                        let why = format!("cannot ask for workers: {error}");
                        self.step(Input::Reply(Reply::Refused(why)));
                    }
                }
                // A template that does not get this does not answer in time, or its end is noticed.
                Effect::Check => {
                    if let Some(template) = &self.template {
                        let _ = packet::send_at_once(template.control(), packet::CHECK, &[]);
                    }
                }
                Effect::Give => {
                    if let (Some(answer), Some(workers)) = (self.answer.take(), self.workers.take())
                    {
                        self.has_given = true;
                        let _ = answer.send(Ok(workers));
                    }
                }
                Effect::Decline(why) => {
                    if let Some(answer) = self.answer.take() {
                        let _ = answer.send(Err(why));
                    }
                }
                Effect::Discard => self.workers = None,
                Effect::Warn(text) => log::warn!("preload: {text}"),
            }
        }
    }

    fn fork(&mut self) -> io::Result<()> {
        let Some(template) = &self.template else {
            return Err(io::Error::other("there is no template"));
        };
        let (gate, far) = packet::pair()?;
        let subreaper = Subreaper::set()?;
        let packet = packet::fork(self.plan.workers);
        packet::send_at_once(template.control(), &packet, &[far.as_fd()])?;
        self.fork = Some(Fork {
            gate,
            workers: Vec::new(),
            _subreaper: subreaper,
        });
        Ok(())
    }

    /// Whether the template's process group has what it or an import has started, and no worker that runs.
    fn has_group(&self) -> bool {
        self.fork.is_some() || !self.has_given
    }

    /// Ends the template, and with it a fork that is under way. Returns how the template ended.
    fn end_template(&mut self) -> String {
        let has_group = self.has_group();
        let how = self.template.take().map(|it| it.end(has_group));
        // The forked processes have exited by now, so they are reaped here.
        self.fork = None;
        how.unwrap_or_default()
    }
}

/// Shows a line that the template or an import has printed.
fn show(line: &str) {
    if !line.trim().is_empty() {
        log::warn!("preload: {}", printable(line, LINE_CHARS_MAX));
    }
}
