//! `c10d top` on a pseudo-terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use rustix::process::Signal;
use rustix::termios::{LocalModes, tcgetattr, tcsetwinsize};

use crate::gloo::rank_that_waits;
use crate::pages::{Pages, stuck_job};
use crate::process::{Running, Server, command, run, until};
use crate::pty::{size_of, terminal};

const COLUMNS: usize = 100;
const ROWS: usize = 30;

/// A terminal that knows what ratatui sends: text, positions, colors, and modes. Any other sequence fails
/// the test.
#[derive(Debug)]
struct Screen {
    cells: Vec<Vec<char>>,
    at: (usize, usize),
    escape: Option<String>,
    bytes: Vec<u8>,
    /// The modes that are set, as "?1049" for the alternate screen.
    modes: Vec<String>,
}

impl Default for Screen {
    fn default() -> Self {
        Self {
            cells: vec![vec![' '; COLUMNS]; ROWS],
            at: (0, 0),
            escape: None,
            bytes: Vec::new(),
            modes: Vec::new(),
        }
    }
}

impl Screen {
    fn take(&mut self, byte: u8) {
        self.bytes.push(byte);
        let text = match std::str::from_utf8(&self.bytes) {
            Ok(text) => text.to_owned(),
            Err(error) if error.error_len().is_none() => return,
            Err(error) => panic!("{error}"),
        };
        self.bytes.clear();
        text.chars().for_each(|char| self.take_char(char));
    }

    fn take_char(&mut self, char: char) {
        let (line, column) = self.at;
        match (&mut self.escape, char) {
            (Some(escape), _) => {
                escape.push(char);
                if escape.len() > 1 && char.is_ascii_alphabetic() {
                    let escape = self.escape.take().unwrap();
                    self.execute(&escape[1..]);
                }
            }
            (None, '\x1b') => self.escape = Some(String::new()),
            (None, '\r') => self.at.1 = 0,
            (None, '\n') => self.at.0 = (line + 1).min(ROWS - 1),
            (None, char) => {
                assert!(!char.is_control(), "{char:?} is printed");
                self.cells[line][column.min(COLUMNS - 1)] = char;
                self.at.1 += 1;
            }
        }
    }

    fn execute(&mut self, sequence: &str) {
        let (arguments, command) = sequence.split_at(sequence.len() - 1);
        match command {
            "m" => {}
            "H" => {
                let mut numbers = arguments
                    .split(';')
                    .map(|number| number.parse().unwrap_or(1));
                let mut next = || numbers.next().unwrap_or(1usize) - 1;
                self.at = (next(), next());
            }
            "J" | "K" => {
                let from = if arguments == "2" { 0 } else { self.at.0 };
                self.cells[from..]
                    .iter_mut()
                    .for_each(|line| line.fill(' '));
            }
            "h" => self.modes.push(arguments.to_owned()),
            "l" => self.modes.retain(|mode| mode != arguments),
            _ => panic!("unknown escape {sequence:?}"),
        }
    }

    fn text(&self) -> String {
        let lines = self
            .cells
            .iter()
            .map(|line| line.iter().collect::<String>());
        lines
            .map(|line| line.trim_end().to_owned() + "\n")
            .collect()
    }
}

fn top_on(far: &File, server: impl ToString) -> Command {
    let mut top = command(["top", "--connect", &server.to_string()]);
    top.env("TERM", "xterm")
        .stdin(far.try_clone().unwrap())
        .stdout(far.try_clone().unwrap())
        .stderr(far.try_clone().unwrap());
    top
}

/// `c10d top` with a terminal of its own.
struct Shown {
    running: Running,
    keys: File,
    /// Keeps the terminal open, to ask for its modes.
    far: OwnedFd,
    screen: Arc<Mutex<Screen>>,
    reader: JoinHandle<()>,
}

impl Shown {
    fn start(server: impl ToString) -> Self {
        let (near, far) = terminal(COLUMNS, ROWS);
        assert!(is_cooked(&far));
        let top = top_on(&far, server);
        let running = Running::start(top);
        let screen = Arc::<Mutex<Screen>>::default();
        let shown = Arc::clone(&screen);
        let mut output = File::from(near.try_clone().unwrap());
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                let mut screen = shown.lock().unwrap();
                buffer[..count].iter().for_each(|byte| screen.take(*byte));
            }
        });
        Self {
            running,
            keys: File::from(near),
            far: far.into(),
            screen,
            reader,
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    #[track_caller]
    fn wait_for(&self, text: &str) {
        let start = std::time::Instant::now();
        until("the screen shows it", || {
            let shown = self.screen.lock().unwrap().text();
            assert!(
                start.elapsed() < crate::process::PATIENCE / 2,
                "no {text:?} in\n{shown}"
            );
            shown.contains(text)
        });
    }

    fn modes(&self) -> Vec<String> {
        self.screen.lock().unwrap().modes.clone()
    }

    /// Waits for the end, and asserts that the terminal is as before. Returns the exit code.
    fn end(self) -> Option<i32> {
        let code = self.running.end().code;
        assert!(is_cooked(&self.far), "the terminal is still raw");
        drop(self.far);
        self.reader.join().unwrap();
        let screen = self.screen.lock().unwrap();
        let without_cursor: Vec<&String> = screen.modes.iter().filter(|m| *m != "?25").collect();
        assert_eq!(without_cursor, [""; 0], "the screen is given back");
        assert!(
            screen.modes.contains(&"?25".to_owned()),
            "the cursor is shown"
        );
        code
    }
}

fn is_cooked(terminal: &impl std::os::fd::AsFd) -> bool {
    let modes = tcgetattr(terminal).unwrap().local_modes;
    modes.contains(LocalModes::ICANON | LocalModes::ECHO)
}

#[test]
fn the_rendezvous_leads_to_the_ranks_of_the_workers_store() {
    let (rendezvous, workers) = (Pages::start(), Pages::start());
    stuck_job(&workers, 4);
    rendezvous.set(
        "/why.json",
        &serde_json::json!({ "headline": "The workers use another store.", "workers_stores": [
            { "run_id": "job", "round": 0, "address": workers.address.to_string() }
        ] }),
    );
    let mut shown = Shown::start(rendezvous.address);
    shown.wait_for(&format!("c10d top  {}  updated", workers.address));
    shown.wait_for("waits for rank 2");
    shown.press("q");
    assert_eq!(shown.end(), Some(0));
}

#[test]
fn keys_show_the_grid_the_table_and_one_rank() {
    let pages = Pages::start();
    stuck_job(&pages, 500);
    let mut top = Shown::start(pages.address);
    top.wait_for("Waiting for rank 2 (1 of 500) for 31 s.");
    top.wait_for("      0 ww?www");
    assert_eq!(top.modes(), ["?1049"], "the alternate screen, no cursor");
    top.press("\t");
    top.wait_for("WHAT IT DOES");
    top.wait_for("node\\u{1b}[2J7");
    top.press("/3");
    top.wait_for("/3_ ");
    top.press("\r\r");
    top.wait_for("rank 3 on node");
    top.press("\x1b");
    top.wait_for("WHAT IT DOES");
    top.press("ss");
    top.wait_for("s sort (longest wait)");
    top.press("q");
    assert_eq!(top.end(), Some(0));
    let asked = pages.asked();
    assert!(asked.iter().all(|it| it == "/why.json?ranks=all"));
}

#[test]
fn the_screen_is_renewed_and_follows_the_terminals_size() {
    let pages = Pages::start();
    stuck_job(&pages, 4);
    let mut top = Shown::start(pages.address);
    top.wait_for("4 ranks: ? 1 not seen  w 3 waiting");
    stuck_job(&pages, 5);
    top.wait_for("5 ranks: ? 1 not seen  w 4 waiting");
    tcsetwinsize(&top.keys, size_of(60, 20)).unwrap();
    until("the help is in the last line of the smaller screen", || {
        let screen = top.screen.lock().unwrap().text();
        screen.lines().nth(19).unwrap().starts_with("q quit")
    });
    top.press("\x03");
    assert_eq!(top.end(), Some(0));
}

#[test]
fn a_signal_gives_the_terminal_back() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let pages = Pages::start();
        stuck_job(&pages, 4);
        let top = Shown::start(pages.address);
        top.wait_for("Waiting for rank 2");
        top.running.signal(signal);
        assert_eq!(top.end(), Some(0));
    }
}

#[test]
fn a_terminal_that_disappears_ends_the_command() {
    let pages = Pages::start();
    stuck_job(&pages, 4);
    let (near, far) = terminal(COLUMNS, ROWS);
    let running = Running::start(top_on(&far, pages.address));
    drop(far);
    let mut near = File::from(near);
    let mut shown = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&shown).contains("rank 2") {
        let count = near.read(&mut buffer).unwrap();
        shown.extend_from_slice(&buffer[..count]);
    }
    drop(near);
    assert_eq!(running.end().code, Some(3));
}

#[test]
fn the_ranks_of_a_real_server_are_shown() {
    let server = Server::start();
    let _ranks = [0, 1, 3].map(|rank| rank_that_waits(&server, rank, 4, 2));
    let mut top = Shown::start(server.address);
    top.wait_for("4 ranks: ? 1 not seen  w 3 waiting  suspect: rank 2");
    top.wait_for("waits for the address of rank 2");
    top.press("\x1b[H\r");
    top.wait_for(", pid 4000: waits for the address of rank 2");
    top.wait_for("  waits for    /default_pg/0//cpu//0/2");
    drop(server);
    top.wait_for("cannot connect to");
    top.press("q");
    assert_eq!(top.end(), Some(0));
}

#[test]
#[cfg(feature = "etcd")]
#[ignore = "needs etcd (C10D_ETCD)"]
fn a_store_in_etcd_is_followed() {
    use crate::candidates::Candidate;
    let etcd = crate::etcd::Etcd::start();
    let mut first = Candidate::start(&etcd);
    let _ = first.store();
    let mut top = Shown::start(etcd.place("job"));
    let shows = |address: &str| format!("c10d top  {address}  updated");
    top.wait_for(&shows(first.address()));
    for fault in [Signal::KILL, Signal::STOP] {
        let mut next = Candidate::start(&etcd);
        first.running.signal(fault);
        let _ = next.store();
        top.wait_for(&shows(next.address()));
        first = next;
    }
    top.press("q");
    assert_eq!(top.end(), Some(0));
}

#[test]
fn without_a_terminal_or_a_server_there_is_a_message() {
    let pages = Pages::start();
    let address = pages.address.to_string();
    run(["top", "--connect", &address]).assert_fails(2, "needs a terminal");
}

#[test]
fn a_server_that_cannot_be_asked_is_a_message_on_an_untouched_screen() {
    let server = Server::start_with(["store", "serve", "--port=0", "--no-status"]);
    let (near, far) = terminal(COLUMNS, ROWS);
    let mut top = top_on(&far, server.address);
    top.stderr(std::process::Stdio::piped());
    let ended = Running::start(top).end();
    ended.assert_fails(3, "without status pages");
    drop(far);
    let mut shown = Vec::new();
    // A terminal whose far end is closed fails after its last byte.
    let _ = File::from(near).read_to_end(&mut shown);
    assert_eq!(shown, b"");
}
