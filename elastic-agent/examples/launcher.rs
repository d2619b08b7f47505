//! A custom launcher: two workers of a program on this node, with the store where nodes meet at HOST:PORT.
//!
//! `cargo run -p elastic-agent --example launcher -- 127.0.0.1:29400 python3 -u train.py`. While it runs,
//! `c10d why --connect 127.0.0.1:29400` names its ranks.

use std::env;
use std::error::Error;
use std::process::ExitCode;

use elastic_agent::{AgentOptions, CommandLine, Launcher, LauncherOptions};
use elastic_rendezvous::RendezvousParameters;

const WORKERS: usize = 2;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut words = env::args_os().skip(1);
    let (Some(endpoint), Some(program)) = (words.next(), words.next()) else {
        return Err("usage: launcher HOST:PORT PROGRAM [ARGUMENT]...".into());
    };
    let endpoint = endpoint.to_string_lossy();

    // The workers of this node, how often they are restarted, and the destination of their output.
    let mut agent = AgentOptions::new(CommandLine::new(program, words), WORKERS);
    agent.restarts.max_restarts = Some(3);
    agent.logs.redirects = "3".parse()?;

    // One node takes part, so the round is complete at once.
    let rendezvous = RendezvousParameters::new("c10d", endpoint, "example", 1, 1)?;

    let mut options = LauncherOptions::new(agent, rendezvous);
    options.signals = Some(vec!["SIGTERM".to_owned(), "SIGINT".to_owned()]);
    let report = Launcher::new(options).run();
    let code = report.exit_code();
    report.result?;
    Ok(ExitCode::from(code))
}
