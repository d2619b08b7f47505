//! `c10d top`: all ranks by state, on the whole terminal, renewed each second.

mod cause;
mod fetcher;
mod grid;
mod keys;
mod model;
mod screen;
mod source;
#[cfg(test)]
mod tests;
mod view;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use c10d_inspect::http::JobPages;
use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::failure::Failure;
use crate::output::allows_colors;
use crate::status::StatusArgs;
use fetcher::Fetcher;
use model::{Answer, Input, Next, Top};
use screen::Screen;

/// How long an answer or a signal may wait until it is noticed.
const NOTICE_EVERY: Duration = Duration::from_millis(100);

/// How often the ages on the screen are renewed.
const DRAW_EVERY: Duration = Duration::from_secs(1);

/// How soon an answer is drawn: many arrive in a row while ranks are sorted.
const DRAW_ANSWER_AFTER: Duration = Duration::from_millis(200);

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
    let first = source::overview(&mut pages)?;
    let mut fetcher = Fetcher::start(move |request| source::answer(&mut pages, request))
        .map_err(Failure::system("cannot start a thread"))?;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
        signal_hook::flag::register(signal, Arc::clone(&ended))
            .map_err(Failure::system("cannot catch signals"))?;
    }
    let has_colors = allows_colors();
    let failed = || Failure::system("cannot use the terminal");
    let mut screen = Screen::take().map_err(failed())?;
    let (columns, rows) = screen.size();
    let mut top = Top::new(columns, rows);
    let started = Instant::now();
    let mut next = top.step(Duration::ZERO, Input::Answer(Answer::Overview(first)));
    let mut draw_at = Duration::ZERO;
    loop {
        match next {
            Next::Quit => return Ok(()),
            Next::Fetch(request) => fetcher.request(request),
            Next::Wait => {}
        }
        if ended.load(Ordering::SeqCst) {
            return Ok(());
        }
        let now = started.elapsed();
        if now >= draw_at {
            screen
                .draw(|frame| view::draw(frame, &top, now, has_colors))
                .map_err(failed())?;
            draw_at = now + DRAW_EVERY;
        }
        let input = next_input(&mut screen, &mut fetcher).map_err(failed())?;
        match input {
            Input::Tick => {}
            Input::Answer(_) => draw_at = draw_at.min(now + DRAW_ANSWER_AFTER),
            Input::Key(_) | Input::Resize { .. } => draw_at = now,
        }
        next = top.step(started.elapsed(), input);
    }
}

/// What happens next; waits for it for a moment.
fn next_input(screen: &mut Screen, fetcher: &mut Fetcher) -> io::Result<Input> {
    if let Some(answer) = fetcher.take()? {
        return Ok(Input::Answer(answer));
    }
    if screen.resize()? {
        let (columns, rows) = screen.size();
        return Ok(Input::Resize { columns, rows });
    }
    let key = screen.next_key(NOTICE_EVERY)?;
    Ok(key.map_or(Input::Tick, Input::Key))
}
