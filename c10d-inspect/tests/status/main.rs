//! The status server over real connections, and read by a real Prometheus client.
//!
//! The test that needs a Python with `prometheus_client` (`C10D_PROMETHEUS_PYTHON`) is ignored by default.

mod answers;
mod canned;
mod front;
mod scrape;
