//! What may still be done of a turn that the journal did not take.
//!
//! Owns that a client of the socket never has a call run twice: its frames are known to a later process
//! only by the journal, so a call in one that is not noted would be sent again after a crash, and must
//! not leave now (I4). Must not know why the journal fails, nor for how long.

use std::collections::{BTreeSet, VecDeque};

use super::port::{Input, Mark, Output};
use crate::call::CallKey;
use crate::error::{Fault, FaultKind};
use crate::method::{Method, ReplayClass};
use crate::upstream::{self, SessionEvent};

/// Takes out of a turn whose marks the journal did not take what may not happen, and gives what the session
/// is to be told when the rest is done: of each call that may not leave, that it failed. `cause` says why
/// the journal did not take them.
///
/// Requests that only read go on, for they may run twice; so do notifications and answers, which a
/// client that is cut off twice may then send twice. On HTTP, where no client sends again what was taken,
/// everything goes on.
pub fn unnoted(outputs: &mut VecDeque<Output>, cause: &str) -> Vec<Input> {
    let mut framed = BTreeSet::new();
    let mut told = Vec::new();
    for output in std::mem::take(outputs) {
        match output {
            // Not said to the client either: it keeps what it sent.
            Output::Taken(_) => {}
            Output::Mark {
                number,
                mark: Mark::Accepted { frame },
            } => {
                if frame != 0 {
                    framed.insert(number);
                }
                outputs.push_back(output);
            }
            Output::ToUpstream { server, input } => {
                let withheld = call_of(&input).filter(|key| framed.contains(&key.number));
                let Some(key) = withheld else {
                    outputs.push_back(Output::ToUpstream { server, input });
                    continue;
                };
                let fault = Fault::new(FaultKind::StateUnwritable).of(&server);
                let event = SessionEvent::Failed {
                    key,
                    fault: fault.because(cause),
                    server_error: None,
                };
                told.push(Input::Upstream { server, event });
            }
            Output::Persist(_)
            | Output::Mark { .. }
            | Output::ToExchange { .. }
            | Output::ToStream { .. }
            | Output::Remember { .. }
            | Output::Held(_)
            | Output::Emit(_)
            | Output::Closed => outputs.push_back(output),
        }
    }
    told
}

/// The call in an input, if it must not run twice.
fn call_of(input: &upstream::Input) -> Option<CallKey> {
    let upstream::Input::Call { key, message, .. } = input else {
        return None;
    };
    let method = message.method();
    let method = method.map_or(Method::Other, |name| Method::parse(&name));
    (method.replay_class() != ReplayClass::Safe).then_some(*key)
}
