//! Names of commands.

use c10d_store::Opcode;

/// The name of a command as in the protocol's document: `COMPARE_SET`.
pub(super) fn command_name(command: Opcode) -> String {
    let mut name = String::new();
    for (index, character) in format!("{command:?}").chars().enumerate() {
        if index > 0 && character.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(character.to_ascii_uppercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_document() {
        assert_eq!(command_name(Opcode::Set), "SET");
        assert_eq!(command_name(Opcode::CompareSet), "COMPARE_SET");
        assert_eq!(command_name(Opcode::QueueTake), "QUEUE_TAKE");
    }
}
