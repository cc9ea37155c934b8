//! The chunked coding of a body (RFC 9112, 7.1).
//!
//! Owns: sizes, and the bound on what stands around them. It takes no data itself.

use bytes::{Buf as _, BytesMut};

/// Bytes of a size with its extensions, and of the trailers.
const LINE_MAX: usize = 16 * 1024;

/// How far a chunked body was read.
#[derive(Debug, Default)]
pub(super) struct Chunked {
    place: Place,
    /// Bytes of lines that were skipped without data between them.
    skipped: usize,
}

#[derive(Debug, Default)]
enum Place {
    #[default]
    Size,
    Data(u64),
    /// The line end after data.
    After,
    Trailer,
    End,
}

/// What can be done now.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Step {
    /// Up to so many bytes of the buffer are data; tell [`Chunked::took`] how many were taken.
    Data(u64),
    /// More must be read first.
    More,
    /// The body is complete.
    End,
}

impl Chunked {
    /// Takes framing off the buffer until data, the end, or nothing more can be read.
    pub(super) fn step(&mut self, buffer: &mut BytesMut) -> Result<Step, &'static str> {
        loop {
            match self.place {
                Place::End => return Ok(Step::End),
                Place::Data(_) if buffer.is_empty() => return Ok(Step::More),
                Place::Data(left) => return Ok(Step::Data(left)),
                Place::Size | Place::After | Place::Trailer => {}
            }
            let Some(end) = memchr::memchr(b'\n', buffer) else {
                return if buffer.len() > LINE_MAX {
                    Err("a chunk's size is too long")
                } else {
                    Ok(Step::More)
                };
            };
            let line = buffer.get(..end).unwrap_or_default();
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            self.skipped += end + 1;
            if self.skipped > LINE_MAX {
                return Err("there is too much around a chunk");
            }
            self.place = match self.place {
                Place::After if line.is_empty() => Place::Size,
                Place::After => return Err("a chunk does not end where it should"),
                Place::Trailer if line.is_empty() => Place::End,
                Place::Trailer => Place::Trailer,
                _ => match size(line)? {
                    0 => Place::Trailer,
                    size => Place::Data(size),
                },
            };
            buffer.advance(end + 1);
        }
    }

    /// So many bytes of data were taken off the buffer.
    pub(super) fn took(&mut self, count: u64) {
        if let Place::Data(left) = &mut self.place {
            *left = left.saturating_sub(count);
            self.skipped = 0;
            if *left == 0 {
                self.place = Place::After;
            }
        }
    }

    /// What is missing of the chunk at hand.
    pub(super) fn left(&self) -> u64 {
        match self.place {
            Place::Data(left) => left,
            Place::Size | Place::After | Place::Trailer | Place::End => 0,
        }
    }

    /// Whether the last chunk and the trailers were read.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.place, Place::End)
    }
}

/// Hexadecimal digits, perhaps followed by extensions, which mean nothing here.
fn size(line: &[u8]) -> Result<u64, &'static str> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
    let text = std::str::from_utf8(digits.trim_ascii()).unwrap_or_default();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("a chunk's size cannot be read");
    }
    u64::from_str_radix(text, 16).map_err(|_| "a chunk's size is too large")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data of a body that comes in pieces of `width` bytes.
    fn decode(wire: &[u8], width: usize) -> Result<(Vec<u8>, bool), &'static str> {
        let mut state = Chunked::default();
        let (mut buffer, mut data) = (BytesMut::new(), Vec::new());
        for piece in wire.chunks(width) {
            buffer.extend_from_slice(piece);
            while let Step::Data(left) = state.step(&mut buffer)? {
                let len = buffer.len().min(usize::try_from(left).unwrap());
                data.extend_from_slice(&buffer.split_to(len));
                state.took(len as u64);
            }
        }
        Ok((data, state.is_done()))
    }

    #[test]
    fn data_comes_out_wherever_the_pieces_are_cut() {
        let wire = b"5\r\nhello\r\n1;ext=\"a\"\r\n,\r\nB \r\n0123456789a\r\n0\r\nT: x\r\n\r\n";
        for width in 1..wire.len() {
            let (data, done) = decode(wire, width).unwrap();
            assert_eq!((&data[..], done), (&b"hello,0123456789a"[..], true));
        }
        assert_eq!(decode(b"3\r\nab", 1), Ok((b"ab".to_vec(), false)));
        assert_eq!(decode(b"0\r\n", 1), Ok((Vec::new(), false)));
    }

    #[test]
    fn what_is_no_chunk_is_an_error() {
        for bad in [
            &b"\r\n"[..],
            b"-1\r\n",
            b"0x5\r\n",
            b"1\r\nab\r\n",
            b"11111111111111111\r\n",
        ] {
            assert!(decode(bad, 3).is_err(), "{bad:?}");
        }
        let endless = [b"0\r\n".to_vec(), b"A: b\r\n".repeat(LINE_MAX)].concat();
        assert!(decode(&endless, 100).is_err());
        assert!(decode(&vec![b'1'; LINE_MAX * 2], 100).is_err());
    }
}
