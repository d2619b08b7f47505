//! The process groups whose members agree through a server (docs/spec/wire-extensions.md, section 9.13), as a trait.
//!
//! A server receives its groups as a value, like its [journal](crate::journal): with
//! [`ServerOptions::with_groups`](crate::ServerOptions::with_groups). The crate c10d-membership has them. A server
//! without groups does not announce the capability, refuses requests to groups as unknown commands, and does not open
//! a journal that has some.
//!
//! The server passes bytes and times to its groups, and carries out the effects that they return, in their order. All times
//! count from the start of the server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use crate::message::ConnId;
pub use crate::stored_value::Value;

use crate::snapshot::GroupRecord;

/// Makes the groups of one server. The argument is a random seed.
pub type NewGroups = fn(u64) -> Box<dyn Groups>;

/// The process groups of one server. No method blocks.
pub trait Groups: fmt::Debug + Send {
    /// Classifies a request, before the server has it carried out.
    fn kind_of(&self, request: &[u8]) -> RequestKind;

    /// Carries out a request to a group. The first effects are those that other connections see; the reply is among
    /// them, unless the connection waits. An earlier wait of a connection that waits again has ended before.
    ///
    /// # Errors
    /// [`NotAGroupRequest`], which has changed nothing.
    fn request(
        &mut self,
        now: Duration,
        request: GroupRequest<'_>,
        effects: &mut Vec<GroupEffect>,
    ) -> Result<(), NotAGroupRequest>;

    /// The server has ended the wait of a connection, or the connection itself has replaced it.
    fn wait_ended(&mut self, conn: ConnId);

    /// Reports that a connection has ended, or was silent for too long.
    fn silent(&mut self, now: Duration, conn: ConnId, effects: &mut Vec<GroupEffect>);

    /// Returns whether a silence of the connection would end members of a group.
    fn is_speaker(&self, conn: ConnId) -> bool;

    /// Returns when [`tick`](Self::tick) is due; `None` if it is not.
    fn wake_at(&self) -> Option<Duration>;

    /// Carries out the actions that are due.
    fn tick(&mut self, now: Duration, effects: &mut Vec<GroupEffect>);

    /// Returns whether a wait for this key would wait for members that have left. Such a wait ends at once.
    fn is_released(&self, key: &[u8]) -> bool;

    /// Returns about how many bytes of memory the groups take.
    fn memory_bytes(&self) -> usize;

    /// Returns all groups, for a snapshot.
    fn records(&self, now: Duration) -> Vec<GroupRecord>;

    /// Returns the names of all groups.
    fn names(&self) -> Vec<Arc<[u8]>>;

    /// Returns the state that a restarted server needs to continue the group, for a journal; `None` if there is no
    /// such group.
    fn image(&self, name: &[u8]) -> Option<Vec<u8>>;

    /// Restores a group from its image, or removes it if the image is empty. Returns `false` if the bytes are not an
    /// image.
    fn restore(&mut self, name: &[u8], image: &[u8]) -> bool;

    /// Continues all groups after the last [`restore`](Self::restore).
    fn resume(&mut self, now: Duration, effects: &mut Vec<GroupEffect>);

    /// Panics if an invariant is violated. Debug builds call it after requests.
    fn check_invariants(&self) {}
}

/// A request to a group.
#[derive(Debug, Clone, Copy)]
pub struct GroupRequest<'a> {
    /// The connection that sent the request.
    pub conn: ConnId,
    /// The name of the group, as a key.
    pub name: &'a [u8],
    /// The encoded request.
    pub bytes: &'a [u8],
    /// Whether the request waits for news (MEMBERSHIP_POLL).
    pub waits: bool,
}

/// The kind of a request, which the server needs before the groups carry it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// The request may add a group or a member, which needs about this many bytes of memory.
    Adds(usize),
    /// The request sets how long the connection may be silent.
    KeepsAlive,
    /// Any other request.
    Other,
}

/// An effect, which the server carries out for its groups.
#[derive(Debug)]
pub enum GroupEffect {
    /// Replies to a connection.
    Reply {
        /// The connection that gets the reply.
        conn: ConnId,
        /// Whether the reply answers a request that waits, and so completes the wait.
        waits: bool,
        /// The bytes of the reply.
        bytes: Vec<u8>,
        /// The list of members that follows the reply.
        list: Option<Value>,
    },
    /// Makes the connection wait for news of this group.
    Wait {
        /// The connection that waits.
        conn: ConnId,
        /// The name of the group.
        name: Arc<[u8]>,
    },
    /// Ends the wait of a connection, like END_WAITS.
    EndWait(ConnId),
    /// Sets how long the connection may be silent, and sends one of two replies.
    KeepAlive {
        /// The connection that may be silent.
        conn: ConnId,
        /// The longest silence in milliseconds; 0 for no limit.
        millis: u32,
        /// The reply if the connection was not silent for longer than the limit before.
        kept: Vec<u8>,
        /// The reply if it was.
        was_silent: Vec<u8>,
    },
    /// Records the new [image](Groups::image) of a group, or that it is removed.
    Keep(Arc<[u8]>),
    /// Ends the waits for keys with this prefix.
    EndWaits(Vec<u8>),
    /// Deletes the keys with a prefix, except those with a longer one.
    DeleteKeys {
        /// Keys that begin with these bytes.
        prefix: Box<[u8]>,
        /// The longer prefix.
        except: Vec<u8>,
    },
    /// Releases a list that the groups no longer keep. Replies may still hold it.
    Lent(Value),
    /// Counts work, in units of about 100 ns.
    Work(u64),
}

/// Bytes that are not a request to a group. The server closes the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAGroupRequest;
