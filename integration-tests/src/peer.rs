//! A common interface to PyTorch's stores and ours, so that the same tests run with both.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use c10d_store::{Store, StoreError, StoreExt};
use serde_json::{Value, json};

use crate::torch::{TorchError, TorchStore, from_hex, milliseconds, strings, to_hex};

/// The kinds of errors that both implementations distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The operation timed out. The store remains usable.
    Timeout,
    /// The queue was empty.
    QueueEmpty,
    /// The store does not have the operation.
    Unsupported,
    /// The connection was lost.
    Lost,
    /// The value is not a number. TCP servers close the connection instead.
    NotANumber,
    /// Anything else.
    Other,
}

/// A failed operation.
#[derive(Debug, Clone)]
pub struct PeerError {
    /// The kind of error.
    pub failure: Failure,
    /// The error's text.
    pub text: String,
}

/// The result of an operation.
pub type PeerResult<T> = Result<T, PeerError>;

/// The operations of [`Store`], run by PyTorch or by us.
#[expect(missing_docs, reason = "each method is the operation of the same name")]
pub trait Peer: Send + Sync {
    /// A name for messages.
    fn name(&self) -> String;
    fn set(&self, key: &str, value: &[u8]) -> PeerResult<()>;
    fn get(&self, key: &str) -> PeerResult<Vec<u8>>;
    fn add(&self, key: &str, delta: i64) -> PeerResult<i64>;
    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> PeerResult<Vec<u8>>;
    fn check(&self, keys: &[&str]) -> PeerResult<bool>;
    fn wait(&self, keys: &[&str], timeout: Option<Duration>) -> PeerResult<()>;
    fn delete_key(&self, key: &str) -> PeerResult<bool>;
    fn num_keys(&self) -> PeerResult<u64>;
    fn append(&self, key: &str, value: &[u8]) -> PeerResult<()>;
    fn multi_get(&self, keys: &[&str]) -> PeerResult<Vec<Vec<u8>>>;
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> PeerResult<()>;
    fn queue_push(&self, key: &str, value: &[u8]) -> PeerResult<()>;
    fn queue_pop(&self, key: &str) -> PeerResult<Vec<u8>>;
    /// Fails with [`Failure::QueueEmpty`] when the queue is empty.
    fn try_queue_pop(&self, key: &str) -> PeerResult<Vec<u8>>;
    fn queue_len(&self, key: &str) -> PeerResult<u64>;
    /// Returns the keys in alphabetical order.
    fn list_keys(&self) -> PeerResult<Vec<String>>;
    fn barrier(&self, key: &str, world_size: usize, timeout: Option<Duration>) -> PeerResult<()>;
    fn timeout(&self) -> PeerResult<Duration>;
    fn set_timeout(&self, timeout: Duration) -> PeerResult<()>;
    fn clone_store(&self) -> PeerResult<Box<dyn Peer>>;
    fn has_extended_api(&self) -> PeerResult<bool>;
}

/// One of our stores as a [`Peer`].
#[derive(Debug)]
pub struct Ours(Arc<dyn Store>);

impl Ours {
    /// Our store, as the subject of a contract.
    pub fn new(store: impl Store + 'static) -> Self {
        Self(Arc::new(store))
    }
}

impl From<StoreError> for PeerError {
    fn from(error: StoreError) -> Self {
        let failure = match &error {
            StoreError::Timeout { .. } | StoreError::BarrierTimeout { .. } => Failure::Timeout,
            StoreError::QueueEmpty { .. } => Failure::QueueEmpty,
            StoreError::Unsupported { .. } => Failure::Unsupported,
            StoreError::ConnectionLost { .. } => Failure::Lost,
            StoreError::NotANumber { .. } => Failure::NotANumber,
            _ => Failure::Other,
        };
        Self {
            failure,
            text: error.to_string(),
        }
    }
}

impl From<TorchError> for PeerError {
    fn from(error: TorchError) -> Self {
        let message = error.message.to_lowercase();
        let failure = match error.class.as_str() {
            "QueueEmptyError" => Failure::QueueEmpty,
            "NotImplementedError" => Failure::Unsupported,
            "DistNetworkError" => Failure::Lost,
            "ValueError" | "IndexError" => Failure::NotANumber,
            _ if message.contains("timeout") => Failure::Timeout,
            _ => Failure::Other,
        };
        Self {
            failure,
            text: error.to_string(),
        }
    }
}

impl fmt::Display for PeerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.failure, self.text)
    }
}

impl std::error::Error for PeerError {}

impl Peer for Ours {
    fn name(&self) -> String {
        format!("our {}", self.0.label())
    }
    fn set(&self, key: &str, value: &[u8]) -> PeerResult<()> {
        Ok(self.0.set(key, value)?)
    }
    fn get(&self, key: &str) -> PeerResult<Vec<u8>> {
        Ok(self.0.get(key)?)
    }
    fn add(&self, key: &str, delta: i64) -> PeerResult<i64> {
        Ok(self.0.add(key, delta)?)
    }
    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> PeerResult<Vec<u8>> {
        Ok(self.0.compare_set(key, expected, desired)?.into_value())
    }
    fn check(&self, keys: &[&str]) -> PeerResult<bool> {
        Ok(self.0.check(keys)?)
    }
    fn wait(&self, keys: &[&str], timeout: Option<Duration>) -> PeerResult<()> {
        match timeout {
            None => self.0.wait(keys)?,
            timeout @ Some(_) => self.0.wait_timeout(keys, timeout)?,
        }
        Ok(())
    }
    fn delete_key(&self, key: &str) -> PeerResult<bool> {
        Ok(self.0.delete_key(key)?)
    }
    fn num_keys(&self) -> PeerResult<u64> {
        Ok(self.0.num_keys()?)
    }
    fn append(&self, key: &str, value: &[u8]) -> PeerResult<()> {
        Ok(self.0.append(key, value)?)
    }
    fn multi_get(&self, keys: &[&str]) -> PeerResult<Vec<Vec<u8>>> {
        Ok(self.0.multi_get(keys)?)
    }
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> PeerResult<()> {
        Ok(self.0.multi_set(pairs)?)
    }
    fn queue_push(&self, key: &str, value: &[u8]) -> PeerResult<()> {
        Ok(self.0.queue_push(key, value)?)
    }
    fn queue_pop(&self, key: &str) -> PeerResult<Vec<u8>> {
        Ok(self.0.queue_pop(key)?)
    }
    fn try_queue_pop(&self, key: &str) -> PeerResult<Vec<u8>> {
        self.0.try_queue_pop(key)?.ok_or_else(|| PeerError {
            failure: Failure::QueueEmpty,
            text: String::new(),
        })
    }
    fn queue_len(&self, key: &str) -> PeerResult<u64> {
        Ok(self.0.queue_len(key)?)
    }
    fn list_keys(&self) -> PeerResult<Vec<String>> {
        let mut keys = self.0.list_keys()?;
        keys.sort();
        Ok(keys)
    }
    fn barrier(&self, key: &str, world_size: usize, timeout: Option<Duration>) -> PeerResult<()> {
        match timeout {
            None => Ok(self.0.barrier(key, world_size)?),
            timeout => Ok(self.0.barrier_timeout(key, world_size, timeout)?),
        }
    }
    fn timeout(&self) -> PeerResult<Duration> {
        Ok(self.0.timeout().unwrap_or(Duration::MAX))
    }
    fn set_timeout(&self, timeout: Duration) -> PeerResult<()> {
        self.0.set_timeout(Some(timeout));
        Ok(())
    }
    fn clone_store(&self) -> PeerResult<Box<dyn Peer>> {
        Ok(Box::new(Self(self.0.clone_store()?)))
    }
    fn has_extended_api(&self) -> PeerResult<bool> {
        Ok(true)
    }
}

impl Peer for TorchStore {
    fn name(&self) -> String {
        format!("PyTorch's {self:?}")
    }
    fn set(&self, key: &str, value: &[u8]) -> PeerResult<()> {
        null(self.call("set", json!({"key": key, "value": to_hex(value)}))?)
    }
    fn get(&self, key: &str) -> PeerResult<Vec<u8>> {
        bytes(&self.call("get", json!({"key": key}))?)
    }
    fn add(&self, key: &str, delta: i64) -> PeerResult<i64> {
        let sum = self.call("add", json!({"key": key, "delta": delta}))?;
        sum.as_i64().ok_or_else(|| unexpected(&sum))
    }
    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> PeerResult<Vec<u8>> {
        bytes(&self.call(
            "compare_set",
            json!({"key": key, "expected": to_hex(expected), "desired": to_hex(desired)}),
        )?)
    }
    fn check(&self, keys: &[&str]) -> PeerResult<bool> {
        boolean(&self.call("check", json!({"keys": keys}))?)
    }
    fn wait(&self, keys: &[&str], timeout: Option<Duration>) -> PeerResult<()> {
        null(self.call(
            "wait",
            json!({"keys": keys, "timeout_ms": timeout.map(milliseconds)}),
        )?)
    }
    fn delete_key(&self, key: &str) -> PeerResult<bool> {
        boolean(&self.call("delete_key", json!({"key": key}))?)
    }
    fn num_keys(&self) -> PeerResult<u64> {
        count(&self.call("num_keys", json!({}))?)
    }
    fn append(&self, key: &str, value: &[u8]) -> PeerResult<()> {
        null(self.call("append", json!({"key": key, "value": to_hex(value)}))?)
    }
    fn multi_get(&self, keys: &[&str]) -> PeerResult<Vec<Vec<u8>>> {
        let values = self.call("multi_get", json!({"keys": keys}))?;
        let values = values.as_array().ok_or_else(|| unexpected(&values))?;
        values.iter().map(bytes).collect()
    }
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> PeerResult<()> {
        let keys: Vec<&str> = pairs.iter().map(|(key, _)| *key).collect();
        let values: Vec<String> = pairs.iter().map(|(_, value)| to_hex(value)).collect();
        null(self.call("multi_set", json!({"keys": keys, "values": values}))?)
    }
    fn queue_push(&self, key: &str, value: &[u8]) -> PeerResult<()> {
        null(self.call("queue_push", json!({"key": key, "value": to_hex(value)}))?)
    }
    fn queue_pop(&self, key: &str) -> PeerResult<Vec<u8>> {
        bytes(&self.call("queue_pop", json!({"key": key, "block": true}))?)
    }
    fn try_queue_pop(&self, key: &str) -> PeerResult<Vec<u8>> {
        bytes(&self.call("queue_pop", json!({"key": key, "block": false}))?)
    }
    fn queue_len(&self, key: &str) -> PeerResult<u64> {
        count(&self.call("queue_len", json!({"key": key}))?)
    }
    fn list_keys(&self) -> PeerResult<Vec<String>> {
        let mut keys = strings(&self.call("list_keys", json!({}))?);
        keys.sort();
        Ok(keys)
    }
    fn barrier(&self, key: &str, world_size: usize, timeout: Option<Duration>) -> PeerResult<()> {
        null(self.call(
            "barrier",
            json!({
                "key": key,
                "world_size": world_size,
                "timeout_ms": timeout.map(milliseconds),
            }),
        )?)
    }
    fn timeout(&self) -> PeerResult<Duration> {
        Ok(Duration::from_millis(count(
            &self.call("timeout", json!({}))?,
        )?))
    }
    fn set_timeout(&self, timeout: Duration) -> PeerResult<()> {
        null(self.call("set_timeout", json!({"timeout_ms": milliseconds(timeout)}))?)
    }
    fn clone_store(&self) -> PeerResult<Box<dyn Peer>> {
        Ok(Box::new(self.cloned()))
    }
    fn has_extended_api(&self) -> PeerResult<bool> {
        boolean(&self.call("has_extended_api", json!({}))?)
    }
}

fn null(value: Value) -> PeerResult<()> {
    match value {
        Value::Null => Ok(()),
        other => Err(unexpected(&other)),
    }
}

fn bytes(value: &Value) -> PeerResult<Vec<u8>> {
    value
        .as_str()
        .map(from_hex)
        .ok_or_else(|| unexpected(value))
}

fn boolean(value: &Value) -> PeerResult<bool> {
    value.as_bool().ok_or_else(|| unexpected(value))
}

fn count(value: &Value) -> PeerResult<u64> {
    value.as_u64().ok_or_else(|| unexpected(value))
}

fn unexpected(value: &Value) -> PeerError {
    PeerError {
        failure: Failure::Other,
        text: format!("PyTorch gave {value}"),
    }
}
