//! Fuzzes event streams: `cargo +nightly fuzz run sse`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| springline_proto::fuzz::fuzz_sse(bytes));
