//! Compares URLs with the results of PyTorch 2.15.0, recorded by `testdata/rendezvous_urls.py`.

use serde_json::{Value as Json, json};

use super::*;

fn rows() -> impl Iterator<Item = Json> {
    let lines = include_str!("../../testdata/rendezvous-urls.jsonl").lines();
    lines.map(|line| serde_json::from_str(line).expect("a line of JSON"))
}

fn plan_of(row: &Json) -> Result<Plan, UrlError> {
    let argument = |name: &str| {
        let number = row["arguments"][name].as_u64();
        number.map(|number| usize::try_from(number).expect("a small number"))
    };
    let variable = |name: &str| row["environment"][name].as_str().map(str::to_owned);
    let url = row["url"].as_str().expect("text");
    Plan::new(url, argument("rank"), argument("world_size"), &variable)
}

/// A plan in the form of a recorded row.
fn shown(plan: &Plan) -> Json {
    let world_size = plan.world_size.map_or(json!(-1), |size| json!(size));
    let mut shown = match &plan.target {
        Target::Tcp {
            host,
            port,
            is_master,
            multi_tenant,
        } => json!({
            "store": "tcp", "host": host, "port": port, "is_master": is_master,
            "multi_tenant": multi_tenant,
        }),
        Target::File { path } => json!({ "store": "file", "path": path }),
    };
    shown["rank"] = json!(plan.rank);
    shown["world_size"] = world_size;
    shown
}

/// The text that our error must contain where PyTorch's error is `error`.
fn expected_text(error: &str) -> &str {
    let (kind, text) = error.split_once(": ").expect("kind and text");
    match kind {
        "IndexError" => "has no value",
        _ if text == "hostname cannot be None" => "host missing",
        _ if text == "Invalid IPv6 URL" => "unmatched bracket",
        _ if text.starts_with("invalid literal for int()") => "expected a number",
        _ if text.to_lowercase().starts_with("port ") => "expected a number from 0 to 65535",
        _ => {
            let text = text.strip_prefix("Error initializing torch.distributed using ");
            let text = text.unwrap_or(error.split_once(": ").expect("as above").1);
            text.strip_suffix(" already.").unwrap_or(text)
        }
    }
}

#[test]
fn every_recorded_url_gives_the_same_plan_as_pytorch() {
    let mut count = 0;
    for mut row in rows() {
        let name = row["name"].as_str().expect("text").to_owned();
        let plan = plan_of(&row);
        count += 1;
        if name == "tcp, rank is -1" {
            // PyTorch accepts this rank, although no worker can have it.
            let text = plan.unwrap_err().to_string();
            assert!(text.contains("is \"-1\"; expected"), "{text}");
            continue;
        }
        if let Some(error) = row["error"].as_str() {
            let expected = expected_text(error);
            let ours = plan.expect_err(&name).to_string();
            assert!(ours.contains(expected), "{name}: {ours:?} for {error:?}");
            let url = row["url"].as_str().expect("text");
            let names_source = ours.contains(url) || ours.contains("environment variable");
            assert!(
                names_source || url.contains(['\n']),
                "{name}: {ours:?} names neither the URL nor a variable"
            );
            continue;
        }
        let opens = row["opens"].as_object_mut().expect("an object");
        opens.remove("timeout_s");
        let plan = plan.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(shown(&plan), row["opens"], "{name}");
    }
    assert!(count > 100, "{count} rows");
}

#[test]
fn the_default_timeout_equals_that_of_pytorch() {
    let mut compared = 0;
    for row in rows() {
        if let Some(seconds) = row["opens"]["timeout_s"].as_f64()
            && row["arguments"]["timeout_s"].is_null()
        {
            let timeout = RendezvousOptions::default().timeout;
            assert_eq!(
                timeout,
                Some(Duration::from_secs_f64(seconds)),
                "{}",
                row["name"]
            );
            compared += 1;
        }
    }
    assert!(compared > 10, "{compared} rows have PyTorch's default");
}

#[test]
fn errors_name_the_url_and_the_problem() {
    let text = |url: &str| {
        let plan = Plan::new(url, None, None, &|_| None);
        plan.expect_err("the URL is incomplete").to_string()
    };
    assert_eq!(
        text("tcp://node0:29500?world_size=4"),
        "tcp:// rendezvous: rank parameter missing in the URL \"tcp://node0:29500?world_size=4\", which \
         should have the form tcp://node0:29500?rank=0&world_size=4"
    );
    assert_eq!(
        text("env://?rank=1"),
        "env:// rendezvous: environment variable WORLD_SIZE expected, but not set"
    );
    assert_eq!(
        text("file:///tmp/store?rank=1.0&world_size=4"),
        "rank in the URL \"file:///tmp/store?rank=1.0&world_size=4\" is \"1.0\"; expected a number"
    );
}
