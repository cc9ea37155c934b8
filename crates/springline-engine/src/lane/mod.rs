//! Threads for connections, each with a reactor of its own.
//!
//! A call that comes in on a lane is sent on and answered there: its connection to the server was
//! opened there as well, so nothing of it waits for another thread. Which connection is on which lane
//! makes no difference to anything else. It must not know what runs on a lane.

mod vigil;

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};
use tracing::Instrument as _;

use self::vigil::Vigil;

/// More than this many are no use to a gateway: what they share would be what they wait for.
pub const LANES_MAX: usize = 16;

thread_local! {
    /// The ordinal of the lane that this thread is; 0 on all other threads.
    static HERE: Cell<usize> = const { Cell::new(0) };

    static VIGIL: Vigil = const { Vigil::new() };
}

/// The lane that this thread is, from 1 to [`LANES_MAX`]; 0 on a thread that is none.
pub(crate) fn here() -> usize {
    HERE.get()
}

/// A message came to this lane or goes out from it: it stays awake for a moment. Nothing on a thread
/// that is none.
pub(crate) fn stay_awake() {
    if here() > 0 {
        VIGIL.with(Vigil::note);
    }
}

/// The lanes of a process. They live as long as it does.
#[derive(Debug, Default)]
pub struct Lanes {
    lanes: Vec<Lane>,
    next: AtomicUsize,
}

/// One of them.
#[derive(Clone, Debug)]
pub struct Lane(Handle);

impl Lanes {
    /// No lanes: everything runs where it is started.
    pub fn none() -> Self {
        Self::default()
    }

    /// Starts so many, at most [`LANES_MAX`].
    ///
    /// # Errors
    /// The system gives no thread or no reactor.
    pub fn start(count: usize) -> io::Result<Self> {
        let lanes = (1..=count.min(LANES_MAX)).map(Lane::start);
        Ok(Self {
            lanes: lanes.collect::<io::Result<_>>()?,
            next: AtomicUsize::new(0),
        })
    }

    /// The lane for the next connection: each in turn.
    pub(crate) fn next(&self) -> Option<&Lane> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        self.lanes.get(turn.checked_rem(self.lanes.len())?)
    }
}

impl Lane {
    fn start(ordinal: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .on_thread_park(|| VIGIL.with(Vigil::begin))
            .build()?;
        let lane = Self(runtime.handle().clone());
        std::thread::Builder::new()
            .name(format!("lane-{ordinal}"))
            .spawn(move || {
                HERE.set(ordinal);
                VIGIL.with(|vigil| runtime.block_on(vigil.keep()));
            })?;
        Ok(lane)
    }

    /// Runs `future` on this lane, under a span that carries `name`.
    pub(crate) fn run(
        &self,
        name: &'static str,
        future: impl Future<Output = ()> + Send + 'static,
    ) {
        let span = tracing::info_span!(parent: None, "task", name);
        drop(self.0.spawn(future.instrument(span)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::{Lanes, here};

    #[test]
    fn connections_go_to_each_lane_in_turn() {
        let lanes = Lanes::start(2).unwrap();
        let (tell, heard) = mpsc::channel();
        for _ in 0..4 {
            let tell = tell.clone();
            lanes.next().unwrap().run("test", async move {
                tell.send(here()).unwrap();
            });
        }
        let mut seen: Vec<usize> = heard.iter().take(4).collect();
        seen.sort_unstable();
        assert_eq!(seen, [1, 1, 2, 2]);
        assert_eq!(here(), 0, "this thread is none");
        assert!(Lanes::none().next().is_none());
    }
}
