//! The client of a group: sends requests to the server of a store.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, printable};
use c10d_store::unstable::PAYLOAD_KEY_PREFIX;
use c10d_store::{ErrorContext, Operation, Store, StoreError, key_to_bytes};

use crate::codec::{Malformed, list_of};
use crate::group::GroupStatus;
use crate::list_change::decode_list;
use crate::message::{Message, Reply};
use crate::options::GroupOptions;
use crate::record::{MemberKey, Record};
use crate::request::{GroupReply, GroupRequest, Opening};
use crate::server::GROUPS_MAX;

/// Characters of a prefix in an error.
const KEY_CHARS_SHOWN_MAX: usize = 80;

/// A process group whose members agree through the store's server: the service to which a [`Member`](crate::Member)
/// sends its messages. docs/spec/membership.md has its rules.
///
/// It has its own connection. Any number of threads may use it: a message of one thread goes in front of a poll of another
/// thread.
///
/// A member remains in the group as long as one of the handles that have [sent its messages](Self::ask) is connected.
/// Keep the handle as long as the member: when it is dropped, or its process dies, the group continues without the
/// member at once.
///
/// **Errors**: all methods return the errors of [`Store`]. After a lost connection all calls fail.
///
/// ```
/// use c10d_membership::{GroupOptions, GroupStage, Membership};
/// use c10d_store::{ServerOptions, TcpStore, TcpStoreServer};
///
/// let options = ServerOptions::default().with_groups(c10d_membership::groups);
/// let server = TcpStoreServer::bind("127.0.0.1:0", options)?;
/// let store = TcpStore::connect("127.0.0.1", server.local_addr().port())?;
///
/// let membership = Membership::connect(&store, "workers")?;
/// membership.open(&GroupOptions::new(2), "default_pg/0//cpu//reconfigure/")?;
/// let status = membership.status()?.expect("the group is open");
/// assert_eq!(status.stage, GroupStage::Forming);
/// # Ok::<(), c10d_store::StoreError>(())
/// ```
pub struct Membership {
    store: Arc<dyn Store>,
    group: String,
    /// The newest list, which the server need not send again.
    list: Arc<Mutex<Option<Arc<Record>>>>,
}

impl Membership {
    /// Connects to the service of a group, over one more connection to the server of `store`.
    ///
    /// # Errors
    /// [`StoreError::Unsupported`] on other stores than TCP stores, and if the server has no [groups](crate::groups());
    /// otherwise the errors of [`StoreHandle::clone_store`](c10d_store::StoreHandle::clone_store).
    pub fn connect<S: Store + ?Sized>(store: &S, group: &str) -> Result<Self, StoreError> {
        let membership = Self {
            store: store.clone_store()?,
            group: group.to_owned(),
            list: Arc::default(),
        };
        // Its server may have none.
        membership.status()?;
        Ok(membership)
    }

    /// Opens the group, or finds that it is open with the same options: each member and the launcher may call it.
    ///
    /// `key_prefix` identifies the keys of torch: the keys of an attempt begin with this prefix, followed by the uuid and a
    /// `/`. For the default group of `env://`, the prefix is `default_pg/0//cpu//reconfigure/`. When an attempt is abandoned,
    /// the waits for its keys end. The server also deletes the keys of older attempts.
    ///
    /// # Errors
    /// [`StoreError::InvalidArgument`] if the group is open with other options, [`StoreError::LimitExceeded`] if the server
    /// has 1024 groups in use.
    pub fn open(&self, options: &GroupOptions, key_prefix: &str) -> Result<(), StoreError> {
        let call = self.call();
        let mut prefix = vec![PAYLOAD_KEY_PREFIX];
        prefix.extend_from_slice(&key_to_bytes(&self.store.full_key(key_prefix)));
        let opening = Opening {
            options: options.clone(),
            key_prefix: prefix.into(),
        };
        let request = GroupRequest::Open(opening.clone());
        match call.request(&request)? {
            GroupReply::Done => Ok(()),
            GroupReply::OpenOtherwise(other) => {
                let [this, other] = [&opening, &other].map(|it| {
                    let keys = printable(&it.key_prefix, KEY_CHARS_SHOWN_MAX);
                    format!("{:?} and keys {keys}", it.options)
                });
                Err(StoreError::InvalidArgument {
                    context: call.context(),
                    detail: format!("the group is open with {other}, not with {this}"),
                })
            }
            GroupReply::TooMany => Err(StoreError::LimitExceeded {
                context: call.context(),
                what: "groups in use",
                actual: GROUPS_MAX + 1,
                limit: GROUPS_MAX,
            }),
            other => Err(call.unexpected(&other)),
        }
    }

    /// Sends a message of a member, and returns the answer. [`Message::Poll`] waits for news, for at most `timeout`. Without
    /// news in this time, the answer is [`Reply::NotYet`], even if the server does not respond. Use
    /// [`keep_alive`](Self::keep_alive) to detect a server that does not respond. All other messages are answered at once. The
    /// deadline in an event is the time that remained when the server sent the event.
    ///
    /// # Errors
    /// [`StoreError::WaitEnded`] if a newer poll of the same member, over another connection, has replaced this one,
    /// [`StoreError::InvalidArgument`] if the group is not open.
    pub fn ask(
        &self,
        member: MemberKey,
        message: &Message,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<Reply, StoreError> {
        self.store.check_process()?;
        let call = self.call();
        let known = self.list().clone();
        let request = GroupRequest::Say {
            member,
            known: known.as_ref().map(|list| list.attempt),
            message: message.clone(),
        };
        let waits = message.polls_after().is_some();
        let reply = match call.exchange(&request, waits, timeout.into(), known) {
            Err(error) if waits && error.is_timeout() => None,
            // An earlier wait has been cancelled, and that is not answered yet.
            Err(StoreError::NoReply { .. }) if waits => None,
            result => result?,
        };
        match reply {
            None => Ok(Reply::NotYet),
            Some(GroupReply::Reply(reply)) => {
                if let Some(list) = list_of(&reply) {
                    *self.list() = Some(Arc::clone(list));
                }
                Ok(reply)
            }
            Some(GroupReply::NotOpen) => Err(StoreError::InvalidArgument {
                context: call.context(),
                detail: "the group is not open. If it was, its store has lost its data, and the group has ended: begin it again"
                    .to_owned(),
            }),
            Some(other) => Err(call.unexpected(&other)),
        }
    }

    /// Reports that the process of a member has exited. Its launcher calls this. The process need not be a member yet: in that
    /// case, its hello is refused. This has no effect on a group that is not open.
    ///
    /// # Errors
    /// The errors of [`Store`] requests, see [`Membership`].
    pub fn dead(&self, member: MemberKey) -> Result<(), StoreError> {
        self.tell(&GroupRequest::Dead(member))
    }

    /// Ends the group for all its members. This has no effect if the group is not open.
    ///
    /// # Errors
    /// The errors of [`Store`] requests, see [`Membership`].
    pub fn end(&self) -> Result<(), StoreError> {
        self.tell(&GroupRequest::End)
    }

    /// Returns the state of the group; `None` if it is not open.
    ///
    /// # Errors
    /// The errors of [`Store`] requests, see [`Membership`].
    pub fn status(&self) -> Result<Option<GroupStatus>, StoreError> {
        let call = self.call();
        match call.request(&GroupRequest::Status)? {
            GroupReply::NotOpen => Ok(None),
            GroupReply::Status(status) => Ok(Some(status)),
            other => Err(call.unexpected(&other)),
        }
    }

    /// Reports that this process is alive.
    ///
    /// From now on, the server also considers the members of this handle silent when it sends nothing for
    /// `silence_max`, which the server detects within 250 ms; with `None` it does not. Call this at least three times
    /// in each `silence_max`; a waiting poll sends nothing. Returns `false` if the server has dropped members for
    /// this reason since the last call.
    ///
    /// # Errors
    /// The errors of [`Store`] requests, see [`Membership`].
    pub fn keep_alive(&self, silence_max: impl Into<Option<Duration>>) -> Result<bool, StoreError> {
        let call = self.call();
        // At least 1 ms: 0 is any time.
        let millis = silence_max.into().map_or(0, |it| it.as_millis().max(1));
        let millis = u32::try_from(millis).unwrap_or(u32::MAX);
        match call.request(&GroupRequest::KeepAlive(millis))? {
            GroupReply::Done => Ok(true),
            GroupReply::WasSilent => Ok(false),
            other => Err(call.unexpected(&other)),
        }
    }

    /// Returns the same handle whose calls `cancel` interrupts with [`StoreError::Interrupted`].
    #[must_use]
    pub fn with_cancel(&self, cancel: &Cancel) -> Self {
        Self {
            store: self.store.with_cancel(cancel),
            group: self.group.clone(),
            list: Arc::clone(&self.list),
        }
    }

    fn list(&self) -> MutexGuard<'_, Option<Arc<Record>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, request: &GroupRequest) -> Result<(), StoreError> {
        let call = self.call();
        match call.request(request)? {
            GroupReply::Done | GroupReply::NotOpen => Ok(()),
            other => Err(call.unexpected(&other)),
        }
    }

    fn call(&self) -> Call<'_> {
        Call {
            membership: self,
            started: Instant::now(),
        }
    }
}

impl fmt::Debug for Membership {
    /// Shows everything except the list, which has handles.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Membership")
            .field("store", &self.store)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

struct Call<'m> {
    membership: &'m Membership,
    started: Instant,
}

impl Call<'_> {
    /// Sends a request that the server answers at once, without a list.
    fn request(&self, request: &GroupRequest) -> Result<GroupReply, StoreError> {
        let timeout = self.membership.store.timeout();
        let reply = self.exchange(request, false, timeout, None)?;
        reply.ok_or_else(|| self.protocol_error("there was no reply".to_owned()))
    }

    /// `None` if there was no news in time. A reply without a list is about the `known` one.
    fn exchange(
        &self,
        request: &GroupRequest,
        waits: bool,
        timeout: Option<Duration>,
        known: Option<Arc<Record>>,
    ) -> Result<Option<GroupReply>, StoreError> {
        let Membership { store, group, .. } = self.membership;
        let Some(blobs) = store.ask_group(group, &request.encode(), waits, timeout)? else {
            return Ok(None);
        };
        let read = || {
            let [reply, list] = &blobs[..] else {
                return Err(Malformed);
            };
            let list = match &**list {
                [] => known,
                bytes => Some(Arc::new(decode_list(bytes, known.as_ref())?)),
            };
            GroupReply::decode(reply, |_| list)
        };
        let reply = read();
        let reply = reply.map_err(|Malformed| self.protocol_error("it cannot be read".to_owned()));
        reply.map(Some)
    }

    fn unexpected(&self, reply: &GroupReply) -> StoreError {
        self.protocol_error(format!("{reply:?}"))
    }

    fn protocol_error(&self, reply: String) -> StoreError {
        StoreError::Protocol {
            context: self.context(),
            detail: format!("the reply of a group: {reply}"),
        }
    }

    fn context(&self) -> ErrorContext {
        let Membership { store, group, .. } = self.membership;
        let key = store.full_key(group);
        let elapsed = self.started.elapsed();
        ErrorContext::new(Operation::Membership, [&*key], store.label(), elapsed)
    }
}
