//! The status server over real connections, in a real browser, and read by a real Prometheus client.
//!
//! The tests that need Chromium (`C10D_CHROMIUM`, or `chromium-headless-shell` or `chromium` on PATH) or a Python with
//! `prometheus_client` (`C10D_PROMETHEUS_PYTHON`) are ignored by default. With `C10D_IMAGES=1` the browser's tests
//! rewrite the pictures of docs/images.

mod answers;
mod browser;
mod canned;
mod chromium;
mod front;
mod pages;
mod ranks;
mod scrape;
