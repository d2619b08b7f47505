//! The page in a real browser.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use c10d_inspect::http::EventKind;
use c10d_inspect::{NodeReport, RankState, Report, Sureness};
use c10d_store::SnapshotError;

use crate::canned::{Canned, job_without, waiting_rank};
use crate::chromium::Chromium;
use crate::front::{Front, LIMIT};
use crate::ranks::{Rank, job_without_rank_2};

/// Pictures are written only on request: their pixels differ with the machine's fonts.
const IMAGES_VARIABLE: &str = "C10D_IMAGES";

/// The largest picture, in bytes: they are kept in the repository.
const PICTURE_BYTES_MAX: u64 = 150_000;

/// The time from the start of loading to a drawn grid, in milliseconds.
const GRID_MS_MAX: f64 = 1000.0;

const SMALL_WINDOW: (u32, u32) = (1200, 820);

fn take_picture(browser: &mut Chromium, name: &str) {
    if env::var_os(IMAGES_VARIABLE).is_none() {
        return;
    }
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/images"));
    fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join(name);
    browser.picture(&path);
    let bytes = fs::metadata(&path).expect("the picture").len();
    assert!(bytes <= PICTURE_BYTES_MAX, "{name} has {bytes} bytes");
}

fn open(front: &Front, window: (u32, u32)) -> Chromium {
    let mut browser = Chromium::start(window.0, window.1);
    browser.open(&format!("http://{}/", front.address));
    browser
}

/// Checks that nothing was blocked, that no script failed, and that only this server got requests.
fn assert_quiet(browser: &mut Chromium, front: &Front) {
    browser.value("1");
    assert!(browser.complaints.is_empty(), "{:#?}", browser.complaints);
    let own = format!("http://{}/", front.address);
    let others: Vec<_> = browser
        .requested
        .iter()
        .filter(|address| !address.starts_with(&own) && !address.starts_with("data:"))
        .collect();
    assert!(others.is_empty(), "{others:#?}");
}

#[test]
#[ignore = "needs Chromium"]
fn a_broken_job_shows_its_missing_rank_until_it_comes() {
    let front = Front::of_a_store();
    let mut ranks = job_without_rank_2(front.address);
    front
        .status
        .timeline()
        .push(EventKind::Round, "round 0: 1 node, 4 workers");
    let mut browser = open(&front, SMALL_WINDOW);
    browser.wait_until("document.getElementById('grid').dataset.ranks === '4'");
    // A wait is a finding only after some time.
    browser.wait_until("document.getElementById('verdict').classList.contains('stuck')");
    let headline = browser.text("#headline");
    assert!(headline.contains("rank 2"), "{headline}");
    assert!(browser.text("#waits").contains("/default_pg/0//cpu//0/2"));
    assert!(
        browser
            .value("document.title")
            .as_str()
            .is_some_and(|title| title.starts_with('▲'))
    );

    // By keyboard: to the suspect, and to its neighbour that waits.
    browser.press("n");
    browser.wait_until("document.querySelector('#detail h3')?.innerText.includes('Rank 2')");
    browser.value("document.getElementById('grid').focus()");
    browser.press("ArrowRight");
    browser.wait_until("document.querySelector('#detail dl')?.innerText.includes('pid 4703')");
    let detail = browser.text("#detail");
    for part in [
        "Rank 3",
        "waiting",
        "gpu-node-1",
        "/default_pg/0//cpu//0/2",
        "Since",
    ] {
        assert!(detail.contains(part), "{part}: {detail}");
    }
    browser.press("Escape");
    browser.wait_until("document.querySelector('#detail h3') === null");

    // Rank 2 comes: the page renews itself.
    let mut late = Rank::connect(front.address, 2, 4);
    late.publish("gpu-node-2");
    for rank in &mut ranks {
        rank.finish_waiting();
        rank.read_address(2);
        rank.read_address(3);
    }
    (0..4).for_each(|of| late.read_address(of));
    browser.wait_until("!document.getElementById('verdict').classList.contains('stuck')");
    browser.wait_until("document.getElementById('events').innerText.includes('continues')");
    assert_quiet(&mut browser, &front);
}

#[test]
#[ignore = "needs Chromium"]
fn a_rank_is_found_among_16384_and_the_grid_is_there_within_a_second() {
    let front = Front::start(Canned::new(job_without(16_384, &[9001])));
    let mut browser = open(&front, (1280, 860));
    // Other processes also use the machine: one of several loads must be undisturbed.
    let mut times = Vec::new();
    while times.last().is_none_or(|ms| *ms >= GRID_MS_MAX) {
        assert!(times.len() < 5, "the grid was drawn after {times:?} ms");
        browser.open(&format!("http://{}/", front.address));
        browser.wait_until("document.getElementById('grid').dataset.ranks === '16384'");
        let ms = browser.value("performance.getEntriesByName('grid')[0].startTime");
        times.push(ms.as_f64().expect("a time"));
    }
    let fits =
        "document.querySelector('#grid canvas').getBoundingClientRect().bottom <= innerHeight";
    assert!(browser.value(fits) == true, "the grid is on one screen");

    browser.press("/");
    browser.enter("12345");
    browser.press("Enter");
    browser.wait_until("document.querySelector('#detail dl')?.innerText.includes('node1543')");
    assert!(browser.text("#detail").contains("Rank 12345"));

    browser.press("/");
    browser.enter("node1125");
    browser.wait_until("document.querySelectorAll('#found button').length === 8");
    browser.press("Enter");
    browser.wait_until("document.querySelector('#detail h3')?.innerText.includes('Rank 9000')");

    // With the mouse, on the cell right of it: the suspect.
    let place = "(() => { const box = document.querySelector('#grid canvas').getBoundingClientRect(); \
         return [box.left + 3 + (9001 % shape.columns + .4) * shape.size, \
                 box.top + 3 + (Math.floor(9001 / shape.columns) + .4) * shape.size]; })()";
    let place = browser.value(place);
    browser.click(place[0].as_f64().expect("x"), place[1].as_f64().expect("y"));
    browser.wait_until("document.querySelector('#detail')?.innerText.includes('never connected')");
    take_picture(&mut browser, "status-16384.png");
    assert_quiet(&mut browser, &front);
}

#[test]
#[ignore = "needs Chromium"]
fn hostile_names_do_nothing() {
    const MARKUP: &str = "<img src=x onerror=\"document.title='owned'\"><script>owned=1</script>";
    const ESCAPES: &str = "\u{1b}[31m\u{202e}\u{0}";
    let hostile = format!("{MARKUP}{ESCAPES}");

    // From a real store: a key and a host name that a rank wrote.
    let front = Front::of_a_store();
    let mut rank = Rank::connect(front.address, 0, 2).with_prefix(&format!("/{hostile}//cpu//0/"));
    rank.publish(&hostile);
    rank.start_to_wait(1);
    let mut browser = open(&front, SMALL_WINDOW);
    browser.wait_until("document.getElementById('waits').innerText.includes('<script>')");
    assert_harmless(&mut browser, &front);

    // The texts of this report are not cleaned anywhere.
    let mut report = job_without(3, &[2]);
    report.headline.clone_from(&hostile);
    report.findings[0].text.clone_from(&hostile);
    report.waits[0].key.clone_from(&hostile);
    report.waits[0].meaning.clone_from(&hostile);
    for rank in &mut report.ranks {
        rank.host = Some(hostile.clone());
        rank.doing.clone_from(&hostile);
        rank.last_request = Some(hostile.clone());
        rank.waits_for = Some(hostile.clone());
        rank.debug_url = Some("javascript:owned=1".to_owned());
    }
    let mut node = NodeReport::default();
    node.host.clone_from(&hostile);
    report.nodes = vec![node];
    let front = Front::start(Canned::new(report));
    front.status.timeline().push(EventKind::Note, &hostile);
    browser.requested.clear();
    browser.open(&format!("http://{}/", front.address));
    browser.wait_until("document.getElementById('headline').innerText.includes('onerror')");
    browser.press("n");
    browser.wait_until("document.querySelector('#detail dl')?.innerText.includes('<script>')");
    browser.press("/");
    browser.enter("onerror");
    browser.wait_until("document.querySelectorAll('#found button').length === 3");
    assert_harmless(&mut browser, &front);
}

fn assert_harmless(browser: &mut Chromium, front: &Front) {
    let owned = "typeof owned !== 'undefined' || document.title === 'owned'";
    assert!(browser.value(owned) == false);
    assert_eq!(browser.value("document.images.length"), 0);
    assert_eq!(browser.value("document.scripts.length"), 1);
    assert_eq!(browser.value("document.querySelectorAll('a').length"), 0);
    let raw = "/[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202e]/.test(document.body.innerText + document.title)";
    assert!(browser.value(raw) == false, "{}", browser.text("body"));
    assert_quiet(browser, front);
}

#[test]
#[ignore = "needs Chromium"]
fn the_page_says_when_the_server_is_gone() {
    let canned = Canned::new(job_without(4, &[2]));
    let front = Front::start(canned.clone());
    let mut browser = open(&front, SMALL_WINDOW);
    browser.wait_until("document.getElementById('grid').dataset.ranks === '4'");
    canned.answers().error = Some(SnapshotError::Stopped);
    browser.wait_until("!document.getElementById('gone').hidden");
    browser.wait_until("document.getElementById('gone').innerText.includes('has stopped')");
    // The known state stays on the page.
    assert!(browser.text("#headline").contains("rank 2"));
    canned.answers().error = None;
    browser.wait_until("document.getElementById('gone').hidden");

    drop(front);
    browser.wait_until("!document.getElementById('gone').hidden");
    let text = browser.text("#gone");
    assert!(text.starts_with("No answer from the store since"), "{text}");
}

#[test]
#[ignore = "needs Chromium"]
fn the_page_is_readable_in_light_in_dark_and_on_a_phone() {
    let canned = Canned::new(job_for_pictures());
    {
        let mut answers = canned.answers();
        let counters = &mut answers.counters;
        (counters.connections, counters.waits, counters.keys) = (35, 31, 37);
        counters.stored_bytes = 9_400;
    }
    let front = Front::start(canned);
    let events = [
        (240, EventKind::Round, "round 0: 4 nodes, 32 workers"),
        (
            102,
            EventKind::NodeLost,
            "lost gpu-node-3: no heartbeat for 15 s",
        ),
        (
            101,
            EventKind::Restart,
            "restart 1 of 3, with 3 nodes or more",
        ),
        (64, EventKind::NodeJoined, "gpu-node-3 is back"),
        (60, EventKind::Round, "round 1: 4 nodes, 32 workers"),
    ];
    for (seconds_ago, kind, text) in events {
        let at = SystemTime::now() - Duration::from_secs(seconds_ago);
        front.status.timeline().push_at(at, kind, text);
    }
    let mut browser = open(&front, (1200, 925));
    browser.wait_until("document.getElementById('grid').dataset.ranks === '32'");
    browser.press("n");
    browser.wait_until("document.querySelector('#detail dl') !== null");
    // A curve of requests needs some seconds.
    browser.wait_until("rates.length >= 8");
    take_picture(&mut browser, "status-light.png");
    assert_contrast(&mut browser);

    browser.prefer("dark");
    browser.wait_until("colours['--back'] !== '#f6f6f3'");
    browser.wait_until("document.getElementById('live').innerText.includes('just now')");
    take_picture(&mut browser, "status-dark.png");
    assert_contrast(&mut browser);

    browser.prefer("light");
    browser.press("Escape");
    browser.resize(390, 844, true);
    browser.wait_until("innerWidth === 390 && grid.clientWidth < 390");
    assert!(browser.value("document.documentElement.scrollWidth <= innerWidth") == true);
    browser.press("n");
    browser.wait_until("getComputedStyle(document.getElementById('detail')).position === 'fixed'");
    let sheet =
        "document.getElementById('detail').getBoundingClientRect().bottom <= innerHeight + 1";
    browser.wait_until(sheet);
    take_picture(&mut browser, "status-phone.png");
    assert_quiet(&mut browser, &front);
}

/// Every text has a contrast of 4.5 to its background (WCAG 2, AA), by the colours that the style names.
fn assert_contrast(browser: &mut Chromium) {
    let contrast = "(() => {
        const light = hex => {
            const full = hex.length === 4 ? '#' + [...hex.slice(1)].map(digit => digit + digit).join('') : hex;
            const parts = [1, 3, 5].map(at => parseInt(full.slice(at, at + 2), 16) / 255)
                .map(part => part <= .03928 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4);
            return .2126 * parts[0] + .7152 * parts[1] + .0722 * parts[2];
        };
        const style = getComputedStyle(document.documentElement);
        const value = name => light(style.getPropertyValue(name).trim());
        const bad = [];
        for (const text of ['--ink', '--dim', '--bad']) for (const back of ['--back', '--card', '--soft', '--bad-soft', '--good-soft']) {
            const [a, b] = [value(text), value(back)].sort();
            const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
            if (!(ratio >= 4.5)) bad.push(`${text} on ${back}: ${ratio.toFixed(2)}`);
        }
        return bad.join('; ');
    })()";
    assert_eq!(browser.value(contrast), "");
    let unnamed = "[...document.querySelectorAll('button, input, [role=application], canvas[role=img]')]
        .filter(element => !(element.innerText?.trim() || element.getAttribute('aria-label') || element.labels?.length))
        .map(element => element.outerHTML).join()";
    assert_eq!(browser.value(unnamed), "", "elements without a name");
}

/// 32 ranks on four nodes: rank 19 has not come back after a restart.
/// At every width, because a break after the hyphen depends on it.
#[test]
#[ignore = "needs Chromium"]
fn a_command_is_not_broken() {
    let mut report = job_without(4, &[2]);
    report.headline = "Rank 2 is stopped: pid 40003 on gpu-node-3 is in state T. Continue it with kill -CONT 40003.".to_owned();
    report.findings[0].text =
        "rank 2 (process 3, state T of pid 40003): continue it with kill -CONT 40003".to_owned();
    let front = Front::start(Canned::new(report));
    let mut browser = open(&front, (390, 844));
    browser.wait_until("document.querySelectorAll('.command').length >= 2");
    for width in (320..900).step_by(7) {
        browser.resize(width, 844, false);
        browser.wait_until(&format!("innerWidth === {width}"));
        let lines = "Math.max(...[...document.querySelectorAll('.command')].map(it => it.getClientRects().length))";
        assert_eq!(browser.value(lines), 1, "{width}");
    }
    let text = browser.text("#headline");
    assert!(
        text.ends_with("Continue it with kill -CONT 40003."),
        "{text}"
    );
    assert_quiet(&mut browser, &front);
}

fn job_for_pictures() -> Report {
    let mut report = job_without(32, &[19]);
    report.headline =
        "Waiting for rank 19 (1 of 32) for 31 s: it has never connected to this store.".to_owned();
    report.findings[0].text = "Rank 19 is pid 40003 on gpu-node-3, alive, started 40 s ago: it is still importing, or it \
        has not reached init_process_group. The 31 other ranks wait for it."
        .to_owned();
    for rank in &mut report.ranks {
        rank.host = Some(format!("gpu-node-{}", rank.rank / 8 + 1));
        rank.node_rank = Some(rank.rank / 8);
    }
    let suspect = &mut report.ranks[19];
    let host = suspect.host.clone();
    *suspect = waiting_rank(19, 19);
    suspect.host = host;
    suspect.node_rank = Some(2);
    suspect.is_suspect = true;
    suspect.sureness = Sureness::Launched;
    suspect.state = RankState::Starting;
    suspect.doing = "started 40 s ago, has not connected".to_owned();
    suspect.waits_for = None;
    suspect.waits_ms = None;
    suspect.last_request = None;
    suspect.last_request_ms = None;
    suspect.connections.clear();
    report.nodes = (0..4)
        .map(|node| {
            let mut row = NodeReport::default();
            row.host = format!("gpu-node-{}", node + 1);
            row.node_rank = Some(node);
            row.pid = 3100;
            row.is_connected = true;
            row.restarts = 1;
            row.announced_ms = 700;
            row.ranks.0 = (8 * node..8 * node + 8).collect();
            row
        })
        .collect();
    report
}

#[test]
#[ignore = "needs Chromium"]
fn a_page_in_the_background_asks_for_nothing() {
    let canned = Canned::new(job_without(4, &[2]));
    let front = Front::start(canned.clone());
    let mut browser = open(&front, SMALL_WINDOW);
    browser.wait_until("document.getElementById('grid').dataset.ranks === '4'");
    browser.value(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true}); \
         document.dispatchEvent(new Event('visibilitychange'));",
    );
    browser.wait_until("!renewing");
    let before = canned.answers().counted;
    let start = Instant::now();
    while start.elapsed().as_millis() < 2500 {
        browser.value("1");
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(canned.answers().counted, before);
    browser.value("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'));");
    let start = Instant::now();
    while canned.answers().counted == before {
        assert!(start.elapsed() < LIMIT, "it does not go on");
        browser.value("1");
    }
}
