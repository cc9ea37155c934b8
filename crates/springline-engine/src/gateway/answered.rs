//! Calls that were answered on a stream by this process, and whose clients may come back for the answer.
//!
//! Owns when the journal may forget each of them: with its session, an hour after its answer, or when
//! there are too many. Must not know bodies.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use springline_store::{CallId, SessionDigest};

/// As many as half of the calls that the journal holds (I8): the rest is for calls under way.
const CALLS_MAX: usize = springline_store::OPEN_CALLS_MAX / 2;

/// Answered calls, by session and by age.
#[derive(Default)]
pub(super) struct AnsweredCalls {
    numbers: HashMap<SessionDigest, HashSet<u64>>,
    /// Oldest first; may hold calls of sessions that are over.
    by_age: VecDeque<(Duration, CallId)>,
}

impl AnsweredCalls {
    /// Takes a call in that was answered `at`; gives back the oldest if there are too many.
    pub(super) fn note(&mut self, call: CallId, at: Duration) -> Option<CallId> {
        self.numbers
            .entry(call.session)
            .or_default()
            .insert(call.number);
        self.by_age.push_back((at, call));
        if self.by_age.len() <= CALLS_MAX {
            return None;
        }
        let (_, oldest) = self.by_age.pop_front()?;
        self.remove(oldest).then_some(oldest)
    }

    /// The calls of a session that is over.
    pub(super) fn take_session(&mut self, session: SessionDigest) -> Vec<CallId> {
        let numbers = self.numbers.remove(&session).unwrap_or_default();
        let calls = numbers.into_iter().map(|number| CallId { session, number });
        calls.collect()
    }

    /// The calls that were answered before a moment.
    pub(super) fn take_before(&mut self, moment: Duration) -> Vec<CallId> {
        let mut aged = Vec::new();
        while let Some((at, call)) = self.by_age.front().copied() {
            if at >= moment {
                break;
            }
            self.by_age.pop_front();
            if self.remove(call) {
                aged.push(call);
            }
        }
        aged
    }

    fn remove(&mut self, call: CallId) -> bool {
        let Some(numbers) = self.numbers.get_mut(&call.session) else {
            return false;
        };
        let was_held = numbers.remove(&call.number);
        if numbers.is_empty() {
            self.numbers.remove(&call.session);
        }
        was_held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(session: u8, number: u64) -> CallId {
        CallId {
            session: SessionDigest([session; 16]),
            number,
        }
    }

    #[test]
    fn a_call_leaves_once_with_its_session_or_by_age() {
        let mut calls = AnsweredCalls::default();
        let at = Duration::from_secs;
        for (held, second) in [(call(1, 1), 1), (call(2, 1), 2), (call(1, 2), 3)] {
            assert_eq!(calls.note(held, at(second)), None);
        }
        assert_eq!(calls.take_before(at(2)), [call(1, 1)]);
        assert_eq!(calls.take_session(call(1, 0).session), [call(1, 2)]);
        assert_eq!(calls.take_before(at(9)), [call(2, 1)]);
        assert!(calls.numbers.is_empty() && calls.by_age.is_empty());
    }

    #[test]
    fn the_oldest_leaves_when_there_are_too_many() {
        let mut calls = AnsweredCalls::default();
        for number in 0..CALLS_MAX as u64 {
            assert_eq!(calls.note(call(1, number), Duration::ZERO), None);
        }
        let more = call(2, 1);
        assert_eq!(calls.note(more, Duration::ZERO), Some(call(1, 0)));
        assert_eq!(calls.take_session(more.session), [more]);
    }
}
