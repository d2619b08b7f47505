//! Goodput of a training job under faults: the share of its time in which it makes progress.
//!
//! `plan` decides on the times of faults, and `account` computes the results of a history; neither has a clock or a
//! process. `job` starts the processes, and `hosts` gives each node a separate network. docs/reports/faults/README.md
//! has the results.

mod account;
mod history;
mod hosts;
mod job;
mod plan;
mod records;
mod scheduler;
mod sides;
mod table;
mod training;

use std::fs::{self, File};
use std::io::{BufReader, Write as _, stdin};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::{Args, Subcommand, value_parser};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::history::{History, Setting, SideHistory};
use self::job::Job;
use self::plan::plan;
use self::sides::{Side, Tools};
use self::training::Training;
use crate::failure::{Context as _, Failure};
use crate::report::print;

const TICK: Duration = Duration::from_millis(5);

/// The interval between two readings of the ranks' output.
const READ_INTERVAL_MS: u64 = 250;

/// How long a job may take to begin: with 8 imports of PyTorch, on a busy machine.
const START_TIMEOUT_MS: u64 = 300_000;

/// The time from the first step to the undisturbed stretch, and the length of the stretch.
const SETTLING_MS: u64 = 5000;
const CALM_MS: u64 = 20_000;

/// How long a job may take to end.
const END_TIMEOUT_MS: u64 = 120_000;

#[derive(Debug, Args)]
pub(super) struct GoodputArgs {
    #[command(subcommand)]
    command: Option<GoodputCommand>,
    /// The sides to measure, one after the other.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Side::Torchrun, Side::Plain, Side::Preload, Side::Everything])]
    sides: Vec<Side>,
    /// How long each side is disturbed.
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// How long a step takes at least. On few processors more than 20 ms, so that their speed does not decide how long it takes.
    #[arg(long, default_value_t = 20, value_name = "MS", value_parser = value_parser!(u64).range(1..=50))]
    step_ms: u64,
    /// Repeats the faults of a run. [default: a random seed]
    #[arg(long)]
    seed: Option<u64>,
    /// All nodes on the loopback interface, as without root: leaves out faults of links and of the disk.
    #[arg(long)]
    loopback: bool,
    /// The command `c10d`.
    #[arg(long, default_value = "target/dist/c10d")]
    c10d: PathBuf,
    /// A Python that has PyTorch 2.14 or later, and for `everything` the package c10d_rs.
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// Writes what happened to this file, for `check`.
    #[arg(long)]
    history: Option<PathBuf>,
    /// Copies the logs of launchers and servers to this folder.
    #[arg(long)]
    logs: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum GoodputCommand {
    /// Counts and checks what happened in an earlier run.
    Check {
        /// The file of --history; `-` reads standard input.
        history: PathBuf,
    },
}

/// Fails if a law does not hold. Figures fail nothing.
pub(super) fn run(args: &GoodputArgs) -> Result<(), Failure> {
    let mut history = History::default();
    let measured = match &args.command {
        Some(GoodputCommand::Check { history: path }) => read(path).map(|it| history = it),
        None => measure(args, &mut history),
    };
    if history.sides.is_empty() {
        return measured;
    }
    // The sides before the failed side are complete.
    let mut training = Training::default();
    let accounts: Vec<_> = history
        .sides
        .iter()
        .map(|side| account::account(side, &mut training))
        .collect();
    print(&table::markdown(&history, &accounts))?;
    let broken: usize = accounts.iter().map(|it| it.violations.len()).sum();
    measured?;
    match broken {
        0 => Ok(()),
        _ => Err(Failure::check(format!(
            "{broken} violations, with the seed {}",
            history.setting.seed
        ))),
    }
}

fn read(path: &Path) -> Result<History, Failure> {
    if path == Path::new("-") {
        return History::read(stdin().lock());
    }
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    History::read(BufReader::new(file))
}

/// Adds each side when it is complete.
fn measure(args: &GoodputArgs, history: &mut History) -> Result<(), Failure> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let length = Duration::from_secs(60 * args.minutes);
    let absolute = |path: &Path| -> Result<PathBuf, Failure> {
        // A name without a folder is looked up by the system.
        match path.parent() {
            Some(folder) if folder != Path::new("") => {
                std::path::absolute(path).with_context(|| format!("cannot find {}", path.display()))
            }
            _ => Ok(path.to_owned()),
        }
    };
    let tools = Tools {
        c10d: absolute(&args.c10d)?,
        python: absolute(&args.python)?,
        worker: PathBuf::new(),
        step_ms: args.step_ms,
    };
    let is_ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_ended))
            .context("cannot handle signals")?;
    }
    history.setting = Setting {
        seed,
        minutes: length.as_secs() / 60,
        step_ms: args.step_ms,
        notes: vec![versions(&tools), machine()],
    };
    // Written before hours of measuring, so that an unwritable file is detected now.
    write(args, history)?;
    if let Some(folder) = &args.logs {
        fs::create_dir_all(folder).context("cannot make the folder of --logs")?;
    }
    say(format_args!(
        "seed {seed}, {} minutes a side",
        history.setting.minutes
    ));
    let mut training = Training::default();
    for side in &args.sides {
        let mut measurement = Measurement {
            job: Job::start(*side, &tools, args.loopback)?,
            training: &mut training,
            is_ended: &is_ended,
            read_at_ms: 0,
        };
        let outcome = measurement.run(seed, length);
        let copied = args.logs.as_ref().map_or(Ok(()), |folder| {
            copy_logs(&measurement.job.logs(), &folder.join(side.text()))
        });
        history.sides.push(outcome?);
        write(args, history)?;
        copied?;
    }
    Ok(())
}

fn write(args: &GoodputArgs, history: &History) -> Result<(), Failure> {
    let Some(path) = &args.history else {
        return Ok(());
    };
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()));
    history.write(file?)
}

/// The versions of the measured programs.
fn versions(tools: &Tools) -> String {
    let first_line = |program: &Path, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        let text = output.map(|it| String::from_utf8_lossy(&it.stdout).into_owned());
        let text = text.unwrap_or_else(|error| error.to_string());
        text.lines().next().unwrap_or("no version").to_owned()
    };
    let torch = "import torch; print('PyTorch', torch.__version__)";
    let [c10d, torch] = [
        first_line(&tools.c10d, &["--version"]),
        first_line(&tools.python, &["-c", torch]),
    ];
    format!("{c10d}, {torch}")
}

/// The state of this machine. Other load affects all figures.
fn machine() -> String {
    let cores = thread::available_parallelism().map_or(0, NonZero::get);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default().to_owned();
    format!("{cores} processors, load {load} before")
}

fn say(text: std::fmt::Arguments<'_>) {
    // These lines are not essential, so errors are ignored.
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn copy_logs(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::create_dir_all(to).context("cannot make a folder")?;
    for entry in fs::read_dir(from)
        .context("cannot read a folder")?
        .flatten()
    {
        fs::copy(entry.path(), to.join(entry.file_name())).context("cannot copy a log")?;
    }
    Ok(())
}

struct Measurement<'m> {
    job: Job,
    training: &'m mut Training,
    is_ended: &'m AtomicBool,
    read_at_ms: u64,
}

impl Measurement<'_> {
    fn run(&mut self, seed: u64, length: Duration) -> Result<SideHistory, Failure> {
        let is_whole = self.until(START_TIMEOUT_MS, Job::is_whole)?;
        if !is_whole {
            return Err(Failure::new("the job does not begin: see --logs"));
        }
        self.until(SETTLING_MS, |_| false)?;
        let calm = self.job.now_ms();
        self.until(CALM_MS, |_| false)?;
        let begin = self.job.now_ms();
        let mut faults = Vec::new();
        let mut left_out = Vec::new();
        for fault in plan(seed, length) {
            if !self.job.abilities().allow(fault.kind) {
                left_out.push(fault.kind);
                continue;
            }
            self.until_ms(begin + fault.at_ms, |_| false)?;
            self.read()?;
            let record = self.job.disturb(&fault)?;
            say(format_args!(
                "{} s: {}: {}",
                record.at_ms / 1000,
                record.kind.text(),
                record.what
            ));
            faults.push(record);
        }
        self.until_ms(begin + length.as_millis() as u64, |_| false)?;
        let end = self.job.now_ms();
        self.job.finish()?;
        let has_finished = self.until(END_TIMEOUT_MS, Job::is_over)?;
        self.read()?;
        Ok(SideHistory {
            calm_ms: (calm, begin),
            measured_ms: (begin, end),
            has_finished,
            left_out,
            faults,
            ..self.job.history()
        })
    }

    /// Goes on until something is so, which is returned, or the time is over.
    fn until(&mut self, length_ms: u64, is_so: impl Fn(&Job) -> bool) -> Result<bool, Failure> {
        self.until_ms(self.job.now_ms() + length_ms, is_so)
    }

    fn until_ms(&mut self, end_ms: u64, is_so: impl Fn(&Job) -> bool) -> Result<bool, Failure> {
        while self.job.now_ms() < end_ms {
            if self.is_ended.load(Ordering::Relaxed) {
                return Err(Failure::new("ended by a signal"));
            }
            self.job.advance()?;
            if self.job.now_ms() >= self.read_at_ms {
                self.read()?;
                if is_so(&self.job) {
                    return Ok(true);
                }
            }
            thread::sleep(TICK);
        }
        Ok(false)
    }

    fn read(&mut self) -> Result<(), Failure> {
        self.job.read(self.training)?;
        self.read_at_ms = self.job.now_ms() + READ_INTERVAL_MS;
        Ok(())
    }
}
