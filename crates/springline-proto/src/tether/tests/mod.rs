//! The tether by itself, line by line, and together with the session machine.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the test looks at the outputs that it is about"
)]

mod joint;
mod script;
