//! The command bytes and the arguments of each command.

/// A command byte (docs/spec/wire.md, section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are those of docs/spec/wire.md")]
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
    Announce = 0x84,
    QueueTake = 0x85,
    Session = 0x86,
    SetEphemeral = 0x87,
    KeepAlive = 0x88,
    DeletePrefix = 0x89,
    EndWaits = 0x8a,
    Membership = 0x8b,
    MembershipPoll = 0x8c,
}

/// One argument of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    U32,
    I64,
    U64,
    Key,
    Value,
    /// The argument of SESSION.
    Hello,
    /// A count, then that many keys.
    Keys,
    /// A count, then that many pairs of key and value.
    Pairs,
}

/// The known length of a WAIT_CHANGE that matches values of any length.
pub(crate) const ANY_LENGTH: u64 = u64::MAX;

/// The length of the argument of SESSION.
pub(crate) const HELLO_BYTES: usize = 52;

/// The number of commands below 0x80.
const PYTORCH_COMMANDS: u8 = 19;

/// The first command byte of an extension.
const EXTENSIONS_START: u8 = 0x80;

impl Opcode {
    /// The number of commands.
    pub(crate) const COUNT: usize = 32;

    /// The position among all commands, in the order of their bytes; less than [`COUNT`](Self::COUNT).
    pub(crate) const fn index(self) -> usize {
        match self as u8 {
            byte @ EXTENSIONS_START.. => (byte - EXTENSIONS_START + PYTORCH_COMMANDS) as usize,
            byte => byte as usize,
        }
    }

    /// Every command, in the order of their bytes.
    pub(crate) const ALL: [Self; Self::COUNT] = [
        Self::Validate,
        Self::Set,
        Self::CompareSet,
        Self::Get,
        Self::Add,
        Self::Check,
        Self::Wait,
        Self::GetNumKeys,
        Self::DeleteKey,
        Self::Append,
        Self::MultiGet,
        Self::MultiSet,
        Self::CancelWait,
        Self::Ping,
        Self::QueuePush,
        Self::QueuePop,
        Self::QueueLen,
        Self::ListKeys,
        Self::Barrier,
        Self::WaitGet,
        Self::WaitChange,
        Self::TryAdd,
        Self::CompareExchange,
        Self::Announce,
        Self::QueueTake,
        Self::Session,
        Self::SetEphemeral,
        Self::KeepAlive,
        Self::DeletePrefix,
        Self::EndWaits,
        Self::Membership,
        Self::MembershipPoll,
    ];

    /// The command of a byte; `None` for an unknown one. Without the feature `extensions`, only PyTorch's are known.
    #[inline]
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        let index = match byte {
            EXTENSIONS_START.. if cfg!(feature = "extensions") => {
                byte - EXTENSIONS_START + PYTORCH_COMMANDS
            }
            PYTORCH_COMMANDS.. => return None,
            _ => byte,
        };
        Self::ALL.get(usize::from(index)).copied()
    }

    /// Returns whether the server may delay the reply, so that CANCEL_WAIT applies.
    #[must_use]
    pub const fn is_wait(self) -> bool {
        matches!(
            self,
            Self::Wait
                | Self::Barrier
                | Self::WaitGet
                | Self::WaitChange
                | Self::QueueTake
                | Self::MembershipPoll
        )
    }

    /// The arguments, in order.
    pub(super) const fn fields(self) -> &'static [Field] {
        use Field::{Hello, I64, Key, Keys, Pairs, U32, U64, Value};
        match self {
            Self::Validate | Self::Ping | Self::KeepAlive => &[U32],
            Self::Set
            | Self::Append
            | Self::QueuePush
            | Self::Membership
            | Self::MembershipPoll => &[Key, Value],
            Self::CompareSet | Self::CompareExchange => &[Key, Value, Value],
            Self::Get | Self::DeleteKey | Self::QueuePop | Self::QueueLen | Self::EndWaits => {
                &[Key]
            }
            Self::Add | Self::Barrier | Self::TryAdd => &[Key, I64],
            Self::Check | Self::Wait | Self::MultiGet | Self::WaitGet => &[Keys],
            Self::MultiSet => &[Pairs],
            Self::WaitChange => &[Key, U64, U64, Value],
            Self::Announce => &[Value],
            Self::QueueTake => &[Key, U64],
            Self::Session => &[Hello],
            Self::DeletePrefix => &[Key, U32],
            Self::SetEphemeral => &[Key, Value, Key, Value],
            Self::GetNumKeys | Self::CancelWait | Self::ListKeys => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_indices_of_all_commands_are_dense() {
        let is_known = |it: &Opcode| cfg!(feature = "extensions") || (*it as u8) < EXTENSIONS_START;
        let known: Vec<Opcode> = Opcode::ALL.into_iter().filter(is_known).collect();
        for byte in 0..=u8::MAX {
            let found = known.iter().find(|it| **it as u8 == byte).copied();
            assert_eq!(Opcode::from_byte(byte), found, "{byte}");
        }
        let found: Vec<Opcode> = (0..=u8::MAX).filter_map(Opcode::from_byte).collect();
        assert_eq!(found, known);
        let indices: Vec<usize> = Opcode::ALL.into_iter().map(Opcode::index).collect();
        assert_eq!(indices, (0..Opcode::COUNT).collect::<Vec<_>>());
    }
}
