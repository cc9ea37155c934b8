//! The tether by itself, line by line, and together with the session machine.

mod joint;
mod script;
