//! A sorted map that keeps no memory while it is empty.
//!
//! Ten thousand sessions are idle at a time: the node that a tree keeps after its last entry, with
//! room for eleven, would be most of what each of them costs. Entries are few and mostly come in
//! order, so a sorted vector is as fast. Owns nothing of the protocol.

use std::borrow::Borrow;

/// The map. Its bound is that of what is put in.
#[derive(Clone, Debug)]
pub struct Map<K, V>(Vec<(K, V)>);

/// Room of the first allocation: one call at a time is what most clients have.
const FIRST: usize = 1;

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> Map<K, V> {
    /// An empty map.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops all entries.
    pub fn clear(&mut self) {
        self.0 = Vec::new();
    }

    /// The keys in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.0.iter().map(|(key, _)| key)
    }

    /// The values in the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    /// The same, to change.
    pub fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    /// The entry with the lowest key.
    pub fn first(&self) -> Option<(&K, &V)> {
        self.0.first().map(|(key, value)| (key, value))
    }

    /// The entries in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// The values in the order of their keys.
    pub fn into_values(self) -> impl DoubleEndedIterator<Item = V> {
        self.0.into_iter().map(|(_, value)| value)
    }

    /// Drops the entries for which `keep` says false.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.0.retain_mut(|(key, value)| keep(key, value));
        self.rest();
    }

    /// Gives the memory back when nothing is left.
    fn rest(&mut self) {
        if self.0.is_empty() && self.0.capacity() > 0 {
            self.0 = Vec::new();
        }
    }
}

impl<K: Ord, V> Map<K, V> {
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0.binary_search_by(|(held, _)| held.borrow().cmp(key))
    }

    /// Whether there is an entry under this key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find(key).is_ok()
    }

    /// The value under this key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        self.0.get(at).map(|(_, value)| value)
    }

    /// The same, to change.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        self.0.get_mut(at).map(|(_, value)| value)
    }

    /// Puts an entry in; gives back the value that it takes the place of.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(at) => {
                let (_, held) = self.0.get_mut(at)?;
                Some(std::mem::replace(held, value))
            }
            Err(at) => {
                if self.0.capacity() == 0 {
                    self.0.reserve_exact(FIRST);
                }
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    /// Takes an entry out.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        let (_, value) = self.0.remove(at);
        self.rest();
        Some(value)
    }
}

impl<K, V> IntoIterator for Map<K, V> {
    type Item = (K, V);
    type IntoIter = std::vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_and_told_in_order_whatever_their_coming() {
        let mut map = Map::new();
        for key in [3, 1, 2, 3] {
            map.insert(key, key * 10);
        }
        assert_eq!(map.insert(2, 21), Some(20));
        assert_eq!(map.keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((map.get(&2), map.get(&4)), (Some(&21), None));
        map.retain(|key, _| *key != 1);
        assert_eq!(map.remove(&3), Some(30));
        assert_eq!(map.remove(&3), None);
        assert_eq!(map.len(), 1);
    }

    #[test]
    fn an_empty_one_keeps_nothing() {
        let mut map = Map::new();
        map.insert(1, [0_u8; 100]);
        map.remove(&1);
        assert_eq!(map.0.capacity(), 0);
        map.insert(1, [0; 100]);
        map.retain(|_, _| false);
        assert_eq!(map.0.capacity(), 0);
    }
}
