//! The events that an agent reports to its listeners.

use std::sync::{Arc, Mutex};

use c10d_store::{HashStore, Store};
use elastic_agent::{AgentEvent, AgentOptions, AgentOutcome, CommandLine, ElasticAgent, ExitKind};
use elastic_rendezvous::{
    C10dBackend, DynamicRendezvous, DynamicRendezvousOptions, RendezvousHandler, RendezvousSettings,
};

use crate::util::is_alive;

/// Rank 1 fails when the listener knows of the start; rank 0 waits to be stopped. Both succeed at the second
/// start.
const SCRIPT: &str = r#"
    [ "$TORCHELASTIC_RESTART_COUNT" = 0 ] || exit 0
    case $RANK in
        0) exec sleep 1000 ;;
        *) while ! [ -e $DIR/started ]; do sleep 0.01; done; exit 7 ;;
    esac"#;

fn alone() -> Arc<dyn RendezvousHandler> {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let backend = C10dBackend::new(Arc::clone(&store), "job").unwrap();
    let settings = RendezvousSettings::new("job", 1, 1).unwrap();
    let options = DynamicRendezvousOptions::new().with_local_addr("127.0.0.1");
    Arc::new(DynamicRendezvous::new(Arc::new(backend), store, settings, options).unwrap())
}

#[test]
fn a_failure_is_told_while_the_other_workers_still_run() {
    let folder = tempfile::tempdir().unwrap();
    let variable = ("DIR".into(), folder.path().into());
    let mut options = AgentOptions::new(CommandLine::new("sh", ["-c", SCRIPT]), 2);
    options.restarts.max_restarts = Some(1);
    options.host = Some("node0".to_owned());
    options.environment.push(variable);
    let mut agent = ElasticAgent::new(options, alone()).unwrap();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let pids: Arc<Mutex<Vec<u32>>> = Arc::default();
    let (log, known) = (Arc::clone(&seen), Arc::clone(&pids));
    let has_started = folder.path().join("started");
    agent.add_listener(Arc::new(move |event| {
        let text = match event {
            AgentEvent::WorkersStarted(started) => {
                let pids = started.workers.iter().map(|worker| worker.pid);
                *known.lock().unwrap() = pids.collect();
                let ranks: Vec<usize> = started.workers.iter().map(|it| it.rank).collect();
                let text = format!("start {} of {ranks:?}", started.restarts);
                log.lock().unwrap().push(text);
                std::fs::write(&has_started, "").unwrap();
                return;
            }
            AgentEvent::WorkerExited(exit) if exit.exit == ExitKind::Code(0) => return,
            AgentEvent::WorkerExited(exit) => format!("exit of {}", exit.rank),
            AgentEvent::WorkerFailed(exit) => {
                let other = known.lock().unwrap()[0];
                assert!(is_alive(&other.to_string()), "it has been stopped already");
                format!("failure of {}", exit.rank)
            }
            AgentEvent::Stopping => "stop".to_owned(),
            AgentEvent::Restarting { why } => format!("restart: {why}"),
            _ => return,
        };
        log.lock().unwrap().push(text);
    }));
    let outcome = agent.run().unwrap();
    assert!(matches!(outcome, AgentOutcome::Succeeded), "{outcome:?}");
    assert_eq!(
        *seen.lock().unwrap(),
        [
            "start 0 of [0, 1]",
            "exit of 1",
            "failure of 1",
            "stop",
            "exit of 0",
            "restart: a worker failed",
            "start 1 of [0, 1]",
            "stop",
        ]
    );
}
