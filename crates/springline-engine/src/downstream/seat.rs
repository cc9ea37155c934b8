//! How many connections from the network there are at a time, and which one gives way to a new one.
//!
//! Owns: the cap, and who waits for whom. At the cap the connection gives way on which no answer is
//! under way: first one that never had a request and had time for one, then the one whose last answer
//! is longest ago, then one that came just now. So half-open connections push out each other before
//! anybody else, and nobody who is about to ask. If an answer is under way on all of
//! them, the new one is refused. It must not know what is said on a connection.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use springline_proto::error::{error_response, plain_error};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::route::INVALID_REQUEST;
use super::unless;
use crate::clock;

/// Refused connections that may still take their answer; further ones are closed without one.
const REFUSED_MAX: usize = 16;

/// How long one may take for it.
const REFUSAL_PATIENCE: Duration = Duration::from_millis(500);

/// How long one that never had a request is taken for one that is about to have it, in milliseconds.
const ARRIVAL_MS: u64 = 500;

tokio::task_local! {
    /// The seat of the connection that this task serves.
    static SEAT: Arc<Seat>;
}

/// All connections that are counted.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    /// By ordinal. Held for a look-up or a change.
    taken: Mutex<BTreeMap<u64, Arc<Seat>>>,
    next: AtomicU64,
    refused: AtomicUsize,
    /// Whether the operator was told that there was no room, since there last was some.
    is_told: AtomicBool,
}

/// What is known of one connection.
#[derive(Debug)]
struct Seat {
    ordinal: u64,
    /// Answers under way.
    busy: AtomicU32,
    /// Whether there ever was one.
    served: AtomicBool,
    /// When there last was one, or the connection came; in milliseconds of the process.
    since: AtomicU64,
    /// Whether it was told to give way; set before `gives_way` wakes.
    is_told: AtomicBool,
    gives_way: Notify,
}

/// The right to be a connection; given back when dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    seats: Arc<Seats>,
    seat: Arc<Seat>,
}

/// Says that an answer is under way on this task's connection, while it lives.
#[derive(Debug)]
pub(crate) struct Busy(Option<Arc<Seat>>);

/// An answer is under way from now on. Does nothing on a task that serves no counted connection.
pub(crate) fn busy() -> Busy {
    let seat = SEAT.try_with(Arc::clone).ok();
    if let Some(seat) = &seat {
        seat.busy.fetch_add(1, Ordering::AcqRel);
        seat.served.store(true, Ordering::Relaxed);
    }
    Busy(seat)
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(seat) = &self.0 {
            seat.since.store(now(), Ordering::Relaxed);
            seat.busy.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Seat {
    fn is_idle(&self) -> bool {
        self.busy.load(Ordering::Acquire) == 0
    }

    /// Who gives way before whom.
    fn rank(&self, now: u64) -> (u8, u64, u64) {
        let since = self.since.load(Ordering::Relaxed);
        let is_served = self.served.load(Ordering::Relaxed);
        let turn = match is_served {
            true => 1,
            false if now.saturating_sub(since) < ARRIVAL_MS => 2,
            false => 0,
        };
        (turn, since, self.ordinal)
    }
}

impl Seats {
    /// A seat for a new connection, if need be that of another one; none if all are in use.
    pub(crate) fn take(self: &Arc<Self>, max: usize) -> Option<Taken> {
        let mut taken = self.taken.lock();
        while taken.len() >= max {
            if !give_way(&mut taken) {
                drop(taken);
                self.tell_full(max);
                return None;
            }
        }
        self.is_told.store(false, Ordering::Relaxed);
        let ordinal = self.next.fetch_add(1, Ordering::Relaxed);
        let seat = Arc::new(Seat {
            ordinal,
            busy: AtomicU32::new(0),
            served: AtomicBool::new(false),
            since: AtomicU64::new(now()),
            is_told: AtomicBool::new(false),
            gives_way: Notify::new(),
        });
        taken.insert(ordinal, Arc::clone(&seat));
        drop(taken);
        Some(Taken {
            seats: Arc::clone(self),
            seat,
        })
    }

    /// Has one connection give way without another in its place: the process is out of descriptors.
    pub(crate) fn free_one(&self) -> bool {
        give_way(&mut self.taken.lock())
    }

    fn tell_full(&self, max: usize) {
        if !self.is_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                max,
                "connections are refused: calls or streams are open on all that there may be; \
                 see `connectionsMax`"
            );
        }
    }

    /// Tells a client that there is no room, as far as it listens. Cancel safe.
    pub(crate) async fn refuse(self: Arc<Self>, stream: TcpStream) {
        let place = Refused::new(&self);
        if place.is_some() {
            // Whoever does not take it in time has gone, or will see the connection closed.
            drop(timeout(REFUSAL_PATIENCE, say_full(stream)).await);
        }
    }
}

/// Has the idlest connection give way; false if none is idle.
fn give_way(taken: &mut BTreeMap<u64, Arc<Seat>>) -> bool {
    let idle = taken.values().filter(|seat| seat.is_idle());
    let now = now();
    let Some(seat) = idle.min_by_key(|seat| seat.rank(now)).map(Arc::clone) else {
        return false;
    };
    taken.remove(&seat.ordinal);
    seat.is_told.store(true, Ordering::Release);
    seat.gives_way.notify_one();
    true
}

impl Taken {
    /// Serves the connection until it ends or gives way. Boxed at once, and no `async fn`: the future
    /// of a connection is large, and would have its room a second time.
    pub(crate) fn hold(self, connection: impl Future<Output = ()>) -> impl Future<Output = ()> {
        let mut connection = Box::pin(SEAT.scope(Arc::clone(&self.seat), connection));
        async move {
            loop {
                let told = pin!(self.seat.gives_way.notified());
                let is_told = || self.seat.is_told.load(Ordering::Acquire);
                if unless(connection.as_mut(), told, is_told).await.is_some() {
                    return;
                }
                // A request may have come in this very moment: then there is one more than there may be.
                if self.seat.is_idle() {
                    return;
                }
                let mut taken = self.seats.taken.lock();
                // Nobody tells it again before it is back.
                self.seat.is_told.store(false, Ordering::Release);
                taken.insert(self.seat.ordinal, Arc::clone(&self.seat));
            }
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.seats.taken.lock().remove(&self.seat.ordinal);
    }
}

/// One of the refused connections that may take their answer.
struct Refused<'a>(&'a Seats);

impl<'a> Refused<'a> {
    fn new(seats: &'a Seats) -> Option<Self> {
        let refused = Self(seats);
        (seats.refused.fetch_add(1, Ordering::AcqRel) < REFUSED_MAX).then_some(refused)
    }
}

impl Drop for Refused<'_> {
    fn drop(&mut self) {
        self.0.refused.fetch_sub(1, Ordering::AcqRel);
    }
}

async fn say_full(mut stream: TcpStream) -> std::io::Result<()> {
    let text = "too many connections are open; close some, or raise `connectionsMax`";
    let body = error_response(None, &plain_error(INVALID_REQUEST, text));
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nretry-after: 1\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body).await?;
    stream.shutdown().await?;
    // What is not read when the connection is closed resets it, and the answer may be lost.
    let mut rest = [0; 4096];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

fn now() -> u64 {
    u64::try_from(clock::moment().0.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    /// A connection that does what it is told and says when it is over.
    fn connection(
        taken: Taken,
    ) -> (
        tokio::sync::mpsc::UnboundedSender<bool>,
        tokio::task::JoinHandle<()>,
    ) {
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel::<bool>();
        let held = tokio::spawn(taken.hold(async move {
            let mut answer = None;
            while let Some(is_busy) = told.recv().await {
                answer = is_busy.then(busy);
            }
            drop(answer);
        }));
        (tell, held)
    }

    async fn until(mut reached: impl FnMut() -> bool) {
        while !reached() {
            tokio::task::yield_now().await;
        }
    }

    /// Whoever has come so far had time to ask.
    async fn after_arrival() {
        tokio::time::advance(Duration::from_millis(ARRIVAL_MS)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_came_just_now_gives_way_after_those_that_were_served_and_are_idle() {
        let seats = Arc::new(Seats::default());
        let busy_of = |at: u64| seats.taken.lock()[&at].busy.load(Ordering::Acquire);
        let (served, served_held) = connection(seats.take(2).unwrap());
        served.send(true).unwrap();
        until(|| busy_of(0) == 1).await;
        served.send(false).unwrap();
        until(|| busy_of(0) == 0).await;
        after_arrival().await;
        let (_first, first_held) = connection(seats.take(2).unwrap());
        let (_second, second_held) = connection(seats.take(2).unwrap());
        served_held.await.unwrap();
        let (_third, _third_held) = connection(seats.take(2).unwrap());
        first_held.await.unwrap();
        assert!(!second_held.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn the_one_that_never_asked_gives_way_first_and_one_that_is_answered_never_does() {
        let seats = Arc::new(Seats::default());
        let busy_of = |at: u64| seats.taken.lock()[&at].busy.load(Ordering::Acquire);
        let (served, served_held) = connection(seats.take(3).unwrap());
        served.send(true).unwrap();
        until(|| busy_of(0) == 1).await;
        served.send(false).unwrap();
        until(|| busy_of(0) == 0).await;
        let (answered, answered_held) = connection(seats.take(3).unwrap());
        answered.send(true).unwrap();
        until(|| busy_of(1) == 1).await;
        let (_half, half_held) = connection(seats.take(3).unwrap());
        after_arrival().await;
        // Half-open ones push out each other.
        let (_other, other_held) = connection(seats.take(3).unwrap());
        half_held.await.unwrap();
        after_arrival().await;
        let third = seats.take(3).unwrap();
        other_held.await.unwrap();
        assert!(!served_held.is_finished());
        // Then one that was served and is idle.
        let (fourth, _fourth_held) = connection(third);
        fourth.send(true).unwrap();
        until(|| busy_of(4) == 1).await;
        let fifth = seats.take(3).unwrap();
        served_held.await.unwrap();
        let (fifth, _fifth_held) = connection(fifth);
        fifth.send(true).unwrap();
        until(|| busy_of(5) == 1).await;
        assert!(seats.take(3).is_none());
        assert!(!seats.free_one());
        assert!(!answered_held.is_finished());
        answered.send(false).unwrap();
        until(|| busy_of(1) == 0).await;
        assert!(seats.free_one());
        answered_held.await.unwrap();
        assert!(seats.take(3).is_some());
    }

    #[tokio::test]
    async fn a_request_that_comes_in_the_moment_of_giving_way_is_answered() {
        let seats = Arc::new(Seats::default());
        let taken = seats.take(1).unwrap();
        let (go, gone) = oneshot::channel::<()>();
        let (say, said) = oneshot::channel();
        let held = tokio::spawn(taken.hold(async move {
            let answer = busy();
            say.send(()).unwrap();
            gone.await.unwrap();
            drop(answer);
        }));
        // It has not begun yet: it is idle, and is to give way.
        let _other = seats.take(1).unwrap();
        said.await.unwrap();
        tokio::task::yield_now().await;
        assert!(!held.is_finished());
        go.send(()).unwrap();
        held.await.unwrap();
        assert_eq!(seats.taken.lock().len(), 1);
    }

    #[tokio::test]
    async fn one_that_was_told_while_it_answered_can_be_told_again() {
        let seats = Arc::new(Seats::default());
        let busy_of = |at: u64| seats.taken.lock()[&at].busy.load(Ordering::Acquire);
        let taken = seats.take(1).unwrap();
        let seat = Arc::clone(&taken.seat);
        let (tell, held) = connection(taken);
        // It was told as it began; the request that it got meanwhile brings it back.
        assert!(seats.free_one());
        tell.send(true).unwrap();
        until(|| seats.taken.lock().contains_key(&0)).await;
        assert_eq!(busy_of(0), 1);
        assert!(!seat.is_told.load(Ordering::Acquire));
        tell.send(false).unwrap();
        until(|| busy_of(0) == 0).await;
        assert!(!held.is_finished());
        assert!(seats.free_one());
        held.await.unwrap();
    }
}
