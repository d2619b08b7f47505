//! The members of a dynamic group, and their list as text.
//!
//! Pure. Where the list is stored and who may change it is decided elsewhere.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use super::record::{Member, RecordError};
use crate::worker::{Destination, WORKER_ID_MAX, WorkerId, WorkerInfo};

/// The longest list, in bytes: the limit of one value of a store, also of PyTorch's.
pub(crate) const LIST_BYTES_MAX: usize = 8 << 20;

const MEMBERS_MAX: usize = WORKER_ID_MAX as usize + 1;

/// The members of a group. Names and ids are unique.
///
/// The text form is `version <n>`, then a line for each member, `<id> <name> <address>`, in order of ids.
/// Names and addresses contain neither spaces nor line breaks, so nothing needs quoting (PyTorch's list
/// separates with `-`, which names may contain). An empty text is an empty list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Members {
    /// Incremented by each change, to find the later of two copies.
    version: u64,
    by_id: BTreeMap<WorkerId, Member>,
    by_name: HashMap<Box<str>, WorkerId>,
}

/// Why a worker cannot join: this member has its name or its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Taken {
    Name(Member),
    Id(Member),
}

impl Members {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, RecordError> {
        if bytes.len() > LIST_BYTES_MAX {
            return Err(RecordError::TooLong { bytes: bytes.len() });
        }
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let text = std::str::from_utf8(bytes).map_err(|_| RecordError::NotText)?;
        let mut lines = text.split_terminator('\n');
        let wrong = |line: usize, what: &str| RecordError::Line {
            line,
            what: what.to_owned(),
        };
        let version = lines
            .next()
            .and_then(|line| line.strip_prefix("version "))
            .and_then(parse_digits)
            .ok_or_else(|| wrong(1, "expected `version <n>`"))?;
        let mut members = Self {
            version,
            ..Self::default()
        };
        for (line, number) in lines.zip(2..) {
            if members.by_id.len() == MEMBERS_MAX {
                return Err(RecordError::TooMany { max: MEMBERS_MAX });
            }
            let (id, rest) = line
                .split_once(' ')
                .ok_or_else(|| wrong(number, "expected an id, a name and an address"))?;
            let id = parse_digits(id)
                .and_then(|id| u32::try_from(id).ok())
                .ok_or_else(|| wrong(number, "the id is not a number"))?;
            let member = WorkerId::new(id)
                .map_err(RecordError::from)
                .and_then(|id| Member::parse(id, rest.as_bytes()))
                .map_err(|error| wrong(number, &error.to_string()))?;
            if members.by_id.contains_key(&member.info.id) {
                return Err(wrong(number, "an earlier line has the same id"));
            }
            members
                .add(member)
                .map_err(|_| wrong(number, "an earlier line has the same name"))?;
        }
        members.version = version;
        Ok(members)
    }

    pub(crate) fn encode(&self) -> String {
        let mut text = format!("version {}\n", self.version);
        for (id, member) in &self.by_id {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{id} {member}");
        }
        text
    }

    /// Adds a worker. One with the name *and* the id of a member replaces it: it is the same worker after
    /// a restart, and a crashed worker cannot remove itself from the list.
    pub(crate) fn add(&mut self, member: Member) -> Result<(), Taken> {
        if let Some(holder) = self.by_id.get(&member.info.id)
            && holder.info.name != member.info.name
        {
            return Err(Taken::Id(holder.clone()));
        }
        if let Some(holder) = self.by_name.get(member.info.name.as_str())
            && *holder != member.info.id
            && let Some(holder) = self.by_id.get(holder)
        {
            return Err(Taken::Name(holder.clone()));
        }
        let name = member.info.name.as_str();
        self.by_name.insert(name.into(), member.info.id);
        self.by_id.insert(member.info.id, member);
        self.version = self.version.wrapping_add(1);
        Ok(())
    }

    /// Removes a worker. Returns whether the list had this incarnation of it.
    pub(crate) fn remove(&mut self, id: WorkerId, incarnation: u64) -> bool {
        let is_present = self
            .by_id
            .get(&id)
            .is_some_and(|member| member.address.incarnation == incarnation);
        if is_present && let Some(member) = self.by_id.remove(&id) {
            self.by_name.remove(member.info.name.as_str());
            self.version = self.version.wrapping_add(1);
        }
        is_present
    }

    pub(crate) fn find(&self, destination: &Destination<'_>) -> Option<&Member> {
        match destination {
            Destination::Info(info) => self.of(info),
            Destination::Name(name) => self.by_id.get(self.by_name.get(*name)?),
            Destination::Id(id) => self.by_id.get(&WorkerId::new(*id).ok()?),
        }
    }

    /// The member with this id, if it also has this name.
    pub(crate) fn of(&self, info: &WorkerInfo) -> Option<&Member> {
        let member = self.by_id.get(&info.id)?;
        (member.info == *info).then_some(member)
    }

    /// Returns all members, by id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Member> {
        self.by_id.values()
    }

    pub(crate) const fn version(&self) -> u64 {
        self.version
    }

    /// Each member is found under its name and its id, and no other name is known.
    #[cfg(test)]
    fn check_invariants(&self) {
        assert_eq!(self.by_id.len(), self.by_name.len());
        for (id, member) in &self.by_id {
            assert_eq!(member.info.id, *id);
            assert_eq!(self.by_name[member.info.name.as_str()], *id);
        }
    }
}

/// Parses a number of digits only; the standard parser also accepts a sign.
fn parse_digits(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok()).flatten()
}

/// One check of the list at a time, with a pause after each.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    is_looking: bool,
    /// The time when the last check ended, in milliseconds of the agent's clock.
    ended_ms: Option<u64>,
}

impl Looks {
    /// Begins a check, unless a check has not ended or ended less than `pause_ms` ago.
    pub(crate) fn begin(&mut self, now_ms: u64, pause_ms: u64) -> bool {
        let is_due = self.ended_ms.is_none_or(|ended_ms| {
            // A look may have ended since the caller read the clock.
            now_ms.saturating_sub(ended_ms) >= pause_ms
        });
        let begins = is_due && !self.is_looking;
        self.is_looking |= begins;
        begins
    }

    pub(crate) const fn end(&mut self, now_ms: u64) {
        self.is_looking = false;
        self.ended_ms = Some(now_ms);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::directory::record::Address;

    fn member(name: &str, id: u32, incarnation: u64) -> Member {
        Member {
            info: WorkerInfo::new(name, id).unwrap(),
            address: Address::new("127.0.0.1:4000", incarnation).unwrap(),
        }
    }

    #[test]
    fn a_list_survives_formatting_and_parsing() {
        let mut members = Members::default();
        for (name, id) in [("a-b-", 3), ("x:1", 0), ("-_-", 32_767)] {
            members.add(member(name, id, 1)).unwrap();
        }
        let text = members.encode();
        assert_eq!(
            text,
            "version 3\n\
             0 x:1 tcp://127.0.0.1:4000#0000000000000001\n\
             3 a-b- tcp://127.0.0.1:4000#0000000000000001\n\
             32767 -_- tcp://127.0.0.1:4000#0000000000000001\n"
        );
        assert_eq!(Members::parse(text.as_bytes()), Ok(members));
        assert_eq!(Members::parse(b""), Ok(Members::default()));
    }

    #[test]
    fn a_name_or_an_id_of_another_member_is_refused() {
        let mut members = Members::default();
        members.add(member("a", 0, 1)).unwrap();
        let holder = member("a", 0, 1);
        let name = Taken::Name(holder.clone());
        assert_eq!(members.add(member("a", 1, 2)), Err(name));
        assert_eq!(members.add(member("b", 0, 2)), Err(Taken::Id(holder)));
        assert_eq!(members.version(), 1);
        members.check_invariants();
    }

    #[test]
    fn a_worker_replaces_its_previous_incarnation() {
        let mut members = Members::default();
        members.add(member("a", 0, 1)).unwrap();
        members.add(member("a", 0, 2)).unwrap();
        assert_eq!(members.iter().count(), 1);
        let a = WorkerInfo::new("a", 0).unwrap();
        assert_eq!(members.of(&a).unwrap().address.incarnation, 2);
        // The previous incarnation leaves too late.
        assert!(!members.remove(a.id, 1));
        assert!(members.remove(a.id, 2));
        assert!(!members.remove(a.id, 2));
        assert_eq!(members.iter().count(), 0);
        members.check_invariants();
    }

    #[test]
    fn a_member_is_found_by_name_by_id_and_by_both() {
        let mut members = Members::default();
        members.add(member("a", 5, 1)).unwrap();
        let a = WorkerInfo::new("a", 5).unwrap();
        let other = WorkerInfo::new("b", 5).unwrap();
        for found in [Destination::Info(&a), "a".into(), 5.into()] {
            assert_eq!(members.find(&found).map(|found| &found.info), Some(&a));
        }
        for unknown in [
            Destination::Info(&other),
            "b".into(),
            4.into(),
            99_999.into(),
        ] {
            assert_eq!(members.find(&unknown), None);
        }
    }

    #[test]
    fn an_invalid_list_is_refused_with_the_line() {
        for (text, reason) in [
            ("x", "line 1 of the list: expected `version <n>`"),
            ("version -1\n", "line 1 of the list"),
            ("version 1\n\n", "line 2 of the list: expected an id"),
            (
                "version 1\n+1 a tcp://h:1#0000000000000001\n",
                "line 2 of the list: the id",
            ),
            (
                "version 1\n40000 a tcp://h:1#0000000000000001\n",
                "out of bound of int16_t",
            ),
            ("version 1\n1 a\n", "line 2 of the list: there is no space"),
            (
                "version 1\n1 a tcp://h:1#0000000000000001\n1 a tcp://h:1#0000000000000001\n",
                "line 3 of the list: an earlier line has the same id",
            ),
            (
                "version 1\n1 a tcp://h:1#0000000000000001\n2 a tcp://h:1#0000000000000001\n",
                "line 3 of the list: an earlier line has the same name",
            ),
        ] {
            let error = Members::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
        let long = vec![b'1'; LIST_BYTES_MAX + 1];
        assert!(matches!(
            Members::parse(&long),
            Err(RecordError::TooLong { .. })
        ));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(members) = Members::parse(&bytes) {
                members.check_invariants();
            }
        }

        #[test]
        fn any_history_keeps_the_invariants(
            steps in proptest::collection::vec((0..4_u32, 0..4_u32, 0..3_u64, any::<bool>()), 0..40),
        ) {
            let mut members = Members::default();
            for (name, id, incarnation, joins) in steps {
                if joins {
                    let _ = members.add(member(&format!("w-{name}"), id, incarnation));
                } else {
                    members.remove(WorkerId::new(id).unwrap(), incarnation);
                }
                members.check_invariants();
                prop_assert_eq!(Members::parse(members.encode().as_bytes()), Ok(members.clone()));
            }
        }
    }

    #[test]
    fn the_list_is_read_once_in_a_pause() {
        let mut looks = Looks::default();
        assert!(looks.begin(0, 50), "the first");
        assert!(!looks.begin(60, 50), "it has not ended");
        looks.end(0);
        assert!(
            !looks.begin(0, 50),
            "a look in the agent's first millisecond counts"
        );
        assert!(!looks.begin(49, 50));
        assert!(looks.begin(50, 50));
        looks.end(70);
        assert!(
            !looks.begin(69, 50),
            "the caller read the clock before the look ended"
        );
        assert!(looks.begin(120, 50));
    }
}
