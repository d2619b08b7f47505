//! Warns of a timeout that is too long to have an effect, because another timeout always expires first. Pure.

use std::time::Duration;

use elastic_agent::{HealthCheck, LauncherOptions};
use elastic_rendezvous::{
    ParametersError, RendezvousParameters, RendezvousSettings, STATIC_BACKEND, STATIC_TIMEOUT,
    StartWarning, WarningKind,
};

/// The option that sets a timeout, and its time; `None` if it never expires.
type Timeout = (&'static str, Option<Duration>);

/// A timeout, another timeout that should be at least as long, and the result if it is shorter.
type Order = (Timeout, Timeout, &'static str);

/// How long a node may be silent before the other nodes drop it, by the settings that are multiplied.
const SILENCE: &str = "keep_alive_interval x keep_alive_max_attempt";

/// The timeout of a join of the static rendezvous, and the value that the launcher sets as torchrun does.
const STATIC_KEY: &str = "timeout";
pub(super) const STATIC_USUAL: &str = "900";

/// Returns the timeouts that depend on each other, the shortest one first, with the options that set them.
pub(super) fn table(launcher: &LauncherOptions) -> Vec<(&'static str, Duration)> {
    let orders = orders(launcher).into_iter();
    let timeouts = orders.flat_map(|(first, second, _)| [first, second]);
    let timeouts = timeouts.filter_map(|(name, time)| Some((name, time?)));
    // The period of a budget is not a timeout.
    let mut table: Vec<_> = timeouts
        .filter(|(name, _)| !name.contains("restart"))
        .collect();
    table.sort_by_key(|(name, time)| (*time, *name));
    table.dedup();
    table
}

/// Returns a warning for each pair of timeouts in the wrong order that the user has given.
pub(super) fn warnings(launcher: &LauncherOptions) -> Vec<StartWarning> {
    let config = launcher.rendezvous.config();
    let is_given = |name: &str| match name {
        SILENCE => SILENCE.split(" x ").any(|key| config.contains_key(key)),
        STATIC_KEY => config.get(STATIC_KEY).is_some_and(|it| it != STATIC_USUAL),
        "--spare-wait" => config.contains_key("spare_wait"),
        // The default of another option fits the timeouts that are given.
        name => name.contains("--") || config.contains_key(name),
    };
    let orders = orders(launcher).into_iter();
    let wrong = orders.filter_map(|((name, time), (other, limit), result)| {
        let (time, limit) = (time?, limit?);
        (time > limit && is_given(name) && is_given(other)).then(|| {
            let text = format!("{name} of {time:?} exceeds {other} of {limit:?}: {result}");
            StartWarning::new(WarningKind::Timeouts, text)
        })
    });
    wrong.collect()
}

/// Returns how long a join may take; `None` if the settings cannot be read.
pub(super) fn join_timeout(parameters: &RendezvousParameters) -> Option<Duration> {
    match parameters.backend() {
        STATIC_BACKEND => parameters.get_as_duration(STATIC_KEY, STATIC_TIMEOUT).ok(),
        _ => Some(
            RendezvousSettings::from_parameters(parameters)
                .ok()?
                .join_timeout(),
        ),
    }
}

fn orders(launcher: &LauncherOptions) -> Vec<Order> {
    // Starting a rendezvous whose settings cannot be read is an error.
    let mut orders = orders_of_meeting(launcher).unwrap_or_default();
    orders.extend(orders_of_progress(launcher));
    orders
}

fn orders_of_meeting(launcher: &LauncherOptions) -> Result<Vec<Order>, ParametersError> {
    let parameters = &launcher.rendezvous;
    if parameters.max_nodes() == 1 {
        return Ok(Vec::new());
    }
    let check = launcher.agent.health_check.as_ref();
    let check = check.map(HealthCheck::timeout);
    let check = ("--health-check-timeout", check);
    let why_check = "a hanging check fails the join";
    if parameters.backend() == STATIC_BACKEND {
        let join = parameters.get_as_duration(STATIC_KEY, STATIC_TIMEOUT)?;
        return Ok(vec![(check, (STATIC_KEY, Some(join)), why_check)]);
    }
    let settings = RendezvousSettings::from_parameters(parameters)?;
    let join = ("join_timeout", Some(settings.join_timeout()));
    let silence = (SILENCE, Some(settings.dead_after()));
    let heartbeat = ("heartbeat_timeout", Some(settings.heartbeat_timeout()));
    let is_elastic = settings.min_nodes() < settings.max_nodes();
    let last_call = is_elastic.then_some(settings.last_call_timeout());
    let last_call = ("last_call_timeout", last_call);
    let spare_wait = ("--spare-wait", Some(settings.spare_wait()));
    let read = ("read_timeout", Some(settings.read_timeout()));
    let progress = ("--progress-timeout", progress_timeout(launcher));
    Ok(vec![
        (heartbeat, silence, "a slow store drops nodes"),
        (silence, join, "lost nodes fail a join"),
        (last_call, join, "a round below MAX nodes never begins"),
        (spare_wait, join, "a spare never takes a place"),
        (check, join, why_check),
        (read, join, "one lost answer fails the join"),
        (silence, progress, "lost nodes seem hung"),
    ])
}

fn orders_of_progress(launcher: &LauncherOptions) -> [Order; 3] {
    let agent = &launcher.agent;
    let progress = ("--progress-timeout", progress_timeout(launcher));
    let first = agent.progress.as_ref();
    let first = first.and_then(|progress| progress.first_timeout);
    let rules = &agent.restarts;
    let has_other_limit = rules.max_restarts.is_some() || rules.max_without_progress.is_some();
    let budget = rules.budget.filter(|_| !has_other_limit);
    let hangs = budget.zip(progress.1).map(|(budget, progress)| {
        progress.saturating_mul(u32::try_from(budget.restarts).unwrap_or(u32::MAX))
    });
    [
        (
            progress,
            ("--first-progress-timeout", first),
            "imports and compilation count as a hang",
        ),
        (
            ("--explain-after", launcher.explain_after),
            progress,
            "a hang is not explained before the restart",
        ),
        (
            ("--progress-timeout x restarts", hangs),
            ("--restart-budget", budget.map(|budget| budget.window)),
            "add --max-restarts-without-progress",
        ),
    ]
}

fn progress_timeout(launcher: &LauncherOptions) -> Option<Duration> {
    launcher.agent.progress.as_ref()?.timeout
}
