//! Connections that wait for their next request.
//!
//! Owns: which idle connection may carry which request (the keep-alive rule of DESIGN.md section
//! 5), and how long one is kept. It must not know what a request means, only whether it may be
//! repeated. Nothing here sends anything twice (I4).

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::dial::Place;
use super::field::Fields;
use super::framing::Connection;
use crate::lane::{self, LANES_MAX};
use crate::{clock, spawn};

/// A request that may not be repeated goes on a connection that was idle for less than this, if the
/// server gives no hint: Node.js closes after 5 s without one.
const UNHINTED_MAX: Duration = Duration::from_secs(3);

/// Idle connections are closed after this in any case.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// The server's own timeout, less the way there.
const HINT_MARGIN: Duration = Duration::from_secs(1);

/// Idle connections that a lane keeps for one place, whose oldest is closed beyond it, and in all,
/// where no further one is kept (I8).
const PLACE_MAX: usize = 1024;
const TOTAL_MAX: usize = 4096;

/// For so long after an answer its read is believed, which found nothing behind it: asking again would
/// cost each call of a busy gateway a system call. An end that is on its way takes about as long to
/// come, so that the question could not be answered better.
const JUST_READ: Duration = Duration::from_micros(200);

/// How often idle connections are looked through while there are any.
const SWEEP: Duration = Duration::from_secs(5);

struct Idle {
    connection: Connection,
    since: Instant,
    /// `Keep-Alive: timeout` of its last answer.
    hint: Option<Duration>,
}

impl Idle {
    /// How long it may have been idle to carry a request.
    fn limit(&self, repeatable: bool) -> Duration {
        match self.hint {
            Some(hint) => hint.saturating_sub(HINT_MARGIN).min(IDLE_MAX),
            None if repeatable => IDLE_MAX,
            None => UNHINTED_MAX,
        }
    }

    fn is_fit(&self, now: Instant, repeatable: bool) -> bool {
        let idle = now.saturating_duration_since(self.since);
        idle < self.limit(repeatable) && self.connection.is_quiet(idle < JUST_READ)
    }
}

#[derive(Default)]
struct Stock {
    places: HashMap<Arc<Place>, Vec<Idle>>,
    total: usize,
    /// Whether the task that closes old ones runs.
    swept: bool,
}

/// The idle connections of all entries.
#[derive(Default)]
pub(super) struct Pool {
    /// One stock for each lane, since a connection is woken where it was opened, and one for all
    /// other threads. Held for a few comparisons and one system call; never across an await.
    stocks: [Mutex<Stock>; 1 + LANES_MAX],
}

impl Pool {
    /// Takes the connection that was used last, if it may carry the request. Connections that show
    /// their end are dropped on the way.
    pub(super) fn take(&self, place: &Arc<Place>, repeatable: bool) -> Option<Connection> {
        let now = clock::now();
        let mut stock = self.stock().lock();
        let Stock { places, total, .. } = &mut *stock;
        let idle = places.get_mut(place)?;
        let mut taken = None;
        while let Some(last) = idle.pop() {
            *total = total.saturating_sub(1);
            if last.is_fit(now, repeatable) {
                taken = Some(last.connection);
                break;
            }
            // Too old for this one, yet good for a request that may be repeated: such a one will
            // do better on a fresh connection as well.
        }
        taken
    }

    /// Keeps a connection whose answer was read to its end.
    pub(super) fn put(
        self: &Arc<Self>,
        place: &Arc<Place>,
        connection: Connection,
        hint: Option<Duration>,
    ) {
        if hint.is_some_and(|hint| hint <= HINT_MARGIN) {
            return;
        }
        let mut stock = self.stock().lock();
        if stock.total >= TOTAL_MAX {
            return;
        }
        let idle = stock.places.entry(Arc::clone(place)).or_default();
        idle.push(Idle {
            connection,
            since: clock::now(),
            hint,
        });
        if idle.len() > PLACE_MAX {
            idle.remove(0);
        } else {
            stock.total += 1;
        }
        if !std::mem::replace(&mut stock.swept, true) {
            spawn::named(
                "http idle connections",
                sweep(Arc::downgrade(self), lane::here()),
            );
        }
    }

    fn stock(&self) -> &Mutex<Stock> {
        let [elsewhere, lanes @ ..] = &self.stocks;
        lane::here()
            .checked_sub(1)
            .and_then(|ordinal| lanes.get(ordinal))
            .unwrap_or(elsewhere)
    }

    /// Closes what is too old for any request in one stock. Answers whether any are left.
    fn close_old(&self, stock: usize) -> bool {
        let now = clock::now();
        let Some(stock) = self.stocks.get(stock) else {
            return false;
        };
        let mut stock = stock.lock();
        let mut total = 0;
        stock.places.retain(|_, idle| {
            idle.retain(|one| one.is_fit(now, true));
            total += idle.len();
            !idle.is_empty()
        });
        stock.total = total;
        stock.swept = total > 0;
        stock.swept
    }

    /// Closes all idle connections.
    pub(super) fn clear(&self) {
        for stock in &self.stocks {
            let mut stock = stock.lock();
            stock.places.clear();
            stock.total = 0;
        }
    }
}

/// Runs while there are idle connections, so that none outlives its time.
async fn sweep(pool: Weak<Pool>, stock: usize) {
    loop {
        tokio::time::sleep(SWEEP).await;
        if !pool.upgrade().is_some_and(|pool| pool.close_old(stock)) {
            return;
        }
    }
}

/// The time of `Keep-Alive: timeout=N, max=M`.
pub(super) fn keep_alive_hint(fields: &Fields) -> Option<Duration> {
    let value = fields.text("keep-alive")?;
    value.split(',').find_map(|part| {
        let (key, value) = part.split_once('=')?;
        let seconds = value.trim().trim_matches('"').parse().ok()?;
        key.trim()
            .eq_ignore_ascii_case("timeout")
            .then(|| Duration::from_secs(seconds))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Fields, keep_alive_hint};

    #[test]
    fn the_hint_is_read_in_any_spelling() {
        let hint = |value: &str| keep_alive_hint(&Fields::made(&[("keep-alive", value)]));
        assert_eq!(hint("timeout=5"), Some(Duration::from_secs(5)));
        assert_eq!(hint("max=100, Timeout = 72"), Some(Duration::from_secs(72)));
        assert_eq!(hint("timeout=soon"), None);
        assert_eq!(hint("max=5"), None);
        assert_eq!(keep_alive_hint(&Fields::default()), None);
    }
}
