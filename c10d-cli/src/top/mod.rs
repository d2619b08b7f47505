//! `c10d top`: all ranks by state, on the whole terminal, renewed each second.

mod fetcher;
mod grid;
mod keys;
mod model;
mod screen;
#[cfg(test)]
mod tests;
mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use c10d_inspect::http::{JobPages, StatusError};
use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::failure::Failure;
use crate::output::allows_colors;
use crate::status::StatusArgs;
use fetcher::Fetcher;
use model::{Answer, Top};
use screen::Screen;

/// How long an answer or a signal may wait until it is noticed.
const NOTICE_EVERY: Duration = Duration::from_millis(100);

/// How often the ages on the screen are renewed.
const DRAW_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    status: StatusArgs,
}

/// Shows the ranks until a key or a signal ends it.
pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    if !Screen::is_possible() {
        let text = "c10d top needs a terminal as standard input and output: use `c10d why`";
        return Err(Failure::Usage(text.to_owned()));
    }
    let mut pages = JobPages::new(args.status.open()?);
    // Before the screen is taken: a wrong address is an error message and not an empty screen.
    let first = ask(&mut pages)?;
    let fetch = move || ask(&mut pages).map_err(|error| error.to_string());
    let fetcher = Fetcher::start(fetch).map_err(Failure::system("cannot start a thread"))?;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
        signal_hook::flag::register(signal, Arc::clone(&ended))
            .map_err(Failure::system("cannot catch signals"))?;
    }
    let has_colors = allows_colors();
    let failed = || Failure::system("cannot use the terminal");
    let mut screen = Screen::take().map_err(failed())?;
    let mut top = Top::default();
    top.resize(screen.size());
    let started = Instant::now();
    top.take(Duration::ZERO, Ok(first));
    let mut draw_at = Duration::ZERO;
    while !ended.load(Ordering::SeqCst) {
        let now = started.elapsed();
        if now >= draw_at {
            screen
                .draw(|frame| view::draw(frame, &top, now, has_colors))
                .map_err(failed())?;
            draw_at = now + DRAW_EVERY;
        }
        if let Some(answer) = fetcher.take().map_err(failed())? {
            top.take(started.elapsed(), answer);
        } else if screen.resize().map_err(failed())? {
            top.resize(screen.size());
        } else if let Some(key) = screen.next_key(NOTICE_EVERY).map_err(failed())? {
            if top.press(key) {
                return Ok(());
            }
        } else {
            continue;
        }
        draw_at = now;
    }
    Ok(())
}

fn ask(pages: &mut JobPages) -> Result<Answer, StatusError> {
    let report = pages.report()?;
    let server = pages.current().server().to_string();
    Ok(Answer { server, report })
}
