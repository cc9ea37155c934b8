//! Fuzzes heads of requests: `cargo +nightly fuzz run head`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    springline_engine::downstream::fuzz_head(bytes);
});
