//! Work that ends before its time when something else says so.

use std::cell::Cell;
use std::future::{Future as _, pending, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tokio::sync::{oneshot, watch};
use tokio::task::coop;

use super::super::{raised, unless};

#[test]
fn the_end_is_asked_at_the_first_turn_and_then_only_when_it_is_due() {
    let (asked, is_due) = (Cell::new(0), Cell::new(false));
    let work = pin!(pending::<()>());
    let end = pin!(poll_fn(|_| {
        asked.set(asked.get() + 1);
        if is_due.get() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }));
    let mut whole = pin!(unless(work, end, || is_due.get()));
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..3 {
        assert!(whole.as_mut().poll(&mut cx).is_pending());
        assert_eq!(asked.get(), 1);
    }
    is_due.set(true);
    assert_eq!(whole.as_mut().poll(&mut cx), Poll::Ready(None));
}

#[tokio::test]
async fn work_that_is_done_goes_before_its_end() {
    let work = pin!(std::future::ready(7));
    let end = pin!(std::future::ready(()));
    assert_eq!(unless(work, end, || true).await, Some(7));
}

#[tokio::test]
async fn the_end_wakes_work_whose_first_turn_had_used_up_its_budget() {
    let (raise, mut flag) = watch::channel(false);
    let looked_at = flag.clone();
    let (say, said) = oneshot::channel();
    let ends = tokio::spawn(async move {
        let mut say = Some(say);
        let work = pin!(poll_fn(move |cx| {
            if let Some(say) = say.take() {
                // Nothing that keeps to the budget says more in this turn than that it waits.
                while coop::has_budget_remaining() {
                    assert!(pin!(coop::consume_budget()).poll(cx).is_ready());
                }
                say.send(()).unwrap();
            }
            Poll::<()>::Pending
        }));
        let end = pin!(raised(&mut flag));
        unless(work, end, || looked_at.has_changed().unwrap_or(true)).await
    });
    said.await.unwrap();
    // Its own wake-up has come and gone by now.
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
    raise.send_replace(true);
    assert_eq!(ends.await.unwrap(), None);
}
