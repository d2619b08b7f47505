//! `c10d run`: launches the workers of one node, as torchrun does.
//!
//! Combines the options, a rendezvous (`elastic-rendezvous`) and an agent (`elastic-agent`). Handles what
//! users see: signals, progress, the report on failures, exit codes.

mod announce;
mod blame;
mod debug_server;
pub(crate) mod devices;
mod dry_run;
mod events;
mod exit_deadline;
mod explain;
mod happenings;
mod headings;
mod health_port;
mod hint;
mod hosted;
mod leaving;
pub(crate) mod options;
mod own_address;
mod preflight;
mod private_directory;
mod processes;
mod progress;
mod report;
mod scheduler;
mod signals;
mod spoken;
mod stop_control;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use c10d_inspect::Report;
use c10d_inspect::http::StatusOptions;
use c10d_inspect::report_text::TextStyle;
use c10d_socket::{Credentials, Deadline, HostPort};
use elastic_agent::{
    AgentError, AgentOptions, AgentOutcome, ElasticAgent, ErrorFileError, Failures, LogOptions,
    ProgressOptions, StartError, StreamMap, write_error_file,
};
use elastic_rendezvous::this_host::{self, Resolver, SystemResolver, names_this_host};
use elastic_rendezvous::{
    Endpoint, RendezvousError, RendezvousHandler, RendezvousParameters, RendezvousRegistry,
    RendezvousSettings,
};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::output::print_line;
use crate::terminal;
use announce::{Announcer, NodeIdentity};
use debug_server::DebugServers;
use events::{JobNames, Recorder};
use explain::Explainer;
use health_port::HealthPort;
use hosted::Hosted;
use options::{RunOptions, RunPlan, Surroundings};
use private_directory::PrivateDirectory;
use scheduler::Site;
use stop_control::StopControl;

/// The default of RUST_LOG: warnings, and events of the whole job.
pub(crate) const LOG_LEVELS: &str = "warn,c10d::run=info,c10d_relay=info,elastic_agent::agent=info,elastic_agent::logs=info,elastic_rendezvous=info";

/// Names the file in which the launcher writes why it failed, as in PyTorch.
const ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";

/// `1` on all nodes: the worker with rank 0 serves the workers' store, instead of an agent.
const DISABLE_SHARED_STORE: &str = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE";

/// `1` on all nodes: all nodes have the same number of workers, so ranks need no exchange.
const IDENTICAL_WORKERS: &str = "TORCH_ELASTIC_WORKER_IDENTICAL";

/// The limit for looking up the host of an endpoint, as in the rendezvous.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the workers of this node until they end, and reports a failure on standard error.
pub(crate) fn run(options: RunOptions) -> ExitCode {
    // Outlives the last output: until then a signal must not end this process before its workers, and must end it even
    // if nobody reads the output.
    let mut control = None;
    let result = run_or_fail(options, &mut control);
    let code = result.unwrap_or_else(|failure| failure.report());
    terminal::finish(
        control
            .as_ref()
            .map_or(terminal::STUCK_MAX, StopControl::stuck_max),
    );
    ExitCode::from(code)
}

/// Returns the exit code. Keeps what handles signals in `control`.
fn run_or_fail(options: RunOptions, control: &mut Option<StopControl>) -> Result<u8, Failure> {
    let variable = |name: &str| std::env::var(name).ok();
    let surroundings = Surroundings {
        variable: &variable,
        count_devices: &|kind| devices::count(kind, Path::new("/"), &variable),
        seed: fastrand::u64(..),
        site: &Site {
            host_name: &host_name,
            full_name: &this_host::full_name,
            read_file: &read_host_file,
            has_address: &has_address,
            is_interactive: io::stdin().is_terminal(),
        },
    };
    let plan = options
        .resolve(&surroundings)
        .map_err(|error| Failure::Usage(error.to_string()))?;
    if plan.dry_run {
        return dry_run(&plan);
    }
    for warning in &plan.warnings {
        log::warn!("{warning}");
    }
    if let Some(line) = dry_run::line(&plan) {
        log::info!("{line}");
    }
    let control = control.insert(StopControl::start(&plan)?);
    let mut report = json!({ "outcome": "error", "failures": [] });
    let result = run_job(&plan, control, &mut report);
    if plan.json {
        report["exit_code"] = match &result {
            Ok(code) => (*code).into(),
            Err(failure) => failure.exit_code().into(),
        };
        if let Err(failure) = &result {
            report["error"] = failure.to_string().into();
        }
        match control.print_line(report) {
            // The exit code of a failed run matters more than a closed standard output.
            Err(failure) if matches!(result, Ok(0)) => return Err(failure),
            _ => {}
        }
    }
    result
}

/// Prints the plan, unless it has an error that is found only when the agent or the rendezvous is created.
fn dry_run(plan: &RunPlan) -> Result<u8, Failure> {
    let is_on = |name: &str| std::env::var(name).is_ok_and(|value| value == "1");
    agent_options(plan, is_on(IDENTICAL_WORKERS))?;
    let parameters = &plan.rendezvous;
    if parameters.backend() == elastic_rendezvous::C10D_BACKEND {
        RendezvousSettings::from_parameters(parameters)
            .map_err(|error| Failure::Usage(error.to_string()))?;
    }
    let resolver = || SystemResolver::new(Deadline::after(Instant::now(), LOOKUP_TIMEOUT));
    let is_host = dry_run::is_host(plan, &|host| names_this_host(host, &resolver()))
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let mut plan = plan.clone();
    // The plan may be for another machine.
    plan.warnings.extend(preflight::missing(&plan));
    match plan.json {
        true => print_line(dry_run::json(&plan, is_host))?,
        false => print_line(dry_run::text(&plan, is_host))?,
    }
    Ok(0)
}

/// Reads a file that names hosts.
fn read_host_file(path: &str) -> io::Result<String> {
    /// More than 65,536 of the longest names.
    const BYTES_MAX: u64 = 32 << 20;
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    let read = File::open(path)?
        .take(BYTES_MAX + 1)
        .read_to_string(&mut text)?;
    match u64::try_from(read).is_ok_and(|bytes| bytes <= BYTES_MAX) {
        true => Ok(text),
        false => Err(io::ErrorKind::FileTooLarge.into()),
    }
}

fn has_address(address: IpAddr) -> bool {
    SystemResolver::new(Deadline::at(Instant::now())).has_address(address)
}

/// Fills in `report` once an agent has run.
fn run_job(plan: &RunPlan, control: &StopControl, report: &mut Value) -> Result<u8, Failure> {
    let is_on = |name: &str| std::env::var(name).is_ok_and(|value| value == "1");
    let credentials = plan.secret.credentials()?;
    let token = credentials.as_ref().and_then(Credentials::http_token);
    // Before this node waits for others.
    let health_port = match plan.health_port {
        Some(port) => Some(HealthPort::open(port).map_err(Failure::system(
            "cannot answer health checks on the port of TORCHELASTIC_HEALTH_CHECK_PORT",
        ))?),
        None => None,
    };
    let mut agent_options = agent_options(plan, is_on(IDENTICAL_WORKERS))?;
    if let Err(failure) = preflight::check(plan, &log_options(plan)?) {
        let text = failure.to_string();
        leave_error_file(|path| write_error_file(path, &text, &text, epoch_seconds()));
        return Err(failure);
    }
    let debug_servers = match plan.debug_server {
        true => {
            Some(DebugServers::prepare(token.clone()).map_err(Failure::system("--debug-server"))?)
        }
        false => None,
    };
    if let Some(servers) = &debug_servers {
        agent_options = servers.add_to(agent_options, worker_environment(plan));
    }
    // Removed when all workers have ended.
    let progress = progress_options(plan)?;
    agent_options = agent_options.with_progress(progress.as_ref().map(|(_, it)| it.clone()));
    // With certificates there is no password for the pages.
    let has_status = plan.has_status && (credentials.is_none() || token.is_some());
    let status = has_status.then(|| {
        StatusOptions::default()
            .with_title(plan.script.to_string_lossy())
            .with_host_names(plan.status_hosts.iter().cloned())
    });
    let hosted = Hosted::new(status, token);
    let mut parameters = with_shared_store(plan.rendezvous.clone(), !is_on(DISABLE_SHARED_STORE))
        .with_server_hook(hosted.hook());
    if let Some(credentials) = credentials {
        parameters = parameters.with_credentials(credentials);
    }
    let events = Recorder::open(&plan.restarts, || JobNames {
        run_id: plan.rendezvous.run_id().to_owned(),
        host: this_host::full_name(),
        role: plan.role.clone(),
        backend: plan.rendezvous.backend().to_owned(),
        entry_point: plan.script.to_string_lossy().into_owned(),
    });
    let events = events.map_err(|error| Failure::Usage(format!("--events: {error}")))?;
    let Some(handler) = open_rendezvous(parameters.clone(), control, events.as_ref())? else {
        let signal = control.signals().stopped_by().unwrap_or_default();
        let name = signals::name_of(signal);
        log::info!("received {name} before the store of the rendezvous answered: ending");
        report["outcome"] = "signalled".into();
        report["signal"] = name.into();
        return Ok(code_of_signal(signal));
    };
    progress::show(&*handler);
    handler.add_listener(spoken::rendezvous_listener(dry_run::shown_endpoint(plan)));
    let mut agent = ElasticAgent::new(agent_options, Arc::clone(&handler))
        .map_err(|error| Failure::Usage(error.to_string()))?;
    if let Some(port) = &health_port {
        port.watch(agent.handle());
    }
    let identity = NodeIdentity {
        host: host_name(),
        pid: std::process::id(),
        run_id: plan.rendezvous.run_id().to_owned(),
        debug_sockets: debug_servers.as_ref().map(|it| it.sockets().to_owned()),
    };
    let cannot_start = || Failure::system("cannot start a thread");
    let proxy = debug_servers.as_ref().map(DebugServers::proxy_address);
    let announcer =
        Announcer::start(identity, proxy, meeting_place(&parameters)).map_err(cannot_start())?;
    let explainer = Explainer::start(
        plan.explain_after,
        plan.debug_server,
        Arc::clone(&hosted),
        announcer.view(),
    )
    .map_err(cannot_start())?;
    hosted.look_at_workers(announcer.flusher());
    handler.add_listener(announcer.rendezvous_listener());
    handler.add_listener(explainer.rendezvous_listener());
    handler.add_listener(happenings::rendezvous_listener(Arc::clone(&hosted)));
    // Before the announcer's: it announces the address that this one makes.
    if let Some(servers) = &debug_servers {
        agent.add_listener(servers.listener());
    }
    agent.add_listener(announcer.listener());
    agent.add_listener(explainer.agent_listener(announcer.flusher()));
    agent.add_listener(happenings::agent_listener(Arc::clone(&hosted)));
    agent.add_listener(spoken::agent_listener(
        Arc::clone(&hosted),
        plan.has_default_threads(),
        plan.is_python && !plan.debug_server,
    ));
    if let Some(events) = &events {
        handler.add_listener(events.rendezvous_listener());
        agent.add_listener(events.agent_listener());
    }
    control.watch(agent.handle());
    let mut result = agent.run();
    let reports = explainer.failure_reports();
    drop(explainer);
    // Announces how the workers ended.
    drop(announcer);
    drop(debug_servers);
    terminal::hide();
    let why = reports
        .as_ref()
        .and_then(|reports| blame::explain(reports, failures_of(&mut result)));
    *report = report::json(&agent, &result, why.as_ref());
    let exit = conclude(plan, &agent, &handler, &result, why.as_ref());
    if let Some(events) = &events {
        events.finish(&result, control.stuck_max());
    }
    hosted.end();
    exit
}

/// The store where the nodes meet, and what it asks for; `None` if they do not meet at a store that listens.
fn meeting_place(parameters: &RendezvousParameters) -> Option<(HostPort, Option<Credentials>)> {
    let is_file = parameters
        .get("store_type")
        .is_some_and(|kind| !kind.trim().eq_ignore_ascii_case("tcp"));
    let endpoint: Endpoint = parameters.endpoint().parse().ok()?;
    let store = endpoint.with_default_port(elastic_rendezvous::DEFAULT_PORT);
    (!is_file && store.port() != 0).then(|| (store, parameters.credentials().cloned()))
}

/// Opens the store of the rendezvous, which can take as long as a join; `None` if a signal arrived meanwhile.
fn open_rendezvous(
    parameters: RendezvousParameters,
    control: &StopControl,
    events: Option<&Recorder>,
) -> Result<Option<Arc<dyn RendezvousHandler>>, Failure> {
    let open = move || RendezvousRegistry::default().create(&parameters);
    let opened = control
        .signals()
        .unless_stopped("rendezvous-open", Duration::ZERO, open)
        .map_err(Failure::system("cannot start a thread"))?;
    let opened = opened.transpose().inspect_err(|error| {
        if let Some(events) = events {
            events.cannot_open(error, control.stuck_max());
        }
    });
    opened.map_err(|error| match error {
        RendezvousError::Parameters(_) | RendezvousError::UnknownBackend { .. } => {
            Failure::Usage(error.to_string())
        }
        error => Failure::No(error.to_string()),
    })
}

/// A shell's exit code of a program that this signal ended.
fn code_of_signal(signal: i32) -> u8 {
    u8::try_from(signal).map_or(1, |signal| signal.saturating_add(128))
}

/// The name that this host has for itself, which PyTorch's workers publish too.
fn host_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

fn failures_of(result: &mut Result<AgentOutcome, AgentError>) -> Option<&mut Failures> {
    match result {
        Ok(
            AgentOutcome::Failed(failures)
            | AgentOutcome::Ended {
                failures: Some(failures),
                ..
            },
        )
        | Err(AgentError::NotRestarted { failures, .. }) => Some(failures),
        _ => None,
    }
}

fn log_options(plan: &RunPlan) -> Result<LogOptions, Failure> {
    let streams = |option: &str, text: &str| -> Result<StreamMap, Failure> {
        text.parse()
            .map_err(|error| Failure::Usage(format!("--{option}: {error}")))
    };
    let ranks = plan.local_ranks_filter.iter().flatten();
    let mut logs = LogOptions::new()
        .with_redirects(streams("redirects", &plan.redirects)?)
        .with_tee(streams("tee", &plan.tee)?)
        .with_local_ranks_filter(ranks.filter_map(|rank| usize::try_from(*rank).ok()))
        .with_stdout_filters(plan.duplicate_stdout_filters.iter().cloned())
        .with_stderr_filters(plan.duplicate_stderr_filters.iter().cloned());
    if let Some(path) = &plan.log_dir {
        logs = logs.with_log_dir(path);
    }
    Ok(logs)
}

fn agent_options(plan: &RunPlan, are_nodes_identical: bool) -> Result<AgentOptions, Failure> {
    let mut options = AgentOptions::new(plan.command.clone(), plan.worker_count)
        .with_name(plan.script.to_string_lossy())
        .with_role(&plan.role)
        .with_restart_rules(plan.restarts.rules.clone())
        .with_shutdown_timeout(plan.shutdown_timeout)
        .with_logs(log_options(plan)?)
        .with_virtual_local_rank(plan.virtual_local_rank)
        .with_identical_nodes(are_nodes_identical)
        .with_relay(plan.has_relay)
        .with_relay_port(plan.relay_port)
        .with_preload(plan.preload.clone().map(|preload| match plan.debug_server {
            true => preload.with_hook(debug_server::START_HOOK),
            false => preload,
        }))
        .with_health_check(plan.health_check.clone())
        .with_watchdog(plan.has_watchdog)
        .with_timer_file(plan.timer_file.clone())
        .with_environment(worker_environment(plan));
    if let Some(template) = &plan.log_line_prefix_template {
        options = options.with_line_prefix_template(template);
    }
    Ok(options)
}

/// Where workers report progress, and the directory for it; `None` if nothing depends on it.
fn progress_options(
    plan: &RunPlan,
) -> Result<Option<(PrivateDirectory, ProgressOptions)>, Failure> {
    let restarts = &plan.restarts;
    if !restarts.watches_progress() {
        return Ok(None);
    }
    let directory = PrivateDirectory::create("c10d-progress").map_err(Failure::system(
        "cannot create a directory for the workers' progress",
    ))?;
    let mut options = ProgressOptions::new(directory.path());
    options.file.clone_from(&restarts.progress_file);
    options.timeout = restarts.progress_timeout;
    options.first_timeout = restarts.first_progress_timeout;
    Ok(Some((directory, options)))
}

/// What workers inherit.
fn worker_environment(plan: &RunPlan) -> BTreeMap<OsString, OsString> {
    let mut environment: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    for (name, value) in &plan.environment {
        environment.insert((*name).into(), value.into());
    }
    environment
}

fn with_shared_store(parameters: RendezvousParameters, is_shared: bool) -> RendezvousParameters {
    if is_shared || parameters.backend() != elastic_rendezvous::C10D_BACKEND {
        return parameters;
    }
    let mut config = parameters.config().clone();
    config.insert("share_store".to_owned(), "0".to_owned());
    parameters.with_config(config)
}

/// Reports the outcome to the user, to the other nodes, and to the program that started this command.
/// Returns the exit code.
fn conclude(
    plan: &RunPlan,
    agent: &ElasticAgent,
    handler: &Arc<dyn RendezvousHandler>,
    result: &Result<AgentOutcome, AgentError>,
    why: Option<&Report>,
) -> Result<u8, Failure> {
    match result {
        Ok(AgentOutcome::Succeeded) => {
            handler.shutdown();
            Ok(0)
        }
        Ok(AgentOutcome::NotNeeded) => {
            log::info!("the job ended; this node was a spare that was not needed");
            Ok(0)
        }
        Ok(AgentOutcome::Failed(failures)) => {
            show_failures(plan, agent, failures, why);
            leave_error_file(|path| failures.write_error_file(path));
            handler.shutdown();
            Ok(1)
        }
        Ok(AgentOutcome::Ended { reason, failures }) => {
            if let Some(failures) = failures {
                show_failures(plan, agent, failures, why);
            }
            log::error!("the job ends: {reason}");
            leave_error_file(|path| match failures {
                Some(failures) => failures.write_error_file(path),
                None => write_error_file(path, reason, reason, epoch_seconds()),
            });
            handler.shutdown();
            Ok(1)
        }
        Ok(AgentOutcome::Signalled {
            signal,
            had_workers,
        }) => {
            if !had_workers {
                let signal = signals::name_of(*signal);
                log::warn!(
                    "stopped by {signal} before workers were started: leaving the rendezvous"
                );
            }
            leaving::leave(handler, plan.exit_limits.map(|limits| limits.leave));
            Ok(if *had_workers {
                1
            } else {
                code_of_signal(*signal)
            })
        }
        Ok(_) => Ok(1),
        Err(error) => {
            let (cause, failures) = match error {
                AgentError::NotRestarted { source, failures } => (&**source, Some(failures)),
                error => (error, None),
            };
            match cause {
                // The other nodes know, or cannot be reached.
                AgentError::Rendezvous(_) => {}
                AgentError::Ranks(_) | AgentError::Relay(_) => {
                    leaving::leave(handler, None);
                }
                // The job cannot run without this node.
                _ => {
                    handler.shutdown();
                }
            }
            if let Some(failures) = failures {
                show_failures(plan, agent, failures, why);
            }
            leave_error_file(|path| match failures.map(Failures::first) {
                // The worker's own error file says more than the error that followed.
                Some(first) if first.has_error_file() => first.write_error_file(path),
                _ => {
                    let text = error.to_string();
                    write_error_file(path, &text, &text, epoch_seconds())
                }
            });
            let hint = match cause {
                AgentError::Start(StartError::Program {
                    program, source, ..
                }) => hint::for_start(Path::new(program), plan.is_python, source),
                _ => None,
            };
            Err(Failure::No(match hint {
                Some(hint) => format!("{error}; {hint}"),
                None => error.to_string(),
            }))
        }
    }
}

fn epoch_seconds() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0))
}

/// Prints the report on failures to standard error. Ignores a closed standard error.
fn show_failures(plan: &RunPlan, agent: &ElasticAgent, failures: &Failures, why: Option<&Report>) {
    if let Some(why) = why {
        let text = why.to_text(TextStyle::PLAIN);
        let text = format!("When the first worker failed: {text}");
        let _ = terminal::StandardError.write_all(text.as_bytes());
    }
    let summary = format!("{}\n", agent.summary(failures));
    let _ = terminal::StandardError.write_all(summary.as_bytes());
    if plan.is_python
        && let Some(hint) = hint::for_failures(Path::new(plan.command.program()), failures)
    {
        log::warn!("{hint}");
    }
    if let Some(directory) = agent.log_directory() {
        log::info!("logs of this node's workers are in {}", directory.display());
    }
}

/// Writes the reason to the file that the program that started this one reads.
fn leave_error_file(write: impl FnOnce(&Path) -> Result<(), ErrorFileError>) {
    if let Some(path) = error_file_path()
        && let Err(error) = write(&path)
    {
        log::warn!("{error}");
    }
}

fn error_file_path() -> Option<PathBuf> {
    let path = std::env::var_os(ERROR_FILE)?;
    (!path.is_empty()).then(|| PathBuf::from(path))
}
