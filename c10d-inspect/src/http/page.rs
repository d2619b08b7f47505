//! The page: one file with its style and its script.

use super::answer::Answer;

const PAGE: &str = include_str!("page.html");

/// Only this script and this style run, whatever a rank gets into the page; and it reaches only its own server. The
/// test below computes the hashes.
const SECURITY_POLICY: &str = "default-src 'none'; \
    script-src 'sha256-YOrkx/7/dCto2EZSKdxVCqOh+SCmFh152P/dWG7qP6c='; \
    style-src 'sha256-MdbtAlUnm/G2R1GygtDkz0HkryBPsc8hsMQFUbRad1Y='; \
    connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(super) fn answer() -> Answer {
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
