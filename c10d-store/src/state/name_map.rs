//! A hash map from names that numbers them: a snapshot can continue at a number, and two names can change numbers.
//!
//! Unlike an `IndexMap`, it keeps its entries in pieces of memory. Therefore, entries never move together, and the
//! memory of a million names goes back to the allocator piece by piece: returning one large block would delay all
//! clients for milliseconds.

use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::HashTable;

use super::hashing::KeyHash;

/// The entries of a piece: tens of kilobytes, so that one is freed in microseconds.
const PIECE: usize = 256;

/// A table with room for at most this many names keeps its memory.
const KEPT_NAMES: usize = 1024;

/// The table shrinks with at most this many names: all of them are put into a new table, in less than a millisecond.
const MOVED_NAMES_MAX: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct NameMap<T> {
    /// The number of each name.
    numbers: HashTable<usize>,
    hash: KeyHash,
    /// Invariant: all pieces except the last two are full. The last piece may be empty, so that adding and removing
    /// one name repeatedly costs no allocation.
    pieces: Vec<Vec<Entry<T>>>,
    len: usize,
}

#[derive(Debug)]
struct Entry<T> {
    hash: u64,
    name: Arc<[u8]>,
    value: T,
}

impl<T> Default for NameMap<T> {
    fn default() -> Self {
        Self {
            numbers: HashTable::new(),
            hash: KeyHash::default(),
            pieces: Vec::new(),
            len: 0,
        }
    }
}

impl<T> NameMap<T> {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The number of names that the table and the pieces have memory for.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.numbers.capacity().max(self.pieces.len() * PIECE)
    }

    #[inline]
    pub(super) fn get(&self, name: &[u8]) -> Option<&T> {
        let number = self.number_of(name)?;
        Some(&self.entry(number).value)
    }

    #[inline]
    pub(super) fn number_of(&self, name: &[u8]) -> Option<usize> {
        let hash = self.hash.hash_one(name);
        let is_it = |number: &usize| *self.entry(*number).name == *name;
        self.numbers.find(hash, is_it).copied()
    }

    /// The name with this number, which is below [`len`](Self::len).
    #[inline]
    pub(super) fn at(&self, number: usize) -> (&Arc<[u8]>, &T) {
        let entry = self.entry(number);
        (&entry.name, &entry.value)
    }

    /// Like [`at`](Self::at), mutable.
    #[inline]
    pub(super) fn at_mut(&mut self, number: usize) -> (&Arc<[u8]>, &mut T) {
        let entry = self.entry_mut(number);
        (&entry.name, &mut entry.value)
    }

    /// Returns all names, in the order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<[u8]>, &T)> {
        let entries = self.pieces.iter().flatten();
        entries.map(|entry| (&entry.name, &entry.value))
    }

    /// Adds a name that is not in it. Returns its number, the highest.
    pub(super) fn insert(&mut self, name: Arc<[u8]>, value: T) -> usize {
        debug_assert!(self.number_of(&name).is_none(), "it is new");
        let number = self.len;
        let hash = self.hash.hash_one(&name[..]);
        let pieces = &self.pieces;
        let hash_of = |number: &usize| pieces[*number / PIECE][*number % PIECE].hash;
        self.numbers.insert_unique(hash, number, hash_of);
        if number / PIECE == self.pieces.len() {
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        self.pieces[number / PIECE].push(Entry { hash, name, value });
        self.len += 1;
        number
    }

    /// Removes the name with this number, which the name with the highest number gets.
    pub(super) fn remove_at(&mut self, number: usize) {
        self.exchange(number, self.len - 1);
        self.len -= 1;
        let last = self.len;
        if let Some(entry) = self.pieces[last / PIECE].pop()
            && let Ok(found) = self.numbers.find_entry(entry.hash, |it| *it == last)
        {
            found.remove();
        }
        if self.pieces.len() > self.len.div_ceil(PIECE) + 1 {
            self.pieces.pop();
        }
        let room = self.numbers.capacity();
        if room > KEPT_NAMES && self.len < (room / 8).min(MOVED_NAMES_MAX) {
            let pieces = &self.pieces;
            let hash_of = |number: &usize| pieces[*number / PIECE][*number % PIECE].hash;
            self.numbers
                .shrink_to((2 * self.len).max(KEPT_NAMES), hash_of);
            self.pieces.shrink_to(2 * self.pieces.len());
        }
    }

    /// Exchanges the numbers of two names.
    pub(super) fn exchange(&mut self, a: usize, b: usize) {
        if a == b {
            return;
        }
        let hashes = [a, b].map(|number| self.entry(number).hash);
        let is_it = |index: usize, number: &usize| *number == [a, b][index];
        let [Some(number_a), Some(number_b)] = self.numbers.get_disjoint_mut(hashes, is_it) else {
            unreachable!("each entry is in the table");
        };
        std::mem::swap(number_a, number_b);
        let (low, high) = (a.min(b), a.max(b));
        let (before, after) = self.pieces.split_at_mut(high / PIECE);
        match before.get_mut(low / PIECE) {
            Some(piece) => std::mem::swap(&mut piece[low % PIECE], &mut after[0][high % PIECE]),
            None => after[0].swap(low % PIECE, high % PIECE),
        }
    }

    #[inline]
    fn entry(&self, number: usize) -> &Entry<T> {
        &self.pieces[number / PIECE][number % PIECE]
    }

    #[inline]
    fn entry_mut(&mut self, number: usize) -> &mut Entry<T> {
        &mut self.pieces[number / PIECE][number % PIECE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(number: usize) -> Arc<[u8]> {
        number.to_string().into_bytes().into()
    }

    #[test]
    fn it_is_a_list_of_names_that_are_found() {
        let mut random = fastrand::Rng::with_seed(c10d_sim::seed());
        let mut map = NameMap::default();
        let mut model: Vec<(Arc<[u8]>, usize)> = Vec::new();
        for round in 0..20_000 {
            // Growth, then decline, over several pieces.
            let grows = random.usize(..4) > (round / 5_000) % 2 * 2;
            if grows || model.is_empty() {
                let name = name_of(round);
                assert_eq!(map.number_of(&name), None);
                assert_eq!(map.insert(Arc::clone(&name), round), model.len());
                model.push((name, round));
            } else {
                let number = random.usize(..model.len());
                map.remove_at(number);
                model.swap_remove(number);
            }
            if let Some(last) = model.len().checked_sub(1) {
                let [a, b] = [(); 2].map(|()| random.usize(..=last));
                map.exchange(a, b);
                model.swap(a, b);
                for number in [a, b, last] {
                    let (name, value) = &model[number];
                    assert_eq!(map.number_of(name), Some(number));
                    assert_eq!(map.at(number), (name, value));
                    *map.at_mut(number).1 += 1;
                    model[number].1 += 1;
                }
            }
            assert_eq!(map.len(), model.len());
            assert!(map.pieces.len() <= model.len().div_ceil(PIECE) + 1);
        }
        assert!(
            map.iter()
                .eq(model.iter().map(|(name, value)| (name, value)))
        );
        for (name, value) in &model {
            assert_eq!(map.get(name), Some(value));
        }
        for number in (0..map.len()).rev() {
            map.remove_at(number);
        }
        assert_eq!((map.len(), map.number_of(b"1")), (0, None));
    }

    /// A removal must not hold up clients: the names of the table are moved once they are few.
    #[test]
    fn memory_goes_back_in_pieces_and_the_table_is_made_anew_for_few_names() {
        let mut map = NameMap::default();
        for number in 0..300_000 {
            map.insert(name_of(number), ());
        }
        let room = map.numbers.capacity();
        for number in (0..map.len()).rev() {
            map.remove_at(number);
            assert!(map.pieces.len() <= number.div_ceil(PIECE) + 1);
            if number >= MOVED_NAMES_MAX {
                assert!(
                    map.numbers.capacity() > room / 2,
                    "made anew with {number} names"
                );
            }
        }
        assert!(map.numbers.capacity() <= 2 * KEPT_NAMES);
    }
}
