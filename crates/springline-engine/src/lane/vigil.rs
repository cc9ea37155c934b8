//! How long a lane stays awake after a message.
//!
//! Owns: the moment in which a lane with little to do asks its reactor again and again before it sleeps.
//! To wake a core that sleeps takes longer than all that a call needs, and a call waits for that twice: for
//! its request to be seen, and for its answer. Others that want the processor go before. It must not know
//! what a message is.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;

use crate::clock;

/// How long a lane stays awake after a message.
const AWAKE: Duration = Duration::from_micros(50);

/// With more messages than this since it last had nothing to do a lane does not stay awake: there is more
/// to do in a moment anyhow, and others need the processor for it.
const FEW: u32 = 2;

/// Whoever keeps the processor for so long, once it was given away, has work of its own: it is neither
/// a server that answers nor a client that reads.
const GREEDY: Duration = Duration::from_millis(2);

/// For how long there is no vigil after that: at first, and at most.
const REST_MIN: Duration = Duration::from_millis(10);
const REST_MAX: Duration = Duration::from_secs(1);

/// The vigil of one lane; used on its thread alone.
#[derive(Debug)]
pub(super) struct Vigil {
    /// Messages since the lane was last about to sleep.
    messages: Cell<u32>,
    /// The task that keeps it, while there is none.
    keeper: RefCell<Option<Waker>>,
}

impl Vigil {
    pub(super) const fn new() -> Self {
        Self {
            messages: Cell::new(0),
            keeper: RefCell::new(None),
        }
    }

    /// A message came or went.
    pub(super) fn note(&self) {
        self.messages.set(self.messages.get().saturating_add(1));
    }

    /// The lane has nothing to do and is about to sleep. What the keeper has to do keeps it from that.
    pub(super) fn begin(&self) {
        if !self.is_due() {
            self.messages.set(0);
        } else if let Some(keeper) = self.keeper.borrow_mut().take() {
            keeper.wake();
        }
    }

    fn is_due(&self) -> bool {
        (1..=FEW).contains(&self.messages.get())
    }

    fn poll_due(&self, cx: &Context<'_>) -> Poll<()> {
        if self.is_due() {
            return Poll::Ready(());
        }
        *self.keeper.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Keeps it for as long as it is polled.
    pub(super) async fn keep(&self) {
        let mut watch = Watch::default();
        loop {
            poll_fn(|cx| self.poll_due(cx)).await;
            loop {
                // The runtime runs what it has to, and asks its reactor, before it wakes this task again.
                tokio::task::yield_now().await;
                let messages = self.messages.take();
                if !watch.goes_on(messages, clock::now(), std::thread::yield_now) {
                    break;
                }
            }
        }
    }
}

/// What the keeper knows.
#[derive(Debug, Default)]
struct Watch {
    until: Option<Instant>,
    /// No vigil before that.
    rests_until: Option<Instant>,
    rest: Duration,
}

impl Watch {
    /// After a round with so many messages: whether the lane stays awake for another one. `give` gives the
    /// processor to whoever wants it.
    fn goes_on(&mut self, messages: u32, now: Instant, give: impl FnOnce()) -> bool {
        self.until = match messages {
            0 => self.until,
            1..=FEW => Some(now + AWAKE),
            _ => None,
        };
        let is_past = |moment: Option<Instant>| moment.is_none_or(|moment| moment <= now);
        if is_past(self.until) || !is_past(self.rests_until) {
            return false;
        }
        give();
        let back = clock::now();
        if back.saturating_duration_since(now) < GREEDY {
            self.rest = Duration::ZERO;
        } else {
            self.rest = (self.rest * 2).clamp(REST_MIN, REST_MAX);
            self.rests_until = Some(back + self.rest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_keeper_is_woken_before_a_sleep_after_few_messages_alone() {
        let vigil = Vigil::new();
        let told = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&told));
        let cx = Context::from_waker(&waker);
        let woken_after = |messages: u32| {
            assert!(vigil.poll_due(&cx).is_pending());
            (0..messages).for_each(|_| vigil.note());
            let before = told.0.load(Ordering::Relaxed);
            vigil.begin();
            told.0.load(Ordering::Relaxed) - before
        };
        assert_eq!(woken_after(0), 0);
        assert_eq!(woken_after(FEW + 1), 0);
        assert_eq!(woken_after(1), 1);
        assert!(vigil.poll_due(&cx).is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lane_stays_awake_for_a_moment_after_few_messages_and_not_after_many() {
        let mut watch = Watch::default();
        let start = clock::now();
        assert!(!watch.goes_on(0, start, || panic!("there was no message")));
        assert!(watch.goes_on(1, start, || {}));
        let later = start + AWAKE / 2;
        assert!(watch.goes_on(0, later, || {}));
        assert!(watch.goes_on(2, later, || {}), "the moment begins anew");
        assert!(watch.goes_on(0, start + AWAKE, || {}));
        assert!(!watch.goes_on(0, later + AWAKE, || panic!("it is over")));
        assert!(!watch.goes_on(3, later + AWAKE, || panic!("there is more to do")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lane_sleeps_where_others_want_the_processor_and_longer_each_time() {
        let mut watch = Watch::default();
        let mut at = clock::now();
        // Time stands still here: it was asked for so much earlier than it came back.
        let mut rests = Vec::new();
        for _ in 0..9 {
            assert!(watch.goes_on(1, at - GREEDY, || {}));
            rests.push(watch.rest);
            assert!(!watch.goes_on(1, at + watch.rest - AWAKE, || panic!("too early")));
            at += watch.rest + GREEDY;
            tokio::time::advance(at - clock::now()).await;
        }
        assert_eq!(rests[..2], [REST_MIN, REST_MIN * 2]);
        assert_eq!(rests[8], REST_MAX);
        assert!(watch.goes_on(1, at, || {}), "nobody keeps it now");
        assert!(watch.goes_on(1, at + AWAKE, || {}));
        assert_eq!(watch.rest, Duration::ZERO);
    }
}
