//! HTTP: a client for status pages and debug servers.

mod client;

pub use client::{HttpError, HttpRequest, HttpResponse, Target, fetch, fetch_all};
