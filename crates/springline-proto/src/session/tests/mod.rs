//! Scripts: what goes in and what must come out, line by line.

#![expect(
    clippy::needless_raw_string_hashes,
    clippy::wildcard_enum_match_arm,
    reason = "scripts all look the same, and show what they do not know as it is"
)]

mod all;
mod ask;
mod notice;
mod open;
mod passing;
mod random;
mod request;
mod rest;
mod script;
mod socket;
mod stream;
