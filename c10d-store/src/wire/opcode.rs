//! The command bytes and the arguments of each command.

/// A command byte (docs/wire.md, section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are those of docs/wire.md")]
pub enum Opcode {
    Validate = 0,
    Set = 1,
    CompareSet = 2,
    Get = 3,
    Add = 4,
    Check = 5,
    Wait = 6,
    GetNumKeys = 7,
    DeleteKey = 8,
    Append = 9,
    MultiGet = 10,
    MultiSet = 11,
    CancelWait = 12,
    Ping = 13,
    QueuePush = 14,
    QueuePop = 15,
    QueueLen = 16,
    ListKeys = 17,
    Barrier = 18,
    WaitGet = 0x80,
    WaitChange = 0x81,
    TryAdd = 0x82,
    CompareExchange = 0x83,
}

/// One argument of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    U32,
    I64,
    U64,
    Key,
    Value,
    /// A count, then that many keys.
    Keys,
    /// A count, then that many pairs of key and value.
    Pairs,
}

/// The known length of a WAIT_CHANGE that matches values of any length.
pub(crate) const ANY_LENGTH: u64 = u64::MAX;

impl Opcode {
    /// The command of a byte; `None` for an unknown one.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Validate,
            1 => Self::Set,
            2 => Self::CompareSet,
            3 => Self::Get,
            4 => Self::Add,
            5 => Self::Check,
            6 => Self::Wait,
            7 => Self::GetNumKeys,
            8 => Self::DeleteKey,
            9 => Self::Append,
            10 => Self::MultiGet,
            11 => Self::MultiSet,
            12 => Self::CancelWait,
            13 => Self::Ping,
            14 => Self::QueuePush,
            15 => Self::QueuePop,
            16 => Self::QueueLen,
            17 => Self::ListKeys,
            18 => Self::Barrier,
            0x80 => Self::WaitGet,
            0x81 => Self::WaitChange,
            0x82 => Self::TryAdd,
            0x83 => Self::CompareExchange,
            _ => return None,
        })
    }

    /// The arguments, in order.
    pub(super) const fn fields(self) -> &'static [Field] {
        use Field::{I64, Key, Keys, Pairs, U32, U64, Value};
        match self {
            Self::Validate | Self::Ping => &[U32],
            Self::Set | Self::Append | Self::QueuePush => &[Key, Value],
            Self::CompareSet | Self::CompareExchange => &[Key, Value, Value],
            Self::Get | Self::DeleteKey | Self::QueuePop | Self::QueueLen => &[Key],
            Self::Add | Self::Barrier | Self::TryAdd => &[Key, I64],
            Self::Check | Self::Wait | Self::MultiGet | Self::WaitGet => &[Keys],
            Self::MultiSet => &[Pairs],
            Self::WaitChange => &[Key, U64, U64, Value],
            Self::GetNumKeys | Self::CancelWait | Self::ListKeys => &[],
        }
    }
}
