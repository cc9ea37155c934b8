//! How large the values are that each call moves from one machine to the other.
//!
//! A variant that is rare and large makes all of them large, and each is written and read several times
//! on a call's way. One that grows beyond these bounds is boxed, or the bound is raised with a reason.

use std::mem::size_of;

use springline_proto::message::Message;
use springline_proto::session::{Input as SessionInput, Output as SessionOutput, Part};
use springline_proto::upstream::{
    End, Input as UpstreamInput, Output as UpstreamOutput, SessionEvent,
};

#[test]
fn what_a_call_moves_is_no_larger_than_it_was() {
    for (name, size, max) in [
        ("Message", size_of::<Message>(), 128),
        ("session::Input", size_of::<SessionInput>(), 192),
        ("session::Output", size_of::<SessionOutput>(), 96),
        ("session::Part", size_of::<Part>(), 80),
        ("upstream::Input", size_of::<UpstreamInput>(), 200),
        ("upstream::Output", size_of::<UpstreamOutput>(), 200),
        ("upstream::SessionEvent", size_of::<SessionEvent>(), 176),
        ("upstream::End", size_of::<End>(), 184),
    ] {
        assert!(
            size <= max,
            "{name} has {size} bytes, over {max}: box its rare variants"
        );
    }
}
