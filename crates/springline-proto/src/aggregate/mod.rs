//! Many servers behind one endpoint: what the messages of each become there, and back.
//!
//! Owns the rewriting of names and URIs in messages (DESIGN.md 3.3), the merging of lists and the
//! result of `initialize`. All of it is splicing: what is not a name or a URI passes as it came
//! (I13), and text and structured content are never touched. Must not know sessions: these are
//! functions of their arguments.

mod initialize;
mod list;
mod rewrite;

pub(crate) use initialize::{has_capability, initialize_result};
pub(crate) use list::{items, list_result, original_name};
pub(crate) use rewrite::{Routed, answer, question, route_name, route_ref, route_uri, updated};
