//! A value that most of its owners never change: it takes no room until one does.
//!
//! Ten thousand sessions are idle at a time, and of what a machine may have to know most of them
//! know nothing. Owns nothing of the protocol.

use std::ops::{Deref, DerefMut};

/// What a value is before anybody changed it.
pub(crate) trait Unset: Sized + 'static {
    /// That value.
    fn unset() -> &'static Self;
}

/// The value, boxed with its first change. Reading it, or a change through [`Self::held`], takes no
/// room.
#[derive(Clone, Debug)]
pub(crate) struct Seldom<T>(Option<Box<T>>);

impl<T> Default for Seldom<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> From<T> for Seldom<T> {
    fn from(value: T) -> Self {
        Self(Some(Box::new(value)))
    }
}

impl<T> Seldom<T> {
    /// The value if it was changed before: for a change that concerns only what is there.
    pub(crate) fn held(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// Takes the value out, if it was changed before.
    pub(crate) fn take(&mut self) -> Option<T> {
        self.0.take().map(|value| *value)
    }

    /// As if it had never been changed.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }
}

impl<T: Unset> Deref for Seldom<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.0 {
            Some(value) => value,
            None => T::unset(),
        }
    }
}

impl<T: Unset + Default> DerefMut for Seldom<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Unset for Vec<u8> {
        fn unset() -> &'static Self {
            static NONE: Vec<u8> = Vec::new();
            &NONE
        }
    }

    #[test]
    fn it_takes_room_with_its_first_change_alone() {
        let mut value = Seldom::<Vec<u8>>::default();
        assert!(value.is_empty() && value.held().is_none());
        value.push(1);
        assert_eq!(*value, [1]);
        assert_eq!(value.held(), Some(&mut vec![1]));
        value.clear();
        assert!(value.is_empty() && value.held().is_none());
    }
}
