//! `c10d-bench soak`: servers and a job that run all the time, thousands of short jobs beside them, and what grows.
//!
//! Jobs are started by the clock, at most four at a time. Before each sample no new one is started until all have
//! ended, so that what is counted then is what ended jobs have left.

mod job;
mod long_job;
mod long_lived;
mod measures;
mod member;
mod mix;
mod programs;
mod sampling;
mod schedule;
mod verdict;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::Signal;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Context as _, Failure};
use crate::output::{print, print_line};
use job::{Folders, Job, Outcome};
use long_job::LongJob;
use long_lived::LongLived;
use measures::Csv;
pub(crate) use member::run as run_member;
use mix::{Place, plan};
pub(crate) use programs::CommandArgs;
use programs::{Programs, files_below};
use sampling::{Moment, Sampler};
use schedule::Schedule;

/// Jobs that run at a time.
const JOBS_MAX: usize = 4;

/// How long processes of a job may outlive it, on a busy machine: its guardian kills them.
const LEFTOVERS_TIMEOUT: Duration = Duration::from_secs(30);

/// The pause between two looks at the running jobs.
const TICK: Duration = Duration::from_millis(10);

/// Failures that are printed.
const SHOWN_MAX: usize = 20;

/// Runs short jobs against servers that run all the time, and finds what grows: memory, descriptors, threads, files,
/// processes, logs. Exit code 1 if something does.
#[derive(Debug, Args)]
pub(crate) struct SoakArgs {
    /// How long, in hours.
    #[arg(long, default_value_t = 8.0, value_parser = positive)]
    hours: f64,

    /// How long, in minutes, in place of hours.
    #[arg(long, conflicts_with = "hours", value_parser = positive)]
    minutes: Option<f64>,

    /// How many short jobs run, evenly over that time.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    jobs: u64,

    /// Repeats the jobs, in the same order, and the events of the long job. [default: a random one, which is printed]
    #[arg(long)]
    seed: Option<u64>,

    /// How often the store and the relay are restarted, in minutes. [default: an eighth of the run]
    #[arg(long, value_name = "MINUTES", value_parser = positive)]
    restart_every: Option<f64>,

    /// Restarts by SIGKILL instead of SIGTERM.
    #[arg(long)]
    kill: bool,

    /// The measured command. [default: $C10D, or c10d where this program is]
    #[arg(long, value_name = "FILE")]
    c10d: Option<PathBuf>,

    /// A new directory for stores and logs, which stays. [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Writes all samples to this file, those of the warm-up too.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// While this file exists, no job starts and the time stands still: for a machine that others measure on.
    #[arg(long, value_name = "FILE")]
    pause_file: Option<PathBuf>,

    /// Prints one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// An absolute path, as processes compare it with theirs. Stores that have served jobs would refuse the new ones.
fn new_directory(path: &Path) -> Result<PathBuf, Failure> {
    let path = std::path::absolute(path).context("--dir")?;
    match path.read_dir().map(|mut it| it.next().is_none()) {
        Ok(false) => Err(Failure::usage(format!("{} is not empty", path.display()))),
        _ => Ok(path),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if number > 0.0 && number <= 10_000.0 => Ok(number),
        Ok(_) => Err("must be more than 0 and at most 10000".to_owned()),
        Err(error) => Err(format!("{error}")),
    }
}

fn minutes(number: f64) -> Duration {
    Duration::from_secs_f64(number * 60.0)
}

impl SoakArgs {
    fn duration(&self) -> Duration {
        minutes(self.minutes.unwrap_or(self.hours * 60.0))
    }
}

pub(crate) fn run(args: &SoakArgs) -> Result<(), Failure> {
    let mut soak = Soak::start(args)?;
    let ran = soak.run();
    let grows = soak.report(args.json)?;
    ran?;
    match grows.is_empty() {
        true => Ok(()),
        false => Err(Failure::check(grows.join("; "))),
    }
}

struct Soak<'a> {
    args: &'a SoakArgs,
    seed: u64,
    schedule: Schedule,
    programs: Programs,
    folders: Folders,
    directory: PathBuf,
    jobs: Vec<Job>,
    /// Dropped before the stores; `None` once it has ended.
    long_job: Option<LongJob>,
    relay: LongLived,
    durable: LongLived,
    memory: LongLived,
    is_ended: Arc<AtomicBool>,
    started: u64,
    /// By kind.
    ended: BTreeMap<&'static str, u64>,
    otherwise: Vec<String>,
    otherwise_count: u64,
    sampler: Sampler,
    csv: Option<File>,
    /// The time of the run, without pauses.
    now: Duration,
    /// Last, so that the directory outlives all that uses it.
    _temporary: Option<tempfile::TempDir>,
}

impl<'a> Soak<'a> {
    fn start(args: &'a SoakArgs) -> Result<Self, Failure> {
        let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
        log::warn!("--seed={seed}");
        let (directory, temporary) = match &args.dir {
            Some(directory) => (new_directory(directory)?, None),
            None => {
                let made = tempfile::Builder::new().prefix("c10d-soak-").tempdir();
                let made = made.context("cannot make a directory")?;
                (made.path().to_owned(), Some(made))
            }
        };
        let temporary_files = directory.join("tmp");
        let made = std::fs::create_dir_all(&temporary_files);
        made.with_context(|| format!("cannot make {}", directory.display()))?;
        let csv = args.csv.as_ref().map(|path| -> Result<File, Failure> {
            let mut file = File::create(path).with_context(|| path.display().to_string())?;
            file.write_all(Csv::HEADING.as_bytes())?;
            Ok(file)
        });
        let is_ended = Arc::new(AtomicBool::new(false));
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&is_ended))
                .context("cannot handle signals")?;
        }
        let programs = Programs::find(args.c10d.as_deref(), temporary_files)?;
        let folders = Folders::new(&directory)?;
        let store = |name, words: &[&str]| {
            let log = directory.join(format!("{name}.log"));
            let words = [&["store", "serve"], words].concat();
            LongLived::start(
                &programs,
                name,
                log,
                &words,
                &["--host={host}", "--port={port}"],
            )
        };
        let dir = format!("--dir={}", directory.join("store").display());
        let durable = store("store with a directory", &[&dir])?;
        let memory = store("store in memory", &[])?;
        let relay = LongLived::start(
            &programs,
            "relay",
            directory.join("relay.log"),
            &["relay", "--upstream", &durable.address],
            &["--listen={host}:{port}"],
        )?;
        let long_job = LongJob::start(
            &programs,
            &directory,
            &durable.address,
            &relay.address,
            seed,
        )?;
        Ok(Self {
            args,
            seed,
            schedule: Schedule::new(args.duration(), args.restart_every.map(minutes)),
            programs,
            folders,
            jobs: Vec::new(),
            long_job: Some(long_job),
            relay,
            durable,
            memory,
            is_ended,
            started: 0,
            ended: BTreeMap::new(),
            otherwise: Vec::new(),
            otherwise_count: 0,
            sampler: Sampler::default(),
            csv: csv.transpose()?,
            now: Duration::ZERO,
            directory,
            _temporary: temporary,
        })
    }

    fn run(&mut self) -> Result<(), Failure> {
        let schedule = self.schedule;
        let (mut sample, mut event, mut restart) =
            (schedule.sample, schedule.event, schedule.restart);
        let mut restarts = 0_u32;
        let mut drains = false;
        let mut last = Instant::now();
        while self.now < schedule.duration || !self.jobs.is_empty() {
            thread::sleep(TICK);
            if self.is_ended.load(Ordering::Relaxed) {
                return Err(Failure::new(
                    "ended by a signal: the table is of the time until then",
                ));
            }
            let elapsed = last.elapsed();
            last += elapsed;
            self.advance_jobs()?;
            if let Some(job) = &mut self.long_job {
                job.reap()?;
            }
            if self
                .args
                .pause_file
                .as_ref()
                .is_some_and(|file| file.exists())
            {
                continue;
            }
            self.now += elapsed;
            if drains && self.jobs.is_empty() {
                self.sample()?;
                (drains, sample) = (false, self.now + schedule.sample);
            }
            drains |= self.now >= sample;
            if self.now >= schedule.duration {
                continue;
            }
            if self.now >= event {
                event += schedule.event;
                if let Some(job) = &mut self.long_job {
                    job.disturb(&self.programs)?;
                }
            }
            if self.now >= restart {
                restart += schedule.restart;
                restarts += 1;
                self.restart_server(restarts)?;
            }
            if !drains {
                self.start_job()?;
            }
        }
        self.sample()?;
        self.end()
    }

    fn restart_server(&mut self, number: u32) -> Result<(), Failure> {
        let signal = if self.args.kill {
            Signal::KILL
        } else {
            Signal::TERM
        };
        let server = if number.is_multiple_of(2) {
            &mut self.relay
        } else {
            &mut self.durable
        };
        log::info!("restarting the {}", server.name);
        server.restart(&self.programs, signal)
    }

    /// Starts the next job if it is due and there is room.
    fn start_job(&mut self) -> Result<(), Failure> {
        let due = self.now.as_secs_f64() / self.schedule.duration.as_secs_f64();
        if self.started as f64 >= due * self.args.jobs as f64 || self.jobs.len() >= JOBS_MAX {
            return Ok(());
        }
        let plan = plan(self.seed, self.started);
        let takes_turns = plan.kind.shares_the_store();
        if takes_turns && self.jobs.iter().any(|job| job.plan.kind.shares_the_store()) {
            return Ok(());
        }
        let place = match plan.place {
            Place::Durable => &self.durable,
            Place::Relayed => &self.relay,
            Place::Memory => &self.memory,
        };
        let job = Job::start(&self.programs, &self.folders, plan, &place.address)?;
        self.jobs.push(job);
        self.started += 1;
        Ok(())
    }

    fn advance_jobs(&mut self) -> Result<(), Failure> {
        let mut running = Vec::new();
        for mut job in self.jobs.drain(..) {
            let Some(outcome) = job.advance(&self.programs, &self.folders)? else {
                running.push(job);
                continue;
            };
            *self.ended.entry(job.plan.kind.name()).or_default() += 1;
            if let Outcome::Otherwise(why) = outcome {
                log::warn!("{why}");
                self.otherwise_count += 1;
                if self.otherwise.len() < SHOWN_MAX {
                    self.otherwise.push(why);
                }
            }
        }
        self.jobs = running;
        Ok(())
    }

    /// No job runs.
    fn sample(&mut self) -> Result<(), Failure> {
        for server in [&mut self.durable, &mut self.memory, &mut self.relay] {
            if let Some(status) = server.ended() {
                let log = server.log.display();
                return Err(Failure::check(format!(
                    "the {} ended: {status}; its log is {log}",
                    server.name
                )));
            }
        }
        let left = self.left("job-");
        let moment = Moment {
            seconds: self.now.as_secs_f64(),
            jobs: self.ended.values().sum(),
            counts: self.now >= self.schedule.warm_up,
            // Half of its life: caches fill.
            warm_up: self.schedule.restart,
        };
        let (sampler, programs) = (&mut self.sampler, &self.programs);
        let store = self.directory.join("store");
        sampler.store(moment, programs, &self.durable, Some(&store))?;
        sampler.store(moment, programs, &self.memory, None)?;
        sampler.server(moment, &self.relay);
        let workers_store = programs.workers_store(long_job::OWNER);
        for launcher in self.long_job.iter().flat_map(|job| &job.staying) {
            sampler.launcher(moment, programs, launcher, workers_store.as_ref())?;
        }
        sampler.leftovers(
            moment,
            programs,
            &self.folders.logs,
            left,
            self.otherwise_count,
        );
        log::info!("{:.0} s, {} jobs", moment.seconds, moment.jobs);
        self.write_csv()
    }

    /// Waits until no process of these owners runs, for as long as a guardian may take; how many do then.
    fn left(&self, owners: &str) -> usize {
        let began = Instant::now();
        loop {
            let running = self.programs.running();
            let left: Vec<_> = running
                .iter()
                .filter(|it| it.1.starts_with(owners))
                .collect();
            if left.is_empty() || began.elapsed() > LEFTOVERS_TIMEOUT {
                for (process, owner) in &left {
                    log::warn!("process {} of {owner} still runs", process.0);
                }
                return left.len();
            }
            thread::sleep(TICK);
        }
    }

    fn end(&mut self) -> Result<(), Failure> {
        if let Some(job) = self.long_job.take() {
            let events = job.events;
            log::info!("the long job: {events:?}");
            job.end()?;
        }
        let left = self.left("job-") + self.left(long_job::OWNER);
        let (files, _) = files_below(&self.programs.temporary);
        let moment = Moment {
            seconds: self.now.as_secs_f64(),
            jobs: self.ended.values().sum(),
            counts: true,
            warm_up: Duration::ZERO,
        };
        self.sampler.at_end(moment, left, files);
        self.write_csv()
    }

    fn write_csv(&mut self) -> Result<(), Failure> {
        let lines = self.sampler.csv.take();
        match &mut self.csv {
            Some(file) => file.write_all(lines.as_bytes()).context("--csv"),
            None => Ok(()),
        }
    }

    /// Prints it; returns what grows.
    fn report(&self, as_json: bool) -> Result<Vec<String>, Failure> {
        let measures = &self.sampler.measures;
        let grows = measures.that_grow();
        let jobs: u64 = self.ended.values().sum();
        let minutes = self.now.as_secs_f64() / 60.0;
        if as_json {
            print_line(json!({
                "seed": self.seed,
                "minutes": minutes,
                "jobs": jobs,
                "jobs_by_kind": self.ended,
                "measures": measures.json(),
                "ended_otherwise": self.otherwise,
                "grows": grows,
            }))?;
            return Ok(grows);
        }
        let mut text = format!(
            "{jobs} jobs in {minutes:.1} minutes, --seed={}\n",
            self.seed
        );
        text.push_str(&measures.table());
        for (kind, count) in &self.ended {
            text.push_str(&format!("note: {count} jobs: {kind}\n"));
        }
        for why in &self.otherwise {
            text.push_str(&format!("note: {why}\n"));
        }
        print(&text)?;
        Ok(grows)
    }
}
