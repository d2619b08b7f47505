//! `c10d store clients`: the connections of a server.

use c10d_inspect::http::ClientRow;
use c10d_inspect::report_text::age_text;
use c10d_socket::printable;
use clap::Args;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::output::{columns, print, print_json};
use crate::status::StatusArgs;

#[derive(Debug, Args)]
pub(crate) struct ClientsArgs {
    /// Also list the connections that closed last.
    #[arg(long)]
    closed: bool,

    /// Print one JSON object: {"clients": [...]}. Ages are in milliseconds.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    status: StatusArgs,
}

pub(super) fn run(args: &ClientsArgs) -> Result<(), Failure> {
    let pages = args.status.open()?;
    if args.json {
        // Every field of the server's answer, including fields of a newer version.
        let mut rows: Vec<Value> = pages.rows("/clients.json")?;
        rows.retain(|row| args.closed || row["closed"].is_null());
        return print_json(json!({ "clients": rows }));
    }
    let mut rows: Vec<ClientRow> = pages.rows("/clients.json")?;
    rows.retain(|row| args.closed || row.closed.is_none());
    print(table(&rows).as_bytes())
}

/// The rows under a heading, in columns as wide as needed.
fn table(rows: &[ClientRow]) -> String {
    const HEADING: [&str; 7] = [
        "PEER",
        "PID",
        "RANK",
        "AGE",
        "REQUESTS",
        "LAST REQUEST",
        "WAITS FOR",
    ];
    let heading = HEADING.map(str::to_owned);
    let lines = std::iter::once(heading).chain(rows.iter().map(columns_of));
    columns(&lines.map(Vec::from).collect::<Vec<_>>(), 1..5)
}

fn columns_of(row: &ClientRow) -> [String; 7] {
    let ago = |age: Option<u64>| age.map(|age| format!(", {} ago", age_text(age)));
    let last = row.last_command.as_ref().map(|command| {
        let key = row.last_key.as_deref().unwrap_or_default();
        let ago = ago(row.last_ms).unwrap_or_default();
        format!("{command} {key}").trim_end().to_owned() + &ago
    });
    let waits = row.waits_for.as_ref().map(|key| {
        let since = row.waits_ms.map(|age| format!(" for {}", age_text(age)));
        format!("{key}{}", since.unwrap_or_default())
    });
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let waits = match &row.closed {
        Some(reason) => {
            let ago = ago(row.closed_ms).unwrap_or_default();
            format!("closed ({reason}){ago}")
        }
        None => {
            let away = row.away_ms.map(|age| format!("away for {}", age_text(age)));
            [away, waits]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(", ")
        }
    };
    [
        row.address.to_string(),
        number(row.pid.map(u64::from)),
        number(row.rank.map(|rank| rank as u64)),
        age_text(row.open_ms),
        row.requests.to_string(),
        printable(&last.unwrap_or_default(), usize::MAX).to_string(),
        printable(&waits, usize::MAX).to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_a_table_without_control_characters() {
        let rows = json!([
            {
                "id": 7, "address": "127.0.0.1:43210", "rank": 2, "pid": 4711, "open_ms": 61_000,
                "requests": 16, "last_command": "WAIT", "last_key": "/default_pg/0//cpu//0/3",
                "last_ms": 31_000, "waits_for": "/default_pg/0//cpu//0/3", "waits_ms": 31_000,
                "closed": null, "closed_ms": null
            },
            { "id": 8, "address": "[::1]:1", "open_ms": 0, "requests": 0, "last_command": "SET", "last_key": "\u{1b}[2J", "last_ms": 5 },
            { "id": 9, "address": "10.0.0.4:9", "open_ms": 0, "requests": 0, "away_ms": 20_000, "waits_for": "/k", "waits_ms": 31_000 },
            { "id": 1, "address": "10.0.0.3:9", "open_ms": 0, "requests": 3, "closed": "peer", "closed_ms": 1_500 }
        ]);
        let rows: Vec<ClientRow> = serde_json::from_value(rows).unwrap();
        let expected = "\
PEER              PID  RANK    AGE  REQUESTS  LAST REQUEST                            WAITS FOR
127.0.0.1:43210  4711     2   61 s        16  WAIT /default_pg/0//cpu//0/3, 31 s ago  /default_pg/0//cpu//0/3 for 31 s
[::1]:1             -     -  0.0 s         0  SET \\u{1b}[2J, 0.0 s ago
10.0.0.4:9          -     -  0.0 s         0                                          away for 20 s, /k for 31 s
10.0.0.3:9          -     -  0.0 s         3                                          closed (peer), 1.5 s ago
";
        assert_eq!(table(&rows), expected);
        assert_eq!(table(&[]).lines().count(), 1);
    }
}
