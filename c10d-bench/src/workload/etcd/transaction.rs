//! The transaction that keeps a batch in etcd, without the journal: as large, and with the same comparisons.

use std::io;

use serde_json::Value;

use super::gateway::{Gateway, base64};
use super::site::{Site, number_at};
use crate::failure::{Context as _, Failure};

/// One that is repeated, each time with the revision of the time before. Its keys are as long as those of the journal.
#[derive(Debug)]
pub(super) struct Transaction {
    gateway: Gateway,
    prefix: String,
    leader: String,
    head: String,
    led_since: u64,
    head_revision: u64,
    position: u64,
    head_value: String,
    log_value: String,
}

impl Transaction {
    /// With the values of the last one of the journal below this prefix. `letter` tells its keys from those of others.
    pub(super) fn as_of_journal(site: &Site, prefix: &str, letter: &str) -> Result<Self, Failure> {
        let open = || {
            // The member that the journal uses: the first one.
            let mut gateway = site.gateway(0)?;
            let [leader, head] = ["leader", "head"].map(|name| base64(&format!("{prefix}/{name}")));
            let (from, to) = (
                base64(&format!("{prefix}/log/")),
                base64(&format!("{prefix}/log0")),
            );
            let last = format!(
                r#"{{"key":"{from}","range_end":"{to}","sort_order":"DESCEND","sort_target":"KEY","limit":"1"}}"#
            );
            let mut value_of = |range: &str| {
                let answer = gateway.post("/v3/kv/range", range)?;
                let value = answer.pointer("/kvs/0/value").and_then(Value::as_str);
                let missing = || io::Error::other("the journal has no batch");
                value.map(str::to_owned).ok_or_else(missing)
            };
            let leader_value = value_of(&format!(r#"{{"key":"{leader}"}}"#))?;
            let head_value = value_of(&format!(r#"{{"key":"{head}"}}"#))?;
            let log_value = value_of(&last)?;
            // As long.
            let prefix = letter.repeat(prefix.len());
            let [leader, head] = ["leader", "head"].map(|name| base64(&format!("{prefix}/{name}")));
            let mut put = |key: &str, value: &str| {
                let put = format!(r#"{{"key":"{key}","value":"{value}"}}"#);
                number_at(&gateway.post("/v3/kv/put", &put)?, "/header/revision")
            };
            let led_since = put(&leader, &leader_value)?;
            let head_revision = put(&head, &head_value)?;
            io::Result::Ok(Self {
                gateway,
                prefix,
                leader,
                head,
                led_since,
                head_revision,
                position: 0,
                head_value,
                log_value,
            })
        };
        open().context("cannot use etcd")
    }

    /// Carries it out, and waits for the answer.
    pub(super) fn commit(&mut self) -> Result<(), Failure> {
        let Self {
            leader,
            head,
            led_since,
            head_revision,
            head_value,
            log_value,
            ..
        } = self;
        self.position += 1;
        let log = base64(&format!("{}/log/{:016x}", self.prefix, self.position));
        let body = format!(
            r#"{{"compare":[{{"key":"{leader}","target":"CREATE","result":"EQUAL","create_revision":"{led_since}"}},{{"key":"{head}","target":"MOD","result":"EQUAL","mod_revision":"{head_revision}"}}],"success":[{{"request_put":{{"key":"{log}","value":"{log_value}","lease":"0"}}}},{{"request_put":{{"key":"{head}","value":"{head_value}","lease":"0"}}}}],"failure":[{{"request_range":{{"key":"{leader}"}}}},{{"request_range":{{"key":"{head}"}}}}]}}"#
        );
        let answer = self.gateway.post("/v3/kv/txn", &body);
        let answer = answer.context("etcd does not carry out a transaction")?;
        if answer["succeeded"] != true {
            return Err(Failure::new(
                "etcd refuses a transaction that nothing opposes",
            ));
        }
        self.head_revision = number_at(&answer, "/header/revision")?;
        Ok(())
    }
}
