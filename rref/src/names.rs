//! One copy of a type's name for the many references that have it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

/// How many names a thread remembers. A program with more types at a time has some names more than once.
const RECENT_MAX: usize = 16;

thread_local! {
    static RECENT: RefCell<VecDeque<Arc<str>>> = const { RefCell::new(VecDeque::new()) };
}

/// The name, shared with what this thread has named so lately.
pub(crate) fn shared(name: &str) -> Arc<str> {
    // A reference that a thread-local destructor receives or makes has its own copy.
    RECENT
        .try_with(|recent| {
            let mut recent = recent.borrow_mut();
            if let Some(known) = recent.iter().find(|known| ***known == *name) {
                return Arc::clone(known);
            }
            let name = Arc::<str>::from(name);
            if recent.len() == RECENT_MAX {
                recent.pop_front();
            }
            recent.push_back(Arc::clone(&name));
            name
        })
        .unwrap_or_else(|_| name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_of_few_types_share_their_names_and_many_types_are_forgotten() {
        let first = shared("first");
        assert!(Arc::ptr_eq(&first, &shared("first")));
        for number in 0..1000 {
            assert_eq!(*shared(&number.to_string()), *number.to_string());
        }
        assert_eq!(RECENT.with_borrow(VecDeque::len), RECENT_MAX);
        assert_eq!(*shared("first"), *first);
    }
}
