//! A list that allocates only from its second entry on; most lists here are shorter.

#[derive(Debug, Default)]
pub(super) enum Few<T> {
    #[default]
    None,
    One(T),
    Many(Vec<T>),
}

impl<T> Few<T> {
    pub(super) fn push(&mut self, entry: T) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(entry),
            Self::One(first) => Self::Many(vec![first, entry]),
            Self::Many(mut entries) => {
                entries.push(entry);
                Self::Many(entries)
            }
        }
    }

    pub(super) fn find_mut(&mut self, is_it: impl Fn(&T) -> bool) -> Option<&mut T> {
        match self {
            Self::None => None,
            Self::One(entry) => is_it(entry).then_some(entry),
            Self::Many(entries) => entries.iter_mut().find(|entry| is_it(entry)),
        }
    }

    pub(super) fn remove(&mut self, is_it: impl Fn(&T) -> bool) -> Option<T> {
        match std::mem::take(self) {
            Self::One(entry) if is_it(&entry) => Some(entry),
            Self::Many(mut entries) => {
                let at = entries.iter().position(is_it);
                // Wakers are called in order of registration.
                let removed = at.map(|at| entries.remove(at));
                *self = Self::Many(entries);
                removed
            }
            kept => {
                *self = kept;
                None
            }
        }
    }

    pub(super) fn for_each(self, each: impl FnMut(T)) {
        match self {
            Self::None => {}
            Self::One(entry) => std::iter::once(entry).for_each(each),
            Self::Many(entries) => entries.into_iter().for_each(each),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(few: Few<u32>) -> Vec<u32> {
        let mut entries = Vec::new();
        few.for_each(|entry| entries.push(entry));
        entries
    }

    fn of(count: u32) -> Few<u32> {
        let mut few = Few::default();
        (0..count).for_each(|entry| few.push(entry));
        few
    }

    #[test]
    fn entries_keep_their_order() {
        for count in 0..5 {
            assert_eq!(listed(of(count)), (0..count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_entry_is_found_and_removed_and_the_others_keep_their_order() {
        for count in 1..5 {
            for wanted in 0..count {
                let mut few = of(count);
                assert_eq!(
                    few.find_mut(|entry| *entry == wanted),
                    Some(&mut wanted.clone())
                );
                assert_eq!(few.remove(|entry| *entry == wanted), Some(wanted));
                assert_eq!(few.find_mut(|entry| *entry == wanted), None);
                assert_eq!(few.remove(|entry| *entry == wanted), None);
                let others = (0..count).filter(|entry| *entry != wanted);
                assert_eq!(listed(few), others.collect::<Vec<_>>());
            }
        }
    }
}
