//! Replays `fuzz/corpus` through the fuzzing entry points, on stable and with every build.

use std::{fs, io, path::Path};

use springline_proto::fuzz::{fuzz_line, fuzz_message, fuzz_sse};

/// Runs every file of a target, then every file cut short and with each byte of it damaged.
fn replay(target: &str, run: fn(&[u8])) -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let mut files = 0;
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        let bytes = fs::read(&path)?;
        files += 1;
        run(&bytes);
        for at in 0..bytes.len().min(600) {
            run(&bytes[..at]);
            for damage in [1, 0x20, 0x80] {
                let mut damaged = bytes.clone();
                damaged[at] ^= damage;
                run(&damaged);
            }
        }
    }
    assert!(files >= 3, "{} has {files} files", folder.display());
    Ok(())
}

#[test]
fn messages_of_the_corpus_hold_their_properties() -> io::Result<()> {
    replay("message", fuzz_message)
}

#[test]
fn lines_of_the_corpus_hold_their_properties() -> io::Result<()> {
    replay("line", fuzz_line)
}

#[test]
fn events_of_the_corpus_hold_their_properties() -> io::Result<()> {
    replay("sse", fuzz_sse)
}
