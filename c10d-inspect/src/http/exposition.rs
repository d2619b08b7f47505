//! The two formats in which Prometheus reads metrics, and which one a request asks for.

use std::fmt::{Display, Write as _};

use hyper::HeaderMap;
use hyper::header::ACCEPT;

/// A format of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Prometheus' text format 0.0.4, which every reader of metrics has, `promtool check metrics` among them.
    Prometheus,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// Returns the format that the request prefers. Without a word about OpenMetrics that is Prometheus' format.
    pub(super) fn accepted(headers: &HeaderMap) -> Self {
        let (mut open_metrics, mut plain) = (0.0, 0.0);
        let values = headers.get_all(ACCEPT).iter();
        for range in values
            .filter_map(|value| value.to_str().ok())
            .flat_map(|text| text.split(','))
        {
            let mut parts = range.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
            let weight = match media_type.as_str() {
                "application/openmetrics-text" => &mut open_metrics,
                "text/plain" => &mut plain,
                _ => continue,
            };
            let quality =
                parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
            let quality: f32 = quality.map_or(1.0, |it| it.parse().unwrap_or(0.0));
            *weight = quality.max(*weight);
        }
        if open_metrics > 0.0 && open_metrics >= plain {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    /// The media type of a text in this format.
    pub(super) const fn media_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Metrics as text. No label's value has a character that the formats escape.
#[derive(Debug)]
pub(super) struct Text {
    format: Format,
    text: String,
}

impl Text {
    pub(super) const fn new(format: Format) -> Self {
        Self {
            format,
            text: String::new(),
        }
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.metric(name, help, "gauge", None, [("", value)]);
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.metric(name, help, "counter", None, [("", value)]);
    }

    pub(super) fn counters<'a>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'a str, u64)>,
    ) {
        self.metric(name, help, "counter", Some(label), values);
    }

    pub(super) fn metric<'a, V: Display>(
        &mut self,
        name: &str,
        help: &str,
        kind: &str,
        label: Option<&str>,
        values: impl IntoIterator<Item = (&'a str, V)>,
    ) {
        let total = if kind == "counter" { "_total" } else { "" };
        // OpenMetrics names the family, Prometheus' format the samples.
        let of_family = match self.format {
            Format::Prometheus => total,
            Format::OpenMetrics => "",
        };
        // Writing to a string cannot fail.
        _ = writeln!(
            self.text,
            "# HELP {name}{of_family} {help}.\n# TYPE {name}{of_family} {kind}"
        );
        for (of, value) in values {
            _ = match label {
                Some(label) => writeln!(self.text, "{name}{total}{{{label}=\"{of}\"}} {value}"),
                None => writeln!(self.text, "{name}{total} {value}"),
            };
        }
    }

    /// Returns the whole text.
    pub(super) fn finish(self) -> String {
        let end = match self.format {
            Format::Prometheus => "",
            Format::OpenMetrics => "# EOF\n",
        };
        self.text + end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn the_format_is_the_one_that_the_request_prefers() {
        use Format::{OpenMetrics, Prometheus};
        for (accept, format) in [
            ("", Prometheus),
            ("*/*", Prometheus),
            ("text/html, application/json;q=0.9", Prometheus),
            ("text/plain;version=0.0.4", Prometheus),
            ("application/openmetrics-text", OpenMetrics),
            (
                " Application/OpenMetrics-Text ; version=1.0.0 , */*",
                OpenMetrics,
            ),
            // Prometheus 2.42.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                OpenMetrics,
            ),
            (
                "text/plain;q=0.9, application/openmetrics-text;q=0.1",
                Prometheus,
            ),
            (
                "text/plain;q=0.1, application/openmetrics-text; q=0.9",
                OpenMetrics,
            ),
            ("application/openmetrics-text;q=0", Prometheus),
            ("application/openmetrics-text;q=NaN", Prometheus),
            ("application/openmetrics-text;q=", Prometheus),
            (";,;q=1,,", Prometheus),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(Format::accepted(&headers), format, "{accept:?}");
        }
        assert_eq!(Format::accepted(&HeaderMap::new()), Prometheus);
        let mut two = HeaderMap::new();
        two.append(ACCEPT, HeaderValue::from_static("text/plain;q=0.5"));
        two.append(
            ACCEPT,
            HeaderValue::from_static("application/openmetrics-text"),
        );
        assert_eq!(Format::accepted(&two), OpenMetrics);
    }
}
