//! The opcodes and the names of classes and attributes in a pickled state. [`decode`](super::decode) refuses any other opcode.
//!
//! The names are PyTorch's: `torch/distributed/elastic/rendezvous/dynamic_rendezvous.py`.

pub(super) const PROTO: u8 = 0x80;
pub(super) const FRAME: u8 = 0x95;
pub(super) const STOP: u8 = b'.';
pub(super) const MARK: u8 = b'(';

pub(super) const NONE: u8 = b'N';
pub(super) const NEWTRUE: u8 = 0x88;
pub(super) const NEWFALSE: u8 = 0x89;
pub(super) const BININT: u8 = b'J';
pub(super) const BININT1: u8 = b'K';
pub(super) const BININT2: u8 = b'M';
pub(super) const LONG1: u8 = 0x8a;
pub(super) const SHORT_BINBYTES: u8 = b'C';
pub(super) const SHORT_BINUNICODE: u8 = 0x8c;
pub(super) const BINUNICODE: u8 = b'X';

pub(super) const EMPTY_TUPLE: u8 = b')';
pub(super) const TUPLE1: u8 = 0x85;
pub(super) const TUPLE2: u8 = 0x86;
pub(super) const TUPLE3: u8 = 0x87;
pub(super) const EMPTY_DICT: u8 = b'}';
pub(super) const SETITEM: u8 = b's';
pub(super) const SETITEMS: u8 = b'u';
pub(super) const EMPTY_SET: u8 = 0x8f;
pub(super) const ADDITEMS: u8 = 0x90;

pub(super) const STACK_GLOBAL: u8 = 0x93;
pub(super) const NEWOBJ: u8 = 0x81;
pub(super) const BUILD: u8 = b'b';
pub(super) const REDUCE: u8 = b'R';

pub(super) const MEMOIZE: u8 = 0x94;
pub(super) const BINGET: u8 = b'h';
pub(super) const LONG_BINGET: u8 = b'j';

/// The protocol of Python 3.8 to 3.13, which we write. Protocol 5 of later versions is the same for the opcodes
/// above.
pub(super) const PROTOCOL: u8 = 4;
pub(super) const PROTOCOL_MAX: u8 = 5;

/// The module of [`STATE`] and [`NODE`].
pub(super) const RENDEZVOUS_MODULE: &str =
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous";
pub(super) const STATE: &str = "_RendezvousState";
pub(super) const NODE: &str = "_NodeDesc";

/// The module of Python's times, and its class of the same name.
pub(super) const DATETIME: &str = "datetime";
pub(super) const TIMEZONE: &str = "timezone";
pub(super) const TIMEDELTA: &str = "timedelta";

pub(super) const ADDR: &str = "addr";
pub(super) const PID: &str = "pid";
pub(super) const LOCAL_ID: &str = "local_id";

pub(super) const ROUND: &str = "round";
pub(super) const COMPLETE: &str = "complete";
pub(super) const DEADLINE: &str = "deadline";
pub(super) const CLOSED: &str = "closed";
pub(super) const PARTICIPANTS: &str = "participants";
pub(super) const WAIT_LIST: &str = "wait_list";
pub(super) const REDUNDANCY_LIST: &str = "redundancy_list";
pub(super) const LAST_HEARTBEATS: &str = "last_heartbeats";

/// The state's attributes in the order in which PyTorch writes them.
pub(super) const ATTRIBUTES: [&str; 8] = [
    ROUND,
    COMPLETE,
    DEADLINE,
    CLOSED,
    PARTICIPANTS,
    WAIT_LIST,
    REDUNDANCY_LIST,
    LAST_HEARTBEATS,
];
