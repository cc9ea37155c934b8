//! Fuzzes newline frames: `cargo +nightly fuzz run line`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| springline_proto::fuzz::fuzz_line(bytes));
