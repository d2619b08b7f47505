//! The launcher's features, and their order.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use c10d_inspect::http::HttpResponse;
use c10d_inspect::workers::SAMPLE_PATH;
use c10d_socket::{Credentials, HostPort, host_name, interface_addresses};
use elastic_rendezvous::{
    DEFAULT_PORT, Endpoint, RendezvousError, RendezvousHandler, RendezvousParameters, StartWarnings,
};

use super::announce::{Announcer, Flusher, LocalView, NodeIdentity, ObservationSender};
use super::answers::{Answers, AnswersPort, answer_questions};
use super::debug_servers::{DebugServers, START_HOOK};
use super::error::LauncherError;
use super::events::{JobNames, Recorder};
use super::explain::Explainer;
use super::feature::{Feature, JobEnd};
use super::health_port::HealthPort;
use super::nccl;
use super::observer::{Observer, Processes};
use super::options::LauncherOptions;
use super::progress_log::ProgressLog;
use super::stacks::{self, StackThread};
use super::status_page::{Hosted, StatusPage};
use crate::agent::{AgentListener, AgentOptions, ElasticAgent};

/// How long the observer waits until the store has its observations.
const ANNOUNCED_TIMEOUT: Duration = Duration::from_millis(200);

/// The features in the order in which they are made and see events. They end in the reverse order.
const ORDER: [FeatureEntry; 9] = [
    FeatureEntry {
        name: "health port",
        make: make_health_port,
        why: "probes are answered before this node waits for other nodes, and until everything else has stopped",
    },
    FeatureEntry {
        name: "debug servers",
        make: make_debug_servers,
        why: "workers find its files when they start, and answers about them need its sockets to their end",
    },
    FeatureEntry {
        name: "answers",
        make: make_answers,
        why: "an announcement of workers has the address that it opens when they start",
    },
    FeatureEntry {
        name: "announcements",
        make: make_announcer,
        why: "it stops with the last word about the workers, for which answers and debug servers are still there",
    },
    FeatureEntry {
        name: "observations",
        make: make_observer,
        why: "the announcer has what is observed, and explanations are made of it",
    },
    FeatureEntry {
        name: "explanations",
        make: make_explainer,
        why: "a report on a failure waits for the announcement of it, and needs the announcer to its end",
    },
    FeatureEntry {
        name: "status page",
        make: make_status_page,
        why: "its page shows an event when the explanation of it is made",
    },
    FeatureEntry {
        name: "log lines",
        make: make_log_lines,
        why: "they name the status page, which exists before them",
    },
    FeatureEntry {
        name: "events",
        make: make_events,
        why: "it ends first, as no other feature may delay what a reader of the file waits for",
    },
];

/// A feature's place in the order.
struct FeatureEntry {
    name: &'static str,
    make: BuildFeature,
    why: &'static str,
}

/// Makes a feature; `None` if the options do not ask for it.
type BuildFeature = fn(&mut FeatureBuilder<'_>) -> Result<Option<Box<dyn Feature>>, LauncherError>;

/// The additions of the features to the agent and to the rendezvous, and the objects that a feature provides for later
/// features.
struct FeatureBuilder<'l> {
    options: &'l LauncherOptions,
    warnings: &'l StartWarnings,
    agent: AgentOptions,
    hosted: Arc<Hosted>,
    debug_sockets: Option<PathBuf>,
    /// `None` if this launcher has no port for questions.
    answers: Option<AnswersPort>,
    /// `None` if the stacks of workers are not read.
    stacks: Option<Arc<StackThread>>,
    announcements: Option<(Flusher, LocalView)>,
    observations: Option<ObservationSender>,
}

/// The features of one job.
pub(super) struct Features {
    all: Vec<Box<dyn Feature>>,
    hosted: Arc<Hosted>,
    /// The agent's options, with the features' additions.
    pub(super) agent: AgentOptions,
    /// The rendezvous' parameters, with the features' additions.
    pub(super) rendezvous: RendezvousParameters,
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} features", self.all.len())
    }
}

impl Features {
    /// # Errors
    /// The first feature that cannot be made.
    pub(super) fn make(
        options: &LauncherOptions,
        warnings: &StartWarnings,
    ) -> Result<Self, LauncherError> {
        let hosted = hosted(options);
        let mut rendezvous = options.rendezvous.clone();
        rendezvous = rendezvous.with_server_hook(hosted.hook());
        rendezvous = rendezvous.with_start_warnings(warnings.clone());
        if let Some(journal) = options.rendezvous.journal() {
            rendezvous = rendezvous.with_journal(hosted.watched(journal));
        }
        if let Some(store) = options.rendezvous.store() {
            let watching = Arc::clone(&hosted);
            let store = store.clone();
            let store =
                store.with_each_journal(move |journal| watching.watched_for_damage(journal));
            rendezvous = rendezvous.with_store(store);
        }
        let mut builder = FeatureBuilder {
            options,
            warnings,
            agent: options.agent.clone(),
            hosted,
            debug_sockets: None,
            answers: None,
            stacks: None,
            announcements: None,
            observations: None,
        };
        let mut all = Vec::new();
        for place in &ORDER {
            if let Some(feature) = (place.make)(&mut builder)? {
                log::debug!("with {}: {}", place.name, place.why);
                all.push(feature);
            }
        }
        Ok(Self {
            all,
            hosted: builder.hosted,
            agent: builder.agent,
            rendezvous,
        })
    }

    pub(super) fn could_not_open(&mut self, error: &RendezvousError, stuck_max: Duration) {
        for feature in &mut self.all {
            feature.could_not_open(error, stuck_max);
        }
    }

    /// Lets them see the events of an agent that does not run yet.
    pub(super) fn attend(&mut self, agent: &mut ElasticAgent, handler: &dyn RendezvousHandler) {
        for listener in self.listen(handler) {
            agent.add_listener(listener);
        }
        for feature in &mut self.all {
            feature.watch(&agent.handle());
        }
        self.hosted.end_with_journal(agent.handle());
    }

    /// Lets them see the events of the rendezvous. Returns their listeners for the events of an agent, in their order.
    pub(super) fn listen(&self, handler: &dyn RendezvousHandler) -> Vec<AgentListener> {
        for listener in self.all.iter().filter_map(|it| it.rendezvous_listener()) {
            handler.add_listener(listener);
        }
        self.all
            .iter()
            .filter_map(|it| it.agent_listener())
            .collect()
    }

    /// The store servers of this process.
    pub(super) fn hosted(&self) -> Arc<Hosted> {
        Arc::clone(&self.hosted)
    }

    /// Returns why a store that this process serves can no longer persist writes.
    pub(super) fn journal_failure(&self) -> Option<String> {
        self.hosted.journal_failure()
    }

    pub(super) fn workers_ended(&mut self, end: &mut JobEnd) {
        for index in (0..self.all.len()).rev() {
            self.all[index].workers_ended(end);
            if self.all[index].ends_with_workers() {
                self.all.remove(index);
            }
        }
    }

    pub(super) fn job_ended(&mut self, end: &JobEnd) {
        for feature in self.all.iter_mut().rev() {
            feature.job_ended(end);
        }
    }
}

fn hosted(options: &LauncherOptions) -> Arc<Hosted> {
    let token = options.token();
    // With certificates there is no password for the pages.
    let can_have_pages = options.rendezvous.credentials().is_none() || token.is_some();
    let status = options.status_page.clone().filter(|_| can_have_pages);
    let name = options.agent.name.clone();
    let status = status.map(|status| status.with_title(name));
    Hosted::new(status, token, options.store_memory_max)
}

fn make_health_port(
    builder: &mut FeatureBuilder<'_>,
) -> Result<Option<Box<dyn Feature>>, LauncherError> {
    let Some(port) = builder.options.health_port else {
        return Ok(None);
    };
    let server = HealthPort::open(port).map_err(LauncherError::system(format!(
        "cannot answer health checks on port {port}"
    )))?;
    Ok(Some(Box::new(server)))
}

fn make_debug_servers(
    builder: &mut FeatureBuilder<'_>,
) -> Result<Option<Box<dyn Feature>>, LauncherError> {
    if !builder.options.has_debug_servers {
        return Ok(None);
    }
    let servers = DebugServers::prepare().map_err(LauncherError::system(
        "cannot prepare the workers' debug servers",
    ))?;
    servers.add_to(&mut builder.agent);
    if let Some(preload) = &mut builder.agent.preload {
        preload.hooks.push(START_HOOK.to_owned());
    }
    builder.debug_sockets = Some(servers.sockets().to_owned());
    Ok(Some(Box::new(servers)))
}

fn make_answers(
    builder: &mut FeatureBuilder<'_>,
) -> Result<Option<Box<dyn Feature>>, LauncherError> {
    let options = builder.options;
    let token = options.token();
    // With certificates there is no password for the port.
    let can_be_guarded = options.rendezvous.credentials().is_none() || token.is_some();
    if options.has_stacks && stacks::CAN_READ {
        let thread =
            StackThread::start().map_err(LauncherError::system("cannot start a thread"))?;
        builder.stacks = Some(Arc::new(thread));
    }
    if !can_be_guarded || (builder.stacks.is_none() && builder.debug_sockets.is_none()) {
        return Ok(None);
    }
    let answers = Answers::new(token);
    builder.answers = Some(answers.port());
    Ok(Some(Box::new(answers)))
}

fn make_announcer(
    builder: &mut FeatureBuilder<'_>,
) -> Result<Option<Box<dyn Feature>>, LauncherError> {
    let identity = NodeIdentity {
        host: host_name(),
        pid: std::process::id(),
        run_id: builder.options.rendezvous.run_id().to_owned(),
        addresses: own_addresses(),
        debug_sockets: builder.debug_sockets.clone(),
        explain_after: builder.options.explain_after,
    };
    let rendezvous = meeting_place(&builder.options.rendezvous);
    let nccl = nccl::service(&builder.agent.environment);
    let announcer = Announcer::start(identity, builder.answers.clone(), rendezvous, nccl)
        .map_err(LauncherError::system("cannot start a thread"))?;
    builder.hosted.look_at_workers(announcer.flusher());
    if let Some(port) = &builder.answers {
        let view = announcer.view();
        answer_questions(port, move || view.get(), builder.stacks.clone());
    }
    builder.announcements = Some((announcer.flusher(), announcer.view()));
    builder.observations = Some(announcer.observations());
    Ok(Some(Box::new(announcer)))
}

fn make_observer(
    builder: &mut FeatureBuilder<'_>,
) -> Result<Option<Box<dyn Feature>>, LauncherError> {
    let (Some((announcements, view)), Some(observations), Some(stacks)) = (
        builder.announcements.clone(),
        builder.observations.clone(),
        builder.stacks.clone(),
    ) else {
        return Ok(None);
    };
    let after = builder.options.explain_after;
    let note = move |found| {
        observations.send(found);
        announcements.flush(ANNOUNCED_TIMEOUT);
    };
    let observer = Observer::start(after, move || view.get(), Processes::new(stacks), note)
        .map_err(LauncherError::system("cannot start a thread"))?;
    if let Some(port) = &builder.answers {
        let asker = observer.asker();
        let answer = move |_: &str| match asker.ask() {
            true => HttpResponse::new(200, "observed\n"),
            false => HttpResponse::new(503, "the workers could not be observed in time\n"),
        };
        port.answer(SAMPLE_PATH, Arc::new(answer));
    }
    Ok(Some(Box::new(observer)))
}

/// The store where the nodes meet, and the credentials that it requires; `None` if they do not meet at a listening
/// store.
fn meeting_place(parameters: &RendezvousParameters) -> Option<(HostPort, Option<Credentials>)> {
    let is_file = parameters
        .get("store_type")
        .is_some_and(|kind| !kind.trim().eq_ignore_ascii_case("tcp"));
    let endpoint: Endpoint = parameters.endpoint().parse().ok()?;
    let store = endpoint.with_default_port(DEFAULT_PORT);
    (!is_file && store.port() != 0).then(|| (store, parameters.credentials().cloned()))
}

fn make_explainer(
    builder: &mut FeatureBuilder<'_>,
) -> Result<Option<Box<dyn Feature>>, LauncherError> {
    let Some((announcements, view)) = builder.announcements.clone() else {
        return Ok(None);
    };
    let explainer = Explainer::start(
        builder.options,
        Arc::clone(&builder.hosted),
        announcements,
        view,
    )
    .map_err(LauncherError::system("cannot start a thread"))?;
    Ok(Some(Box::new(explainer)))
}

fn make_status_page(
    builder: &mut FeatureBuilder<'_>,
) -> Result<Option<Box<dyn Feature>>, LauncherError> {
    Ok(Some(Box::new(StatusPage(Arc::clone(&builder.hosted)))))
}

fn make_log_lines(
    builder: &mut FeatureBuilder<'_>,
) -> Result<Option<Box<dyn Feature>>, LauncherError> {
    let spoken = ProgressLog::new(
        builder.options,
        Arc::clone(&builder.hosted),
        builder.warnings,
    );
    Ok(Some(Box::new(spoken)))
}

fn make_events(
    builder: &mut FeatureBuilder<'_>,
) -> Result<Option<Box<dyn Feature>>, LauncherError> {
    let Some(file) = &builder.options.events_file else {
        return Ok(None);
    };
    let recorder = Recorder::open(file, JobNames::of(builder.options))
        .map_err(|error| LauncherError::Invalid(format!("cannot record events: {error}")))?;
    Ok(Some(Box::new(recorder)))
}

/// The most addresses that are announced.
const ADDRESSES_MAX: usize = 64;

/// The addresses of this machine's interfaces, without loopback and link-local addresses, at most 64. None if the system does
/// not list them.
fn own_addresses() -> Vec<IpAddr> {
    let is_of_link = |address: &IpAddr| match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let all = interface_addresses().unwrap_or_default().into_iter();
    let mut own: Vec<IpAddr> = all
        .map(|(_, address)| address)
        .filter(|it| !it.is_loopback() && !is_of_link(it))
        .collect();
    own.sort_unstable();
    own.dedup();
    own.truncate(ADDRESSES_MAX);
    own
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use elastic_rendezvous::Listener;

    use super::*;
    use crate::command_line::CommandLine;
    use crate::round::AgentOutcome;

    struct Probe(&'static str, Arc<Mutex<Vec<String>>>);

    impl Probe {
        fn note(&self, what: &str) {
            self.1.lock().unwrap().push(format!("{} {what}", self.0));
        }
    }

    impl Feature for Probe {
        fn rendezvous_listener(&self) -> Option<Listener> {
            self.note("listens");
            None
        }

        fn workers_ended(&mut self, _: &mut JobEnd) {
            self.note("says the last word");
        }

        fn job_ended(&mut self, _: &JobEnd) {
            self.note("ends");
        }
    }

    #[test]
    fn features_start_in_their_order_and_end_in_the_reverse_one() {
        let noted = Arc::<Mutex<Vec<String>>>::default();
        let parameters = RendezvousParameters::new("c10d", "127.0.0.1:0", "job", 1, 1).unwrap();
        let agent = AgentOptions::new(CommandLine::new("true", [""; 0]), 1);
        let handler = elastic_rendezvous::create_handler(&parameters).unwrap();
        let mut features = Features {
            all: vec![
                Box::new(Probe("first", Arc::clone(&noted))),
                Box::new(Probe("second", Arc::clone(&noted))),
            ],
            hosted: Hosted::new(None, None, None),
            agent: agent.clone(),
            rendezvous: parameters,
        };
        let mut agent = ElasticAgent::new(agent, Arc::clone(&handler)).unwrap();
        features.attend(&mut agent, &*handler);
        let mut end = JobEnd {
            result: Ok(AgentOutcome::Succeeded),
            why: None,
            first_failure: None,
            stuck_max: Duration::ZERO,
        };
        features.workers_ended(&mut end);
        features.job_ended(&end);
        handler.shutdown();
        assert_eq!(
            *noted.lock().unwrap(),
            [
                "first listens",
                "second listens",
                "second says the last word",
                "first says the last word",
                "second ends",
                "first ends"
            ]
        );
    }
}
