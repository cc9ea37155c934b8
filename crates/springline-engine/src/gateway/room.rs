//! Room for children: how many may live at once in the whole gateway (`childrenMax`).
//!
//! Owns the count, from the reservation of a place until the child is reaped, and whose child is
//! asked to give way when all places are taken. Whether it may is its machine's to say, and how long a
//! start waits is the waiting machine's.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use springline_proto::call::Moment;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::shared::Shared;
use super::upstream::UpstreamCell;
use crate::clock;

/// Between two looks for a child that can give way: only one start at a time looks, and a look passes
/// by all upstreams.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// The places for children.
pub(crate) struct Rooms {
    free: Arc<Semaphore>,
    /// Held for a look or a change.
    bound: Mutex<Bound>,
    /// The turn to look for a child that can give way. Who waits for it is bounded by the upstreams: each
    /// has one start under way.
    search: Semaphore,
}

struct Bound {
    max: usize,
    /// Children that live beyond `max`, since it was lowered.
    excess: usize,
    /// Those of them for which no child was asked to end yet.
    owed: usize,
}

/// A place for one child. Dropping it gives the place to whoever waits longest.
pub(crate) struct Room {
    permit: Option<OwnedSemaphorePermit>,
    rooms: Arc<Rooms>,
}

impl Rooms {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        let max = within(max);
        Arc::new(Self {
            free: Arc::new(Semaphore::new(max)),
            bound: Mutex::new(Bound {
                max,
                excess: 0,
                owed: 0,
            }),
            search: Semaphore::new(1),
        })
    }

    /// How many children may live.
    pub(crate) fn max(&self) -> usize {
        self.bound.lock().max
    }

    /// Another number from now on. Those that live beyond it stay until they end, and count.
    pub(crate) fn set_max(&self, max: usize) {
        let max = within(max);
        let mut bound = self.bound.lock();
        let (more, less) = (max.saturating_sub(bound.max), bound.max.saturating_sub(max));
        bound.max = max;
        let paid = more.min(bound.excess);
        bound.pay(paid);
        self.free.add_permits(more - paid);
        let beyond = less - self.free.forget_permits(less);
        bound.excess += beyond;
        bound.owed += beyond;
    }

    /// Has children end that live beyond the bound, as many as can give way.
    pub(crate) fn trim(&self, make_room: impl Fn() -> bool) {
        while self.bound.lock().owed > 0 && self.end_one(&make_room).is_some() {}
    }

    /// Has one child end, if one can give way. Says whether its place will be free: it is not if the
    /// child lived beyond the bound.
    fn end_one(&self, make_room: &impl Fn() -> bool) -> Option<bool> {
        let is_beyond = {
            let mut bound = self.bound.lock();
            let is_beyond = bound.owed > 0;
            bound.owed = bound.owed.saturating_sub(1);
            is_beyond
        };
        if make_room() {
            return Some(!is_beyond);
        }
        if is_beyond {
            let mut bound = self.bound.lock();
            bound.owed = (bound.owed + 1).min(bound.excess);
        }
        None
    }

    /// A place, if one is free.
    pub(crate) fn try_take(self: &Arc<Self>) -> Option<Room> {
        let permit = Arc::clone(&self.free).try_acquire_owned().ok()?;
        Some(self.room(permit))
    }

    /// A place, when there is one. While there is none, `make_room` is asked to let one end, until it
    /// says that it did. Cancel safe: a place that came too late is given back.
    pub(crate) async fn take(self: &Arc<Self>, make_room: impl Fn() -> bool) -> Option<Room> {
        let wait = self.wait();
        tokio::pin!(wait);
        {
            // Neither semaphore is ever closed.
            let _turn = self.search.acquire().await.ok()?;
            loop {
                // In the line before a child is told to end, and for as long as this waits: its place
                // is for this start, and not for the next one that looks.
                tokio::select! {
                    biased;
                    room = &mut wait => return room,
                    () = std::future::ready(()) => {}
                }
                match self.end_one(&make_room) {
                    Some(true) => break,
                    Some(false) => continue,
                    None => {}
                }
                tokio::select! {
                    room = &mut wait => return room,
                    () = tokio::time::sleep(LOOK_PAUSE) => {}
                }
            }
        }
        wait.await
    }

    async fn wait(self: &Arc<Self>) -> Option<Room> {
        let permit = Arc::clone(&self.free).acquire_owned().await.ok()?;
        Some(self.room(permit))
    }

    fn room(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Room {
        Room {
            permit: Some(permit),
            rooms: Arc::clone(self),
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut bound = self.rooms.bound.lock();
        if bound.excess > 0 {
            bound.pay(1);
            if let Some(permit) = self.permit.take() {
                permit.forget();
            }
        }
    }
}

impl Bound {
    /// So many fewer live beyond the bound.
    fn pay(&mut self, count: usize) {
        self.excess = self.excess.saturating_sub(count);
        self.owed = self.owed.min(self.excess);
    }
}

/// What a semaphore can count.
fn within(max: usize) -> usize {
    max.clamp(1, Semaphore::MAX_PERMITS)
}

impl Shared {
    /// Takes the child out of service that was used least recently among those that may give way: of
    /// sessions without an attached client, with nothing under way. It ends in good order behind this.
    /// Says whether there was one.
    pub(super) fn evict(&self) -> bool {
        while let Some((used, session, cell)) = self.least_used() {
            // Otherwise something came for it between look and deed.
            let Some(generation) = cell.give_way() else {
                continue;
            };
            let idle = clock::moment().since(used).as_millis();
            let mut facts = serde_json::Map::new();
            let server = cell.carrier().server().as_ref();
            facts.insert("server".to_owned(), server.into());
            facts.insert("session".to_owned(), session.into());
            facts.insert("generation".to_owned(), generation.0.into());
            let idle = u64::try_from(idle).unwrap_or(u64::MAX);
            facts.insert("idleMs".to_owned(), idle.into());
            facts.insert("childrenMax".to_owned(), self.rooms.max().into());
            self.events.record("server.evicted", facts);
            return true;
        }
        false
    }

    fn least_used(&self) -> Option<(Moment, String, Arc<UpstreamCell>)> {
        let mut found: Option<(Moment, String, Arc<UpstreamCell>)> = None;
        let mut consider = |session: &str, cell: Arc<UpstreamCell>| {
            if let Some(used) = cell.gives_way()
                && found.as_ref().is_none_or(|(first, ..)| used < *first)
            {
                found = Some((used, session.to_owned(), cell));
            }
        };
        for session in self.sessions() {
            for cell in session.upstreams() {
                consider(&session.digest(), cell);
            }
        }
        for global in self.globals() {
            consider("global", global.current());
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_place_goes_to_whoever_waits_longest() {
        let rooms = Rooms::new(1);
        let first = rooms.try_take().unwrap();
        let (mut second, mut third) = (Box::pin(rooms.wait()), Box::pin(rooms.wait()));
        for waiting in [&mut second, &mut third] {
            assert!(waits(waiting.as_mut()).await);
        }
        drop(first);
        assert!(rooms.try_take().is_none(), "nobody comes in between");
        let held = second.await;
        assert!(waits(third.as_mut()).await);
        drop(held);
        assert!(third.await.is_some());
    }

    #[tokio::test]
    async fn a_lower_bound_counts_who_lives_and_a_higher_one_lets_in() {
        let rooms = Rooms::new(3);
        let mut held: Vec<Room> = (0..3).filter_map(|_| rooms.try_take()).collect();
        rooms.set_max(1);
        held.pop();
        held.pop();
        assert!(rooms.try_take().is_none());
        rooms.set_max(2);
        assert_eq!(rooms.max(), 2);
        held.extend(rooms.try_take());
        assert_eq!(held.len(), 2);
        assert!(rooms.try_take().is_none());
        held.clear();
        rooms.set_max(4);
        held.extend((0..9).map_while(|_| rooms.try_take()));
        assert_eq!(held.len(), 4);
    }

    #[tokio::test]
    async fn who_waits_makes_room_once_and_one_at_a_time() {
        let rooms = Rooms::new(2);
        let held = Mutex::new(vec![rooms.try_take(), rooms.try_take()]);
        let ending = Mutex::new(Vec::new());
        let make_room = || {
            let room = held.lock().pop();
            let is_one = room.is_some();
            ending.lock().extend(room);
            is_one
        };
        let (mut one, mut two) = (
            Box::pin(rooms.take(make_room)),
            Box::pin(rooms.take(make_room)),
        );
        assert!(waits(one.as_mut()).await);
        assert_eq!((held.lock().len(), ending.lock().len()), (1, 1));
        assert!(waits(two.as_mut()).await);
        assert_eq!((held.lock().len(), ending.lock().len()), (0, 2));
        // The first place is for the first, whoever is looked at first.
        ending.lock().pop();
        assert!(waits(two.as_mut()).await);
        let first = one.await;
        assert!(first.is_some());
        ending.lock().pop();
        assert!(two.await.is_some());
        drop(first);
    }

    #[tokio::test]
    async fn beyond_a_lower_bound_as_many_end_as_are_too_many() {
        let rooms = Rooms::new(4);
        let held = Mutex::new((0..4).map(|_| rooms.try_take()).collect::<Vec<_>>());
        let ending = Mutex::new(Vec::new());
        rooms.set_max(1);
        // They take their time to end.
        let evict = || {
            let room = held.lock().pop();
            let is_one = room.is_some();
            ending.lock().extend(room);
            is_one
        };
        held.lock().truncate(3);
        rooms.trim(|| {
            let is_left = held.lock().len() > 2;
            is_left && evict()
        });
        assert_eq!((held.lock().len(), ending.lock().len()), (2, 1));
        let take = rooms.take(evict);
        tokio::pin!(take);
        assert!(waits(take.as_mut()).await);
        assert_eq!((held.lock().len(), ending.lock().len()), (0, 3));
        ending.lock().clear();
        let room = take.await;
        assert!(room.is_some());
        assert!(rooms.try_take().is_none());
        assert_eq!(rooms.bound.lock().excess, 0);
    }

    /// Whether a future waits, once looked at.
    async fn waits(future: std::pin::Pin<&mut impl Future>) -> bool {
        let mut future = Some(future);
        std::future::poll_fn(|cx| {
            let is_pending = future
                .take()
                .is_none_or(|future| future.poll(cx).is_pending());
            std::task::Poll::Ready(is_pending)
        })
        .await
    }
}
