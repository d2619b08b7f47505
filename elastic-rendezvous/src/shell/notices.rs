//! Notices, in which nodes outside of a round announce to the other nodes that they have left for good, or why they do
//! not join.
//!
//! docs/spec/rendezvous.md, section 10.2. PyTorch's nodes do not know these keys. A notice is advice: it can be old, and a
//! node that is listed in the state is there whatever its notice says.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use c10d_socket::printable;
use c10d_store::{Store, StoreError, StoreExt};

use crate::shell::board::read_present;
use crate::values::node::NodeId;
use crate::values::report::NotJoining;

/// How many notices are read: the notices with the highest numbers.
const NOTICES_MAX: i64 = 64;

/// How many notices are kept. Older notices than those read are kept as well, because a node may be
/// about to read one.
const NOTICES_KEPT: i64 = 2 * NOTICES_MAX;

/// The longest notice that is read or written; a reason is shortened to fit.
const NOTICE_BYTES_MAX: usize = 2048;
const REASON_CHARS_MAX: usize = 256;

/// A notice, as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The node has left for good.
    Left(NodeId),
    NotJoining(NotJoining),
}

impl Notice {
    pub(crate) fn node(&self) -> &NodeId {
        match self {
            Self::Left(node) => node,
            Self::NotJoining(it) => &it.node,
        }
    }

    fn to_text(&self) -> Vec<u8> {
        let (word, why) = match self {
            Self::Left(_) => ("left", ""),
            Self::NotJoining(it) => ("absent", it.why.as_str()),
        };
        let NodeId {
            addr,
            pid,
            local_id,
        } = self.node();
        let why = printable(why, REASON_CHARS_MAX);
        format!("{word} {pid} {local_id} {addr}\n{why}").into_bytes()
    }

    /// Parses a notice; `None` for an empty text, which withdraws a notice, and for a text that this
    /// version never writes.
    fn from_text(text: &[u8]) -> Option<Self> {
        if text.len() > NOTICE_BYTES_MAX {
            return None;
        }
        let text = str::from_utf8(text).ok()?;
        let (line, why) = text.split_once('\n')?;
        let mut fields = line.splitn(4, ' ');
        let word = fields.next()?;
        let pid = fields.next()?.parse().ok()?;
        let local_id = fields.next()?.parse().ok()?;
        let node = NodeId::new(fields.next()?, pid, local_id);
        match word {
            "left" => Some(Self::Left(node)),
            "absent" => Some(Self::NotJoining(NotJoining::new(node, reason(why)))),
            _ => None,
        }
    }
}

fn reason(why: &str) -> String {
    printable(why, REASON_CHARS_MAX).to_string()
}

/// The keys of the notices, and this node's own.
#[derive(Debug, Clone)]
pub(crate) struct Notices {
    store: Arc<dyn Store>,
    prefix: String,
    /// The number of this node's notice, once it has written one.
    own: Arc<Mutex<Option<i64>>>,
}

impl Notices {
    pub(crate) fn new(store: Arc<dyn Store>, run_id: &str) -> Self {
        Self {
            store,
            prefix: format!("torch.rendezvous.{run_id}/notice"),
            own: Arc::default(),
        }
    }

    /// The same notices, by another handle of the store.
    pub(crate) fn with_store(&self, store: Arc<dyn Store>) -> Self {
        Self {
            store,
            ..self.clone()
        }
    }

    fn key(&self, number: i64) -> String {
        format!("{}/{number}", self.prefix)
    }

    fn own(&self) -> MutexGuard<'_, Option<i64>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops this node's number after the store has lost its data, because another node's notice
    /// may have the same number now.
    fn start_anew(&self) {
        *self.own() = None;
    }

    fn count_key(&self) -> String {
        format!("{}/n", self.prefix)
    }

    /// Writes this node's notice, which replaces its previous notice, and removes a notice that is no longer read.
    /// Blocks for at most the store's timeout, four times.
    pub(crate) fn write(&self, notice: &Notice) -> Result<(), StoreError> {
        if let Some(number) = self.number()? {
            return self.store.set(&self.key(number), notice.to_text());
        }
        let number = self.store.add(&self.count_key(), 1)?;
        *self.own() = Some(number);
        self.store.set(&self.key(number), notice.to_text())?;
        match number.saturating_sub(NOTICES_KEPT) {
            ..=0 => Ok(()),
            unread => self.store.delete_key(&self.key(unread)).map(drop),
        }
    }

    /// Takes this node's notice back, if there is one.
    pub(crate) fn withdraw(&self) -> Result<(), StoreError> {
        match self.number()? {
            Some(number) => self.store.set(&self.key(number), b""),
            None => Ok(()),
        }
    }

    /// The number of this node's notice; `None` if it has written no notice, or if later notices of other nodes have
    /// pushed it out of the read range.
    fn number(&self) -> Result<Option<i64>, StoreError> {
        let known = *self.own();
        if known.is_none() {
            return Ok(None);
        }
        let read = self.numbers_read()?;
        Ok(known.filter(|number| read.contains(number)))
    }

    /// The numbers of the notices that are read.
    fn numbers_read(&self) -> Result<RangeInclusive<i64>, StoreError> {
        let count = self.store.try_get(&self.count_key())?.unwrap_or_default();
        let count: i64 = String::from_utf8_lossy(&count).trim().parse().unwrap_or(0);
        let first = count.saturating_sub(NOTICES_MAX).max(0).saturating_add(1);
        Ok(first..=count)
    }

    /// The notices of all nodes: one request while there are none, and three otherwise.
    pub(crate) fn read(&self) -> Result<Vec<Notice>, StoreError> {
        let keys: Vec<String> = self
            .numbers_read()?
            .map(|number| self.key(number))
            .collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        // A node may have counted itself, and may not have written yet.
        let texts = read_present(&*self.store, &keys)?;
        let texts = texts.iter().flatten();
        Ok(texts.filter_map(|text| Notice::from_text(text)).collect())
    }
}

/// The notices as a node has read them last.
#[derive(Debug)]
pub(crate) struct NoticeBoard {
    notices: Notices,
    known: Vec<Notice>,
}

impl NoticeBoard {
    pub(crate) const fn new(notices: Notices) -> Self {
        Self {
            notices,
            known: Vec::new(),
        }
    }

    /// Reads the notices, and logs what is new in them about nodes other than `me`. Keeps the last ones if the store
    /// fails: its next use reports that. Blocks for at most the store's timeout, three times.
    pub(crate) fn refresh(&mut self, me: &NodeId) {
        let read = match self.notices.read() {
            Ok(read) => read,
            Err(error) => return log::debug!("cannot read why nodes do not join: {error}"),
        };
        for notice in read.iter().filter(|it| !self.known.contains(it)) {
            if let Notice::NotJoining(it) = notice
                && it.node != *me
            {
                log::warn!("node {it}");
            }
        }
        self.known = read;
    }

    /// The store has lost its data.
    pub(crate) fn start_anew(&mut self) {
        self.known.clear();
        self.notices.start_anew();
    }

    /// The nodes that do not come back at present.
    pub(crate) fn gone(&self) -> BTreeSet<NodeId> {
        let known = self.known.iter();
        known.map(|notice| notice.node().clone()).collect()
    }

    /// The nodes that say that they do not join at present.
    pub(crate) fn not_joining(&self) -> Vec<NotJoining> {
        let known = self.known.iter();
        known
            .filter_map(|notice| match notice {
                Notice::NotJoining(it) => Some(it.clone()),
                Notice::Left(_) => None,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use c10d_store::HashStore;

    use super::*;

    fn node(name: &str) -> NodeId {
        NodeId::new(name, 42, 1)
    }

    fn absent(name: &str, why: &str) -> Notice {
        Notice::NotJoining(NotJoining::new(node(name), why))
    }

    #[test]
    fn nodes_read_what_others_have_written_last() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let [a, b] = [(); 2].map(|()| Notices::new(Arc::clone(&store), "job"));
        assert_eq!(a.read().unwrap(), []);
        a.withdraw().unwrap();
        a.write(&absent("a b", "no GPU")).unwrap();
        b.write(&Notice::Left(node("b"))).unwrap();
        let expected = [absent("a b", "no GPU"), Notice::Left(node("b"))];
        assert_eq!(b.read().unwrap(), expected);
        a.write(&absent("a b", "two\nlines")).unwrap();
        assert_eq!(b.read().unwrap()[0], absent("a b", "two\\nlines"));
        a.withdraw().unwrap();
        assert_eq!(b.read().unwrap(), [Notice::Left(node("b"))]);
    }

    #[test]
    fn a_node_that_has_counted_itself_and_not_written_hides_no_other() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let notices = Notices::new(Arc::clone(&store), "job");
        store.add("torch.rendezvous.job/notice/n", 1).unwrap();
        notices.write(&Notice::Left(node("b"))).unwrap();
        assert_eq!(notices.read().unwrap(), [Notice::Left(node("b"))]);
    }

    /// docs/spec/rendezvous.md, NOTICE 2.
    #[test]
    fn only_the_last_notices_are_read() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        for number in 0..300 {
            let notices = Notices::new(Arc::clone(&store), "job");
            notices
                .write(&Notice::Left(NodeId::new("a", number, 0)))
                .unwrap();
        }
        let keys = store.num_keys().unwrap();
        let read = Notices::new(store, "job").read().unwrap();
        let pids: Vec<i64> = read.iter().map(|notice| notice.node().pid).collect();
        assert_eq!(pids, (236..300).collect::<Vec<_>>());
        // With the counter.
        assert_eq!(keys, 129);
    }

    /// docs/spec/rendezvous.md, NOTICE 2.
    #[test]
    fn a_node_whose_notice_is_not_read_any_more_gets_another_number() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let early = Notices::new(Arc::clone(&store), "job");
        early.write(&absent("a", "no GPU")).unwrap();
        for _ in 0..NOTICES_KEPT {
            let other = Notices::new(Arc::clone(&store), "job");
            other.write(&Notice::Left(node("b"))).unwrap();
        }
        // The node's notice has been removed, and is not restored as an empty notice.
        early.withdraw().unwrap();
        assert_eq!(store.num_keys().unwrap(), 129);
        early.write(&absent("a", "no GPU")).unwrap();
        assert_eq!(early.read().unwrap().last(), Some(&absent("a", "no GPU")));
        assert_eq!(store.num_keys().unwrap(), 129);
    }

    /// docs/spec/rendezvous.md, NOTICE 2.
    #[test]
    fn a_node_whose_store_was_emptied_takes_no_other_notice_back() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let early = Notices::new(Arc::clone(&store), "job");
        early.write(&absent("a", "no GPU")).unwrap();
        for key in [
            "torch.rendezvous.job/notice/n",
            "torch.rendezvous.job/notice/1",
        ] {
            store.delete_key(key).unwrap();
        }
        let mut board = NoticeBoard::new(early.clone());
        board.refresh(&node("a"));
        let other = Notices::new(Arc::clone(&store), "job");
        other.write(&absent("b", "no disk")).unwrap();
        board.start_anew();
        early.withdraw().unwrap();
        assert_eq!(other.read().unwrap(), [absent("b", "no disk")]);
        early.write(&absent("a", "no GPU")).unwrap();
        assert_eq!(other.read().unwrap().len(), 2);
    }

    /// docs/spec/rendezvous.md, NOTICE 3.
    #[test]
    fn bytes_of_strangers_are_no_notices() {
        let long = [b"left 1 0 ".as_slice(), &[b'a'; 4096], b"\n"].concat();
        let texts: [&[u8]; 8] = [
            b"",
            b"left",
            b"left 1 0 a",
            b"left x 0 a\n",
            b"gone 1 0 a\n",
            b"left 99999999999999999999 0 a\n",
            b"left 1 0 \xff\n",
            &long,
        ];
        for text in texts {
            assert_eq!(Notice::from_text(text), None, "{}", text.escape_ascii());
        }
        let Some(Notice::NotJoining(it)) =
            Notice::from_text(format!("absent 1 0 a\n\x1b[2J{}", "x".repeat(1000)).as_bytes())
        else {
            panic!("a notice");
        };
        assert_eq!(it.why.chars().count(), REASON_CHARS_MAX);
        assert!(!it.why.contains('\x1b'));
    }

    #[test]
    fn a_count_that_no_node_writes_gives_few_notices() {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        let notices = Notices::new(Arc::clone(&store), "job");
        for count in ["x", "-5", "9223372036854775807", "99999999999999999999"] {
            store
                .set("torch.rendezvous.job/notice/n", count.as_bytes())
                .unwrap();
            assert_eq!(notices.read().unwrap(), [], "{count}");
        }
    }
}
