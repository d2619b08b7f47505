use elastic_rendezvous::parse_config;

use super::*;
use crate::agent::AgentOptions;
use crate::command_line::CommandLine;
use crate::health::HealthCheck;
use crate::progress::ProgressOptions;
use crate::restart_policy::RestartRules;

/// What a case changes of a job of two to four nodes with the defaults.
#[derive(Default, Clone, Copy)]
struct Given {
    backend: Option<&'static str>,
    nodes: Option<(usize, usize)>,
    /// As in `--rdzv-conf`.
    config: &'static str,
    environment: &'static [(&'static str, &'static str)],
    explain: u64,
    health: u64,
    progress: u64,
    first: u64,
    budget: Option<(usize, u64)>,
    max_restarts: Option<usize>,
    has_relay: bool,
}

impl Given {
    fn deadlines(self) -> Deadlines {
        self.options().deadlines()
    }

    /// A time of 0 is one that is not given.
    fn options(self) -> LauncherOptions {
        let time = |seconds| (seconds > 0).then_some(Duration::from_secs(seconds));
        let rules = RestartRules {
            max_restarts: self.max_restarts,
            budget: self.budget.map(|(restarts, window)| RestartBudget {
                restarts,
                window: Duration::from_secs(window),
            }),
            ..RestartRules::default()
        };
        let progress = ProgressOptions {
            timeout: time(self.progress),
            first_timeout: time(self.first),
            ..ProgressOptions::default()
        };
        let environment = self.environment.iter();
        let check = time(self.health).map(|it| HealthCheck::new("true").with_timeout(it));
        let agent = AgentOptions::new(CommandLine::new("true", [""; 0]), 1)
            .with_environment(environment.map(|(name, value)| (name.into(), value.into())))
            .with_restart_rules(rules)
            .with_progress(progress)
            .with_health_check(check)
            .with_relay(self.has_relay);
        let backend = self.backend.unwrap_or("c10d");
        let (min, max) = self.nodes.unwrap_or((2, 4));
        let rendezvous = RendezvousParameters::new(backend, "node0:29400", "job", min, max)
            .unwrap()
            .with_config(parse_config(self.config).unwrap());
        let explain = time(self.explain).unwrap_or(LauncherOptions::DEFAULT_EXPLAIN_AFTER);
        LauncherOptions::new(agent, rendezvous).with_explain_after(explain)
    }
}

/// The cases in which two deadlines are in the wrong order: docs/deadlines.md, LADDER 1 to 14.
#[test]
fn a_deadline_that_comes_too_late_is_a_warning_with_the_option_to_change() {
    let given = Given::default();
    let deepspeed = |environment| Given {
        environment,
        ..given
    };
    let cases = [
        (
            Given {
                config: "heartbeat_timeout=16",
                ..given
            },
            "writing a heartbeat may take 16s, but a node that is silent for 15s is dropped: lower heartbeat_timeout",
        ),
        (
            Given {
                config: "keep_alive_interval=200",
                ..given
            },
            "a join fails after 600s, before the others drop a lost node after 600s of silence: raise join_timeout",
        ),
        (
            Given {
                config: "last_call_timeout=700",
                ..given
            },
            "a join fails after 600s, but a round of fewer than MAX nodes begins after a last call of 700s: raise \
             join_timeout",
        ),
        (
            Given {
                config: "spare_wait=600",
                ..given
            },
            "a join fails after 600s, but members precede spares for 600s: lower --spare-wait",
        ),
        (
            Given {
                backend: Some("static"),
                config: "timeout=60",
                health: 60,
                ..given
            },
            "a health check may take 60s, but the join of the other nodes fails after 60s: lower \
             --health-check-timeout, or raise timeout",
        ),
        (
            Given {
                config: "join_timeout=50",
                ..given
            },
            "one request to the store may take 60s, longer than the whole join, 50s: lower read_timeout",
        ),
        (
            Given {
                progress: 15,
                explain: 1,
                ..given
            },
            "workers without progress for 15s use up a restart before a lost node is known to be lost, after 15s: raise \
             --progress-timeout",
        ),
        (
            Given {
                progress: 600,
                first: 300,
                ..given
            },
            "the first step may take 300s, imports included, less than any later one, 600s: raise \
             --first-progress-timeout",
        ),
        (
            Given {
                progress: 601,
                environment: &[("DEEPSPEED_TIMEOUT", "10")],
                ..given
            },
            "collectives fail after 600s (DEEPSPEED_TIMEOUT), before workers count as stuck after 601s: lower \
             --progress-timeout, or raise DEEPSPEED_TIMEOUT",
        ),
        (
            Given {
                has_relay: true,
                environment: &[("DEEPSPEED_TIMEOUT", "30"), ("TORCHFT_TIMEOUT_SEC", "120")],
                ..given
            },
            "a relay tries for 600s to reach the store again, but ranks that wait for it give up after 120s: raise \
             TORCHFT_TIMEOUT_SEC",
        ),
        (
            deepspeed(&[
                ("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "60000"),
                ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "60"),
            ]),
            "a rank may write its flight recorder for 60s, but is ended when NCCL's watchdog is stuck for 60s: lower \
             TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC, or raise TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
        ),
        (
            deepspeed(&[("NCCL_IB_TIMEOUT", "25")]),
            "InfiniBand tries a packet again for 962s, but collectives fail after 600s without its error: lower \
             NCCL_IB_TIMEOUT or NCCL_IB_RETRY_CNT",
        ),
        (
            Given {
                progress: 360,
                budget: Some((10, 3600)),
                ..given
            },
            "10 restarts after hangs of 360s take 3600s, longer than the 3600s in which --restart-budget allows them, so \
             a job that always hangs never ends: give --max-restarts-without-progress",
        ),
        (
            Given {
                progress: 60,
                explain: 61,
                ..given
            },
            "workers without progress are restarted after 60s, before the launcher says what they wait for, after 61s: \
             lower --explain-after",
        ),
    ];
    assert_eq!(cases.len(), RULES.len());
    for (number, (given, expected)) in (1..).zip(cases) {
        let warnings = given.deadlines().warnings;
        let [warning] = &warnings[..] else {
            panic!("LADDER {number}: {warnings:#?}");
        };
        assert!(
            warning.starts_with(expected),
            "LADDER {number}: {warning}\ninstead of {expected}"
        );
        let rule = format!(" (docs/deadlines.md, LADDER {number})");
        assert!(warning.ends_with(&rule), "{warning}");
    }
}

#[test]
fn neither_the_defaults_nor_deadlines_in_order_are_a_warning() {
    let given = Given::default();
    let under_order = [
        given,
        Given {
            has_relay: true,
            health: 60,
            ..given
        },
        Given {
            nodes: Some((1, 1)),
            ..given
        },
        Given {
            nodes: Some((4, 4)),
            config: "last_call_timeout=700",
            ..given
        },
        Given {
            backend: Some("static"),
            config: "timeout=900,heartbeat_timeout=16",
            health: 899,
            ..given
        },
        Given {
            config: "heartbeat_timeout=15,keep_alive_interval=100,keep_alive_max_attempt=5,last_call_timeout=599,\
                     spare_wait=599,read_timeout=600",
            health: 599,
            ..given
        },
        Given {
            progress: 600,
            first: 600,
            explain: 600,
            environment: &[
                ("DEEPSPEED_TIMEOUT", "10"),
                ("NCCL_IB_TIMEOUT", "22"),
                ("NCCL_IB_RETRY_CNT", "13"),
                ("TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC", "479999"),
            ],
            has_relay: true,
            budget: Some((10, 3600)),
            max_restarts: Some(100),
            ..given
        },
        // Nothing watches the watchdog.
        Given {
            environment: &[
                ("TORCH_NCCL_ENABLE_MONITORING", "0"),
                ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "1"),
            ],
            ..given
        },
        // What is no number is the default.
        Given {
            environment: &[
                ("DEEPSPEED_TIMEOUT", "soon"),
                ("TORCHFT_TIMEOUT_SEC", "-1"),
                ("NCCL_IB_TIMEOUT", "9e99"),
                ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "NaN"),
            ],
            progress: 4000,
            ..given
        },
        // The rendezvous itself refuses these.
        Given {
            config: "join_timeout=x",
            ..given
        },
    ];
    for given in under_order {
        let deadlines = given.deadlines();
        assert_eq!(deadlines.warnings, [""; 0], "{deadlines:#?}");
    }
}

#[test]
fn the_lines_have_what_matters_in_the_order_in_which_it_fires() {
    let lines = |given: Given| below_heading(&given.options());
    let given = Given::default();
    assert_eq!(
        lines(given),
        [
            "nodes meet: last call 30s, join 600s",
            "a node or its store is silent: node dropped, its workers stop 15s (3 heartbeats of 5s), request to the \
             store 60s",
            "workers stand still: explained 30s, NCCL's watchdog if it is stuck 480s, process group 600s (NCCL) or \
             1800s (others) unless the script gives timeout=",
            "a signal: workers killed 30s",
        ]
    );
    let one = Given {
        nodes: Some((1, 1)),
        ..given
    };
    assert_eq!(lines(one).len(), 2);
    let fixed = Given {
        backend: Some("static"),
        config: "timeout=900",
        ..given
    };
    assert_eq!(lines(fixed)[0], "nodes meet: join 900s");
    let unset = Given {
        config: "",
        ..fixed
    };
    assert_eq!(lines(unset)[0], "nodes meet: join 600s");

    let all = Given {
        config: "read_timeout=10,last_call_timeout=90",
        health: 60,
        progress: 20,
        first: 1000,
        environment: &[
            ("TORCHFT_TIMEOUT_SEC", "25"),
            ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "27"),
        ],
        has_relay: true,
        ..given
    };
    let mut all = all.options();
    all.agent = all.agent.with_watchdog(true);
    let limits = ExitLimits::new(Duration::from_secs(1), Duration::from_secs(29));
    let all = below_heading(&all.with_exit_limits(limits));
    assert!(all.len() < 8, "{all:#?}");
    assert_eq!(
        all,
        [
            "nodes meet: health check 60s, last call 90s, join 600s",
            "a node or its store is silent: request to the store 10s, node dropped, its workers stop 15s (3 heartbeats \
             of 5s)",
            "workers stand still: restart without progress 20s, process group 25s (TORCHFT_TIMEOUT_SEC), NCCL's \
             watchdog if it is stuck 27s, explained 30s, the same before the first step 1000s",
            "a timer of the script expires: its process ends at once",
            "a relay loses the store: ranks disconnected 30s if its host refuses, 600s if it is silent",
            "a signal: workers killed 30s, launcher ends 29s",
        ]
    );
}

fn below_heading(options: &LauncherOptions) -> Vec<String> {
    let lines = options.deadlines().lines;
    let (_, lines) = lines.split_first().unwrap();
    let lines = lines.iter().map(|line| line.strip_prefix("  ").unwrap());
    lines.map(str::to_owned).collect()
}
