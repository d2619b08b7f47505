//! HTTP: the status server that receives a store's HTTP connections, clients, and a small server with a separate
//! listener.
//!
//! [`StatusServer`] serves, and [`StatusPages`] reads, all of it read-only:
//!
//! | path | answer |
//! |---|---|
//! | `/` | a page that renews itself |
//! | `/why.json` | the [`Report`](crate::Report), with the ranks that matter; `?ranks=all` for all of them |
//! | `/ranks.json` | ranks: `?from=N&count=M`, `?rank=N`, or `?find=TEXT` in host names, addresses and process ids |
//! | `/clients.json` | connections: `?from=N&count=M` |
//! | `/keys.json` | keys without their values: `?prefix=P&from=N&count=M` |
//! | `/status.json` | what the page shows |
//! | `/stats.json` | the store's counters |
//! | `/metrics` | the same for Prometheus, in its text format or as OpenMetrics, as `Accept` says |
//! | `/healthz` | 200 while the store's thread answers, otherwise 503 |

mod answer;
mod client;
mod counters;
mod exposition;
mod follow;
mod guard;
mod looker;
mod metrics;
mod request_server;
mod routes;
mod rows;
mod serve;
mod server;
mod status_error;
mod status_pages;
mod summary;
mod timeline;

pub use client::{HttpError, HttpRequest, HttpResponse, Target, fetch, fetch_all, store_behind};
pub use counters::StoreCounters;
pub use follow::Followed;
pub use looker::{StatusOptions, StatusSource};
pub use request_server::{RequestHandler, RequestServer};
pub use rows::{ClientRow, KeyRow};
pub use server::StatusServer;
pub use status_error::StatusError;
pub use status_pages::StatusPages;
pub use timeline::{Event, EventKind, RoundSize, Timeline};
