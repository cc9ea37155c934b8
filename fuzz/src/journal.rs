//! Fuzzes segments of the journal of calls: `cargo +nightly fuzz run journal`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| springline_store::fuzz_segment(bytes));
