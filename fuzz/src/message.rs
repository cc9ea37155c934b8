//! Fuzzes JSON-RPC messages: `cargo +nightly fuzz run message`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| springline_proto::fuzz::fuzz_message(bytes));
