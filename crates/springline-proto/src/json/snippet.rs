//! A text that is mostly short: an id, or what is put into a message.
//!
//! Owns where it is kept: in place, so that it needs no buffer of its own and keeps none of others alive.

use std::fmt;

use bytes::Bytes;

/// The longest text that is kept in place: a UUID with its quotes has 38 bytes, and any number 20.
const SHORT_MAX: usize = 38;

/// The text.
#[derive(Clone)]
pub struct Snippet(Kept);

#[derive(Clone)]
enum Kept {
    Short { len: u8, bytes: [u8; SHORT_MAX] },
    Long(Bytes),
}

impl Snippet {
    /// A copy of this text.
    pub fn of(text: &[u8]) -> Self {
        let mut bytes = [0; SHORT_MAX];
        match (bytes.get_mut(..text.len()), u8::try_from(text.len())) {
            (Some(room), Ok(len)) => {
                room.copy_from_slice(text);
                Self(Kept::Short { len, bytes })
            }
            _ => Self(Kept::Long(Bytes::copy_from_slice(text))),
        }
    }

    /// The text.
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Kept::Short { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Kept::Long(bytes) => bytes,
        }
    }

    /// The text in a buffer: its own if it has one, else a copy.
    pub fn to_bytes(&self) -> Bytes {
        match &self.0 {
            Kept::Short { .. } => Bytes::copy_from_slice(self.as_slice()),
            Kept::Long(bytes) => bytes.clone(),
        }
    }
}

/// Kept as it is, however short.
impl From<Bytes> for Snippet {
    fn from(bytes: Bytes) -> Self {
        Self(Kept::Long(bytes))
    }
}

/// Shows its size only: messages may carry secrets.
impl fmt::Debug for Snippet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.as_slice().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_any_length_is_what_it_was() {
        for len in [0, 1, SHORT_MAX, SHORT_MAX + 1, 300] {
            let text = vec![b'7'; len];
            let snippet = Snippet::of(&text);
            assert_eq!(snippet.as_slice(), text);
            assert_eq!(snippet.to_bytes(), text);
        }
    }
}
