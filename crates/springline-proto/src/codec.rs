//! The bytes of records: numbers of seven bits a byte, and byte strings with their length before
//! them.
//!
//! Whoever reads checks everything: a record comes from a file, and files are torn, foreign and old.

use bytes::Bytes;

/// Writes a record.
#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    /// A record of this version.
    pub(crate) fn new(version: u8) -> Self {
        Self(vec![version])
    }

    pub(crate) fn number(&mut self, number: u64) {
        put_number(&mut self.0, number);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// A byte string or nothing; nothing is not the empty string.
    pub(crate) fn optional(&mut self, bytes: Option<&[u8]>) {
        self.0.push(u8::from(bytes.is_some()));
        if let Some(bytes) = bytes {
            self.bytes(bytes);
        }
    }

    pub(crate) fn flag(&mut self, flag: bool) {
        self.0.push(u8::from(flag));
    }

    pub(crate) fn finish(self) -> Bytes {
        self.0.into()
    }
}

/// Reads a record; every method gives `None` past a fault.
#[derive(Debug)]
pub(crate) struct Reader(Bytes);

impl Reader {
    /// A reader behind the version, if it is the one that is expected.
    pub(crate) fn new(record: &Bytes, version: u8) -> Option<Self> {
        (record.first() == Some(&version)).then(|| Self(record.slice(1..)))
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        let (number, rest) = read_number(&self.0)?;
        self.0 = self.0.slice_ref(rest);
        Some(number)
    }

    pub(crate) fn bytes(&mut self) -> Option<Bytes> {
        let len = usize::try_from(self.number()?).ok()?;
        (len <= self.0.len()).then(|| self.0.split_to(len))
    }

    /// A byte string or nothing; the outer `None` is a fault.
    #[expect(clippy::option_option, reason = "a fault is not the same as nothing")]
    pub(crate) fn optional(&mut self) -> Option<Option<Bytes>> {
        if self.flag()? {
            self.bytes().map(Some)
        } else {
            Some(None)
        }
    }

    pub(crate) fn flag(&mut self) -> Option<bool> {
        let byte = *self.0.first()?;
        self.0 = self.0.slice(1..);
        match byte {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    /// Says whether the record was read whole; what follows would be of another version.
    pub(crate) fn is_done(&self) -> bool {
        self.0.is_empty()
    }
}

/// Seven bits a byte, the lowest first; the top bit says that more follow.
pub(crate) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7F) as u8 | 0x80);
        number >>= 7;
    }
    out.push((number & 0x7F) as u8);
}

/// Reads what [`put_number`] wrote; the rest comes back.
pub(crate) fn read_number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0_u64;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        let shift = u32::try_from(at * 7).ok()?;
        number |= u64::from(byte & 0x7F).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some((number, bytes.get(at + 1..)?));
        }
    }
    None
}
