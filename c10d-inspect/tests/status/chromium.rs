//! Drives headless Chromium by the DevTools protocol over a pipe: no port, no driver program.

use std::collections::VecDeque;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long the browser may take for anything, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The variable that names the browser.
const VARIABLE: &str = "C10D_CHROMIUM";

/// A browser with one open page.
#[derive(Debug)]
pub(crate) struct Chromium {
    child: Child,
    input: Option<ChildStdin>,
    messages: Receiver<Value>,
    session: Option<String>,
    next_id: u64,
    /// The number of pages that have been loaded.
    loaded: usize,
    /// Errors and addresses that the page's events have reported.
    pub(crate) complaints: Vec<String>,
    pub(crate) requested: Vec<String>,
    _profile: TempDir,
    /// One browser at a time: each of them uses several processes.
    _turn: MutexGuard<'static, ()>,
}

static TURN: Mutex<()> = Mutex::new(());

impl Chromium {
    /// Starts the browser and opens an empty page of this size.
    pub(crate) fn start(width: u32, height: u32) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let profile = tempfile::tempdir().expect("a folder");
        // It speaks on descriptors 3 and 4, which only a shell can set without unsafe code.
        let mut child = Command::new("sh")
            .arg("-c")
            .arg("exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null")
            .arg(find_browser())
            .args([
                "--headless",
                "--remote-debugging-pipe",
                // It is needed as root, and only this test's pages are opened.
                "--no-sandbox",
                "--no-first-run",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-default-apps",
                "--hide-scrollbars",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let input = child.stdin.take();
        let output = child.stdout.take().expect("a pipe");
        let (sender, messages) = channel();
        // Ends with the browser, which closes the pipe.
        thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut message = Vec::new();
            while output
                .read_until(0, &mut message)
                .is_ok_and(|count| count > 0)
            {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else {
                    return;
                };
                if sender.send(value).is_err() {
                    return;
                }
                message.clear();
            }
        });
        let mut browser = Self {
            child,
            input,
            messages,
            session: None,
            next_id: 0,
            loaded: 0,
            complaints: Vec::new(),
            requested: Vec::new(),
            _profile: profile,
            _turn: turn,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let target = target["targetId"].as_str().expect("a target").to_owned();
        let attached = browser.call(
            "Target.attachToTarget",
            json!({"targetId": target, "flatten": true}),
        );
        browser.session = Some(
            attached["sessionId"]
                .as_str()
                .expect("a session")
                .to_owned(),
        );
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.resize(width, height, false);
        browser
    }

    /// Changes the size of the page.
    pub(crate) fn resize(&mut self, width: u32, height: u32, is_phone: bool) {
        let scale = if is_phone { 1.5 } else { 1.0 };
        let size = json!({
            "width": width, "height": height, "deviceScaleFactor": scale, "mobile": is_phone,
        });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Asks for the page's dark or light style.
    pub(crate) fn prefer(&mut self, scheme: &str) {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", features);
    }

    /// Opens a page and waits until it is loaded.
    pub(crate) fn open(&mut self, address: &str) {
        let loaded = self.loaded;
        let answer = self.call("Page.navigate", json!({"url": address}));
        assert!(answer["errorText"].is_null(), "{answer}");
        while self.loaded == loaded {
            let event = self.messages.recv_timeout(LIMIT);
            self.notice(&event.expect("the page is loaded"));
        }
    }

    /// The value of an expression of the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({
            "expression": expression, "returnByValue": true, "awaitPromise": true,
        });
        let answer = self.call("Runtime.evaluate", parameters);
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    /// The visible text of the first element that fits the selector.
    pub(crate) fn text(&mut self, selector: &str) -> String {
        let expression = format!(
            "document.querySelector({})?.innerText ?? ''",
            json!(selector)
        );
        self.value(&expression)
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// Waits until the expression is true.
    pub(crate) fn wait_until(&mut self, expression: &str) {
        let start = Instant::now();
        loop {
            let value = self.value(expression);
            if value.as_bool() == Some(true) {
                return;
            }
            assert!(
                start.elapsed() < LIMIT,
                "{expression} is {value}; the page: {}",
                self.text("body")
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Presses and releases a key: a character, or a name as `ArrowRight`.
    pub(crate) fn press(&mut self, key: &str) {
        let mut down = json!({"type": "keyDown", "key": key});
        if key.chars().count() == 1 {
            down["text"] = json!(key);
        } else if key == "Enter" {
            down["text"] = json!("\r");
        }
        self.call("Input.dispatchKeyEvent", down);
        self.call(
            "Input.dispatchKeyEvent",
            json!({"type": "keyUp", "key": key}),
        );
    }

    /// Types a text.
    pub(crate) fn enter(&mut self, text: &str) {
        for character in text.chars() {
            self.press(&character.to_string());
        }
    }

    /// Clicks with the mouse.
    pub(crate) fn click(&mut self, x: f64, y: f64) {
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Writes a picture of the visible part of the page.
    pub(crate) fn picture(&mut self, path: &Path) {
        let answer = self.call("Page.captureScreenshot", json!({"format": "png"}));
        let data = answer["data"].as_str().expect("a picture");
        let png = STANDARD.decode(data).expect("base64");
        std::fs::write(path, png).expect("a file");
    }

    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.next_id += 1;
        let id = self.next_id;
        let mut message = json!({"id": id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        let input = self.input.as_mut().expect("open until the end");
        input.write_all(&bytes).expect("the browser reads");
        let deadline = Instant::now() + LIMIT;
        let mut events = VecDeque::new();
        let answer = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let message = self
                .messages
                .recv_timeout(left)
                .unwrap_or_else(|error| panic!("the browser does not answer {method}: {error}"));
            if message["id"] == json!(id) {
                break message;
            }
            events.push_back(message);
        };
        for event in events {
            self.notice(&event);
        }
        assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
        answer["result"].clone()
    }

    fn notice(&mut self, event: &Value) {
        let parameters = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => self.complaints.push(parameters.to_string()),
            "Log.entryAdded" if parameters["entry"]["level"] == "error" => {
                self.complaints.push(parameters["entry"].to_string());
            }
            "Page.loadEventFired" => self.loaded += 1,
            "Page.javascriptDialogOpening" => self.complaints.push(parameters.to_string()),
            "Network.requestWillBeSent" => {
                let address = parameters["request"]["url"].as_str().unwrap_or_default();
                self.requested.push(address.to_owned());
            }
            _ => {}
        }
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // The browser exits when its pipe closes, even if it hangs.
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn find_browser() -> PathBuf {
    if let Some(path) = env::var_os(VARIABLE) {
        return path.into();
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    for name in ["chromium-headless-shell", "chromium", "google-chrome"] {
        for folder in env::split_paths(&folders) {
            let path = folder.join(name);
            if path.is_file() {
                return path;
            }
        }
    }
    panic!("no Chromium: install Debian's chromium-headless-shell, or set {VARIABLE}");
}
