//! Keyed digests, by which records are matched without holding what they match.
//!
//! Owns the key. A digest of a definition tells nobody without the key whether a guessed credential
//! was part of it. Must not know what is digested.

use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::folder::{Finding, FolderError, StateFolder};

pub(crate) const FILE: &str = "digest-key";
const LEN: usize = 32;

/// HMAC-SHA256 of some parts.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Digest(pub [u8; 32]);

/// Stands for a session in the journal and in the keys of results: half of its id's digest.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SessionDigest(pub [u8; 16]);

/// Hashes what begins with a keyed digest, or is one: whoever does not have the key chooses no bits of
/// it, so keys need no protection against those that are chosen to collide.
pub(crate) type DigestHash = BuildHasherDefault<DigestHasher>;

/// The hasher for such keys. Not for anything that a peer may choose.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DigestHasher(u64);

impl DigestHasher {
    fn mix(&mut self, word: u64) {
        // An odd number with bits all over; the product carries each bit to those above it.
        self.0 = (self.0.rotate_left(26) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl Hasher for DigestHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_ne_bytes(*word));
        }
        for byte in rest {
            self.mix(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    fn write_usize(&mut self, _len: usize) {
        // A length before an array, which is the same for all keys of a type.
    }

    fn finish(&self) -> u64 {
        // Tables look at the lowest bits, into which a product carries nothing.
        self.0.rotate_left(26)
    }
}

/// The key of this state folder's digests.
#[derive(Clone)]
pub struct DigestKey([u8; LEN]);

impl DigestKey {
    /// A key that ends with the process.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn random() -> Result<Self, FolderError> {
        let mut key = [0; LEN];
        getrandom::fill(&mut key).map_err(|_| FolderError::NoRandom)?;
        Ok(Self(key))
    }

    /// The key of a state folder, made at the first call. A file that cannot be a key is set aside;
    /// then no older record matches any more.
    ///
    /// # Errors
    /// The folder cannot be read or written.
    pub fn open(folder: &StateFolder) -> Result<(Self, Vec<Finding>), FolderError> {
        let mut findings = Vec::new();
        if let Some(bytes) = folder.read(FILE, LEN as u64, &mut findings)? {
            if let Ok(key) = <[u8; LEN]>::try_from(&*bytes) {
                return Ok((Self(key), findings));
            }
            findings.push(folder.set_aside(&[FILE], crate::Reason::Foreign)?);
        }
        let key = Self::random()?;
        folder.replace(FILE, &key.0)?;
        Ok((key, findings))
    }

    /// The digest of parts; how bytes are spread over them matters.
    pub fn digest(&self, parts: &[&[u8]]) -> Digest {
        // HMAC pads a shorter key to SHA-256's block with zeros.
        let mut block = [0; 64];
        block[..LEN].copy_from_slice(&self.0);
        let mut mac = Hmac::<Sha256>::new(&block.into());
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        Digest(mac.finalize().into_bytes().into())
    }

    /// What stands for a session id.
    pub fn session(&self, id: &str) -> SessionDigest {
        let Digest(whole) = self.digest(&[b"session", id.as_bytes()]);
        let mut half = [0; 16];
        half.copy_from_slice(&whole[..16]);
        SessionDigest(half)
    }
}

impl fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DigestKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_depends_on_key_bytes_and_parts() {
        let key = DigestKey([1; LEN]);
        let digest = key.digest(&[b"ab", b"c"]);
        assert_eq!(digest, key.digest(&[b"ab", b"c"]));
        assert_ne!(digest, key.digest(&[b"a", b"bc"]));
        assert_ne!(digest, key.digest(&[b"abc"]));
        assert_ne!(digest, DigestKey([2; LEN]).digest(&[b"ab", b"c"]));
        assert_ne!(key.session("a"), key.session("b"));
        assert_eq!(format!("{key:?}"), "DigestKey");
    }

    #[test]
    fn calls_of_one_session_and_of_several_are_spread_over_a_table() {
        use std::hash::BuildHasher as _;
        let key = DigestKey([1; LEN]);
        let mut seen = std::collections::HashSet::new();
        for session in 0..64 {
            let session = key.session(&session.to_string());
            for number in 1..=64_u64 {
                let hash = DigestHash::default().hash_one((session, number << 32 | 1));
                seen.insert(hash & 0xFFFF);
                let hash = DigestHash::default().hash_one((session, number));
                seen.insert(hash & 0xFFFF);
            }
        }
        // Of 8,192 balls in 65,536 boxes some 480 find their box taken.
        assert!(seen.len() > 7_600, "{}", seen.len());
    }

    #[test]
    fn a_key_is_made_once_and_kept_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let home = tempfile::tempdir().unwrap();
        let (folder, _) = StateFolder::open(home.path()).unwrap();
        let (first, findings) = DigestKey::open(&folder).unwrap();
        assert!(findings.is_empty(), "{findings:?}");
        let (second, _) = DigestKey::open(&folder).unwrap();
        assert_eq!(first.0, second.0);
        let mode = std::fs::metadata(home.path().join(FILE)).unwrap();
        assert_eq!(mode.permissions().mode() & 0o777, 0o600);

        std::fs::write(home.path().join(FILE), "short").unwrap();
        let (third, findings) = DigestKey::open(&folder).unwrap();
        assert_ne!(first.0, third.0);
        assert_eq!(findings.len(), 1);
        assert!(home.path().join("digest-key.set-aside-1").exists());
    }
}
