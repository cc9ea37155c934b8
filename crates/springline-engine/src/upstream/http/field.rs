//! The fields of an answer's head.
//!
//! Owns: their bytes, and where each stands. It must not know what a field means. Few of them are
//! looked at, so none is copied for itself and no table is made of them.

/// Bytes of one record: where the name begins and ends, and the value.
const RECORD_LEN: usize = 16;

/// The fields of one head, in their order. Names are looked for in lower case and found in any.
#[derive(Default)]
pub(super) struct Fields {
    /// The head, and behind it a record for each field: one buffer, since it is made for each answer.
    raw: Box<[u8]>,
    head_len: usize,
}

impl Fields {
    /// Copies a head, of which `fields` were read. One that is no part of it is left out.
    pub(super) fn of(head: &[u8], fields: &[httparse::Header<'_>]) -> Self {
        let start = head.as_ptr() as usize;
        let place = |part: &[u8]| {
            let from = (part.as_ptr() as usize).checked_sub(start)?;
            let to = from
                .checked_add(part.len())
                .filter(|to| *to <= head.len())?;
            Some((u32::try_from(from).ok()?, u32::try_from(to).ok()?))
        };
        let mut raw = Vec::with_capacity(head.len() + fields.len() * RECORD_LEN);
        raw.extend_from_slice(head);
        for field in fields {
            if let (Some(name), Some(value)) = (place(field.name.as_bytes()), place(field.value)) {
                for number in [name.0, name.1, value.0, value.1] {
                    raw.extend_from_slice(&number.to_ne_bytes());
                }
            }
        }
        Self {
            raw: raw.into_boxed_slice(),
            head_len: head.len(),
        }
    }

    /// The values of the fields of this name, in their order.
    pub(super) fn all(&self, name: &str) -> impl DoubleEndedIterator<Item = &[u8]> {
        let records = self.raw.get(self.head_len..).unwrap_or_default();
        let (records, _) = records.as_chunks::<RECORD_LEN>();
        records.iter().filter_map(move |record| {
            let (numbers, _) = record.as_chunks::<4>();
            let number = |at: usize| Some(u32::from_ne_bytes(*numbers.get(at)?) as usize);
            let (from, to) = (number(0)?, number(1)?);
            if to.saturating_sub(from) != name.len() {
                return None;
            }
            let found = self.raw.get(from..to)?;
            if !found.eq_ignore_ascii_case(name.as_bytes()) {
                return None;
            }
            self.raw.get(number(2)?..number(3)?)
        })
    }

    /// The first value of this name.
    pub(super) fn first(&self, name: &str) -> Option<&[u8]> {
        self.all(name).next()
    }

    /// The first value of this name, if it is text.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.first(name)?).ok()
    }

    /// Whether there is one of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.first(name).is_some()
    }
}

#[cfg(test)]
impl Fields {
    /// Of a head that holds just these.
    pub(super) fn made(fields: &[(&str, &str)]) -> Self {
        let lines = fields.iter();
        let lines = lines.map(|(name, value)| format!("{name}: {value}\r\n"));
        let head = format!("HTTP/1.1 200 OK\r\n{}\r\n", lines.collect::<String>());
        let mut room = [httparse::EMPTY_HEADER; 16];
        let mut answer = httparse::Response::new(&mut room);
        assert!(answer.parse(head.as_bytes()).unwrap().is_complete());
        Self::of(head.as_bytes(), answer.headers)
    }
}

#[cfg(test)]
mod tests {
    use super::Fields;

    #[test]
    fn fields_are_found_in_any_spelling_and_in_their_order() {
        let fields = Fields::made(&[
            ("Via", "a"),
            ("X-VIA", ""),
            ("vIA", " b,c \t"),
            ("ETag", "1"),
        ]);
        assert_eq!(fields.all("via").collect::<Vec<_>>(), [&b"a"[..], b"b,c"]);
        assert_eq!(fields.all("via").next_back(), Some(&b"b,c"[..]));
        assert_eq!(fields.first("x-via"), Some(&b""[..]));
        assert_eq!(fields.text("etag"), Some("1"));
        assert!(!fields.has("vi") && !Fields::default().has("via"));
    }
}
