//! Answers, with the headers that keep a browser from misusing them.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::{Response, StatusCode};
use serde::Serialize;

/// The address of the server that has accepted the request. A client of a relay cannot see it otherwise.
pub(super) const ANSWERED_AT: HeaderName = HeaderName::from_static("c10d-answered-at");

const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// An answer to one request.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    status: StatusCode,
    content_type: &'static str,
    security_policy: &'static str,
    extra: Option<(HeaderName, &'static str)>,
    body: Bytes,
}

impl Answer {
    pub(super) fn new(content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self {
            status: StatusCode::OK,
            content_type,
            security_policy: "default-src 'none'; frame-ancestors 'none'",
            extra: None,
            body: body.into(),
        }
    }

    pub(super) fn text(status: StatusCode, text: impl Into<String>) -> Self {
        let text = text.into() + "\n";
        Self {
            status,
            ..Self::new("text/plain; charset=utf-8", text)
        }
    }

    /// Bytes that a browser takes for nothing else.
    pub(super) fn bytes(status: u16, bytes: Vec<u8>) -> Self {
        Self {
            status: StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            ..Self::new("application/octet-stream", bytes)
        }
    }

    pub(super) fn json(value: &(impl Serialize + ?Sized)) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => Self::new("application/json", body),
            Err(error) => Self::text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }

    pub(super) fn with_header(self, name: HeaderName, value: &'static str) -> Self {
        Self {
            extra: Some((name, value)),
            ..self
        }
    }

    pub(super) fn with_security_policy(self, security_policy: &'static str) -> Self {
        Self {
            security_policy,
            ..self
        }
    }

    #[cfg(test)]
    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    pub(super) fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        let fixed = [
            (CONTENT_TYPE, self.content_type),
            (CONTENT_SECURITY_POLICY, self.security_policy),
            (CACHE_CONTROL, "no-store"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (X_FRAME_OPTIONS, "DENY"),
            (REFERRER_POLICY, "no-referrer"),
            (RESOURCE_POLICY, "same-origin"),
        ];
        for (name, value) in fixed.into_iter().chain(self.extra) {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

const PAGE: &str = include_str!("page.html");

/// The policy that lets only this script and this style run, whatever a rank gets into the page, and lets the page
/// reach only its own server. The test below computes the hashes.
const SECURITY_POLICY: &str = "default-src 'none'; \
    script-src 'sha256-YOrkx/7/dCto2EZSKdxVCqOh+SCmFh152P/dWG7qP6c='; \
    style-src 'sha256-MdbtAlUnm/G2R1GygtDkz0HkryBPsc8hsMQFUbRad1Y='; \
    connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page: one file with its style and its script.
pub(super) fn page() -> Answer {
    Answer::new("text/html; charset=utf-8", PAGE).with_security_policy(SECURITY_POLICY)
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use sha2::{Digest, Sha256};

    use super::*;

    fn only_element(name: &str) -> &'static str {
        let (start, end) = (format!("<{name}>"), format!("</{name}>"));
        let (_, rest) = PAGE.split_once(&start).expect("the element");
        let (content, rest) = rest.split_once(&end).expect("its end");
        assert!(!rest.contains(&start), "one {name} only");
        content
    }

    #[test]
    fn the_policy_allows_the_script_and_the_style() {
        for name in ["script", "style"] {
            let hash = STANDARD.encode(Sha256::digest(only_element(name)));
            let part = format!("{name}-src 'sha256-{hash}'");
            assert!(
                SECURITY_POLICY.contains(&part),
                "change the policy to {part}"
            );
        }
    }

    #[test]
    fn the_page_is_one_file_without_markup_from_texts() {
        for forbidden in [
            "http://",
            "https://",
            "src=",
            "@import",
            "url(",
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "localStorage",
            "document.cookie",
            "style=\"",
            " onclick",
        ] {
            let text = PAGE.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains(forbidden), "{forbidden}");
        }
    }
}
