//! The measures of a run: their samples, and the report of their verdicts.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::verdict::{Point, Rule, Verdict, judge};
use crate::report::{Unit, aligned, with_separators};

#[derive(Debug)]
struct Measure {
    name: String,
    unit: Unit,
    rule: Option<Rule>,
    points: Vec<Point>,
}

impl Measure {
    fn verdict(&self) -> Option<Verdict> {
        // Without a rule it is shown only.
        judge(
            self.rule.unwrap_or(Rule::AtMost(f64::INFINITY)),
            &self.points,
        )
    }

    fn grows(&self) -> Option<String> {
        let verdict = self.verdict().filter(|verdict| !verdict.holds())?;
        let show = |value| with_separators(value, 0);
        let unit = self.unit.name();
        let (judged, allowed) = (verdict.judged, verdict.allowed);
        Some(match self.rule? {
            Rule::Flat { .. } => format!(
                "{} grew by {} {unit} ({} allowed)",
                self.name,
                show(judged),
                show(allowed)
            ),
            Rule::AtMost(_) => format!(
                "{} reached {} {unit} ({} allowed)",
                self.name,
                show(judged),
                show(allowed)
            ),
            Rule::PerJob(_) => format!(
                "{} grew by {judged:.1} {unit} a job ({allowed:.1} allowed)",
                self.name
            ),
        })
    }
}

/// All measures, in the order in which they were first recorded.
#[derive(Debug, Default)]
pub(super) struct Measures(Vec<Measure>);

impl Measures {
    /// Without a rule the measure is shown, and not judged.
    pub(super) fn record(&mut self, name: &str, unit: Unit, rule: Option<Rule>, point: Point) {
        let found = self.0.iter().position(|measure| measure.name == name);
        let index = found.unwrap_or_else(|| {
            self.0.push(Measure {
                name: name.to_owned(),
                unit,
                rule,
                points: Vec::new(),
            });
            self.0.len() - 1
        });
        self.0[index].points.push(point);
    }

    /// The measures that break their rules, and by how much.
    pub(super) fn that_grow(&self) -> Vec<String> {
        self.0.iter().filter_map(Measure::grows).collect()
    }

    pub(super) fn table(&self) -> String {
        const HEADINGS: [&str; 8] = [
            "",
            "first",
            "last",
            "per 1,000",
            "unit",
            "judged",
            "allowed",
            "",
        ];
        let mut lines = vec![HEADINGS.map(str::to_owned)];
        for measure in &self.0 {
            let Some(verdict) = measure.verdict() else {
                continue;
            };
            let show = |value| with_separators(value, measure.unit.decimals().min(1));
            let mut judged = show(verdict.judged);
            let mut allowed = show(verdict.allowed);
            let text = match measure.rule {
                None => {
                    judged.clear();
                    allowed.clear();
                    ""
                }
                Some(_) if !verdict.holds() => "GROWS",
                Some(Rule::Flat { .. }) => "flat",
                Some(Rule::AtMost(_)) => "bounded",
                Some(Rule::PerJob(_)) => "kept, per job",
            };
            lines.push([
                measure.name.clone(),
                show(verdict.first),
                show(verdict.last),
                verdict.per_thousand.map_or_else(String::new, show),
                measure.unit.name().to_owned(),
                judged,
                allowed,
                text.to_owned(),
            ]);
        }
        aligned(&lines, &[0, 4, 7])
    }

    pub(super) fn json(&self) -> Value {
        let measures = self.0.iter().filter_map(|measure| {
            let verdict = measure.verdict()?;
            let rule = match measure.rule {
                None => "none",
                Some(Rule::Flat { .. }) => "flat",
                Some(Rule::AtMost(_)) => "at most",
                Some(Rule::PerJob(_)) => "per job",
            };
            Some(json!({
                "name": measure.name,
                "unit": measure.unit.name(),
                "samples": measure.points.len(),
                "first": verdict.first,
                "last": verdict.last,
                "per_thousand_jobs": verdict.per_thousand,
                "rule": rule,
                "judged": verdict.judged,
                "allowed": measure.rule.map(|_| verdict.allowed),
                "holds": verdict.holds(),
            }))
        });
        measures.collect()
    }
}

/// Lines of a CSV file: one for each value, so that a run that ends early has all of its samples.
#[derive(Debug, Default)]
pub(super) struct Csv(String);

impl Csv {
    pub(super) const HEADING: &str = "seconds,jobs,incarnation,measure,value\n";

    pub(super) fn push(&mut self, seconds: f64, point: Point, name: &str) {
        let Point {
            jobs,
            incarnation,
            value,
        } = point;
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{seconds:.1},{jobs},{incarnation},{name},{value}");
    }

    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.0)
    }
}
