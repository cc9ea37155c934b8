//! Calls that are served in place: the connection's own task reads and writes them.
//!
//! Most requests are a POST with one length, on a connection that is kept. Reading them here costs no
//! map of fields, no channel for the body and no second state machine. Everything else is hyper's: the
//! connection goes to it as it stands, and stays there. The checks are those of `route`, `guard` and
//! `call` in both cases. Owns: the order of requests on a connection, its idle time and its end. It
//! must not know what a message says.

mod escort;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod head;
mod inflow;
mod outflow;

use std::future::{Future as _, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use springline_proto::json::Skim;
use springline_proto::session::{Accept, Endpoint, Part};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};

pub(crate) use self::escort::{Attended, Escort, Underway};
use self::head::{Head, Look};
pub(crate) use self::inflow::Rewound;
use self::inflow::{Inflow, Rest};
use self::outflow::{Framed, Outflow, SendError};
use super::answer::Answer;
use super::body;
use super::call::{self, Call, Posted, SESSIONLESS_MAX};
use super::field::{Field, Fields as _};
use super::guard::{self, Arrival};
use super::port::{Gate, Session};
use super::raised;
use super::route::{self, Desk};
use super::seat;
use super::setting::HttpSettings;
use crate::stock::{self, ROOM};
use crate::{clock, lane};

/// A longer `Host` is not remembered. No name has more, and a port.
const HOST_MAX: usize = 263;

/// One connection of a client.
pub(crate) struct Wire<'a, S, G> {
    desk: &'a Desk<G>,
    arrival: Arrival,
    inflow: Inflow<S>,
    outflow: Outflow,
    /// What the last request was for: the next one is most likely for the same.
    endpoint: Endpoint,
    /// The `Host` that passed last, under the present settings: the next one is most likely the same.
    /// Empty if none did.
    host: Box<[u8]>,
}

/// A request that was read.
struct Turn<P> {
    heard: Result<Posted<P>, Answer>,
    /// The page of a browser that may read the answer.
    origin: Option<String>,
    /// Whether the client wants the connection to end with the answer.
    closes: bool,
    /// Bytes of the body that nobody read.
    left: u64,
}

type PartsOf<G> = <<G as Gate>::Session as Session>::Parts;

/// A connection that goes to hyper.
pub(crate) struct Left<S> {
    /// With what was received of it.
    pub(crate) stream: Rewound<S>,
    /// When the time is over of the head that comes.
    pub(crate) until: Instant,
}

/// What a connection waits for between requests.
struct Idle<'a, F> {
    /// The stop of the server.
    stopped: Pin<&'a mut F>,
    /// Fires when the time of some request was over; it is set anew only then, not for each.
    timer: Pin<&'a mut Sleep>,
    /// When the time of the next request, or of what is missing of its head, is over.
    until: Instant,
    /// Whether both were asked before: they wake this connection's task.
    is_watched: bool,
}

/// What came of reading on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Filled {
    More,
    /// The connection is over, or the server stops.
    Ended,
    /// The time is over.
    Late,
}

impl<F: Future<Output = ()>> Idle<'_, F> {
    /// The first bytes of a head have come: all of it has to by then.
    fn begin_head(&mut self, patience: Duration) {
        self.until = clock::now() + patience;
        self.timer.as_mut().reset(self.until);
        self.is_watched = false;
    }

    /// Whether there is no need to ask now, since the timer is set and has not fired. The stop is for
    /// the caller to look at.
    fn is_set(&self) -> bool {
        self.is_watched && !self.timer.is_elapsed()
    }

    /// Whether the time of the next request is over, or the server stops.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<Filled> {
        while self.timer.as_mut().poll(cx).is_ready() {
            if clock::now() >= self.until {
                return Poll::Ready(Filled::Late);
            }
            self.timer.as_mut().reset(self.until);
        }
        self.is_watched = true;
        self.stopped.as_mut().poll(cx).map(|()| Filled::Ended)
    }
}

impl<'a, S, G> Wire<'a, S, G>
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
    G: Gate,
{
    pub(crate) fn new(desk: &'a Desk<G>, arrival: Arrival, stream: S) -> Self {
        Self {
            desk,
            arrival,
            inflow: Inflow::new(stream),
            outflow: Outflow::default(),
            endpoint: Endpoint::All,
            host: Box::default(),
        }
    }

    /// Serves plain requests until the connection ends, or something else comes: then the connection
    /// is returned. Dropped, it cuts the connection.
    ///
    /// What is rare is boxed: a gateway holds one of these for each connection.
    #[expect(clippy::manual_async_fn, reason = "it would hold its arguments twice")]
    pub(crate) fn serve(
        mut self,
        mut latest: watch::Receiver<Arc<HttpSettings>>,
    ) -> impl Future<Output = Option<Left<S>>> {
        async move {
            let mut settings = Arc::clone(&latest.borrow_and_update());
            let patience = settings.idle_patience;
            let mut stopping = self.desk.stopping.clone();
            let until = clock::now() + patience;
            let mut idle = Idle {
                stopped: pin!(raised(&mut stopping)),
                timer: pin!(sleep_until(until)),
                until,
                is_watched: false,
            };
            // Bytes of the next head that were looked at.
            let mut seen = 0;
            loop {
                if head::may_end(&self.inflow.input, seen) {
                    let bytes = std::mem::take(&mut self.inflow.input);
                    let turn = match head::look(&bytes) {
                        Look::Plain(head) => {
                            if latest.has_changed().unwrap_or(false) {
                                settings = Arc::clone(&latest.borrow_and_update());
                                self.host = Box::default();
                            }
                            lane::stay_awake();
                            Some(self.hear(&head, &bytes, &settings).await)
                        }
                        Look::Partial => None,
                        Look::Other => {
                            let until = match seen {
                                0 => clock::now() + settings.head_patience,
                                _ => idle.until,
                            };
                            let stream = Rewound::new(self.inflow.stream, bytes);
                            return Some(Left { stream, until });
                        }
                    };
                    if let Some(turn) = turn {
                        stock::give(bytes);
                        if !self.answer(turn).await {
                            return None;
                        }
                        lane::stay_awake();
                        idle.until = clock::now() + patience;
                        seen = 0;
                        continue;
                    }
                    if seen == 0 {
                        idle.begin_head(settings.head_patience);
                    }
                    seen = bytes.len();
                    self.inflow.input = bytes;
                }
                match self.fill(&mut idle, seen > 0).await {
                    Filled::More => {}
                    Filled::Late if seen > 0 => {
                        Box::pin(self.refuse_late()).await;
                        return None;
                    }
                    Filled::Late | Filled::Ended => return None,
                }
            }
        }
    }

    /// Reads on. In the midst of a head the time counts also while it comes.
    async fn fill(
        &mut self,
        idle: &mut Idle<'_, impl Future<Output = ()>>,
        is_amid: bool,
    ) -> Filled {
        // At first, while both are as they were at the last request, they need not be asked again.
        let mut is_first = true;
        poll_fn(|cx| match self.inflow.poll_fill(cx, ROOM) {
            Poll::Ready(Ok(1..)) if is_amid && clock::now() >= idle.until => {
                Poll::Ready(Filled::Late)
            }
            Poll::Ready(Ok(1..)) => Poll::Ready(Filled::More),
            Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(Filled::Ended),
            Poll::Pending
                if std::mem::take(&mut is_first) && idle.is_set() && !self.is_stopping() =>
            {
                Poll::Pending
            }
            Poll::Pending => idle.poll_over(cx),
        })
        .await
    }

    /// A head did not come in time.
    async fn refuse_late(&mut self) {
        let framed = self.outflow.begin(call::close(escort::late()), true);
        if let Err(error) = self.send(framed).await {
            tracing::debug!(%error, "a refusal did not get out");
        } else {
            self.end(u64::MAX).await;
        }
    }

    /// Judges a request, and gives its body to its session. `bytes` begin with its head.
    async fn hear(
        &mut self,
        head: &Head<'_>,
        bytes: &[u8],
        settings: &HttpSettings,
    ) -> Turn<PartsOf<G>> {
        let place = self.check_place(head, settings);
        let origin = guard::cors_origin(head, settings).filter(|_| place.is_ok());
        let judged = match place {
            Ok(()) => self.judge(head, settings),
            Err(error) => Err(route::refuse_place(error)),
        };
        let rest = bytes.get(head.len..).unwrap_or_default();
        let whole = usize::try_from(head.length)
            .ok()
            .filter(|length| *length <= settings.body_max.min(SESSIONLESS_MAX))
            .and_then(|length| rest.split_at_checked(length));
        let mut left = 0;
        let taken = if let Some((body, ahead)) = whole {
            self.inflow.keep(ahead);
            judged.and_then(|(call, accept)| call.take(Bytes::copy_from_slice(body), accept))
        } else {
            self.inflow.keep(rest);
            left = head.length;
            match judged {
                Ok((call, accept)) => {
                    let rest = Rest::new(&mut self.inflow, &mut left);
                    let body = Box::pin(call.read(rest)).await;
                    body.and_then(|body| call.take(body, accept))
                }
                Err(answer) => Err(answer),
            }
        };
        Turn {
            heard: taken,
            origin: origin.map(str::to_owned),
            closes: head.closes,
            left,
        }
    }

    /// [`guard::check_place`], with a look at what passed before.
    fn check_place(
        &mut self,
        head: &Head<'_>,
        settings: &HttpSettings,
    ) -> Result<(), guard::PlaceError> {
        let host = head.all(Field::Host).next().unwrap_or_default();
        let has_origin = head.has(Field::Origin);
        if !has_origin && !host.is_empty() && *host == *self.host {
            return Ok(());
        }
        guard::check_place(head, self.arrival, settings)?;
        if !has_origin && host.len() <= HOST_MAX {
            self.host = host.into();
        }
        Ok(())
    }

    /// What is judged before the body is read, but for the place.
    fn judge<'b>(
        &mut self,
        head: &'b Head<'b>,
        settings: &'b HttpSettings,
    ) -> Result<(Call<'b, G, Head<'b>>, Accept), Answer>
    where
        'a: 'b,
    {
        let is_same = match &self.endpoint {
            Endpoint::All => head.server.is_empty(),
            Endpoint::One(server) => **server == *head.server,
        };
        if !is_same {
            self.endpoint = route::endpoint_of(head.server);
        }
        let desk: &'b Desk<G> = self.desk;
        let call = desk.call(head, self.endpoint.clone(), self.arrival, settings)?;
        let accept = call.admit()?;
        Ok((call, accept))
    }

    /// Answers a request. Says whether another one may follow.
    #[expect(clippy::manual_async_fn, reason = "it would hold its arguments twice")]
    fn answer(&mut self, mut turn: Turn<PartsOf<G>>) -> impl Future<Output = bool> {
        async move {
            let first = match &mut turn.heard {
                Ok(posted) => match self.wait(posted).await {
                    Some(first) => first,
                    None => return false,
                },
                Err(_) => None,
            };
            let mut answer = match turn.heard {
                Ok(posted) => posted.answer(first),
                Err(answer) => answer,
            };
            if let Some(origin) = &turn.origin {
                route::add_cors(&mut answer, origin);
            }
            let closes = answer.closes() || turn.closes || turn.left > 0 || self.is_stopping();
            let framed = self.outflow.begin(answer, closes);
            if let Err(error) = self.send(framed).await {
                tracing::debug!(%error, "an answer did not get out");
                return false;
            }
            if closes || self.is_stopping() {
                Box::pin(self.end(turn.left)).await;
                return false;
            }
            true
        }
    }

    /// Waits for the first part of what answers a message; nothing if the client goes before.
    async fn wait(&mut self, posted: &mut Posted<PartsOf<G>>) -> Option<Option<Part>> {
        let mut first = pin!(posted.first());
        poll_fn(|cx| {
            // An answer that is there goes out also to a client that sends no more.
            match first.as_mut().poll(cx) {
                Poll::Pending if self.inflow.poll_gone(cx) => Poll::Ready(None),
                waits => waits.map(Some),
            }
        })
        .await
    }

    /// Writes an answer; a client that goes meanwhile is noticed. While it waits for the client to
    /// read, the connection gives way to no other.
    fn send(&mut self, mut framed: Framed) -> impl Future<Output = Result<(), SendError>> {
        let mut busy = None;
        poll_fn(move |cx| {
            let (outflow, inflow) = (&mut self.outflow, &mut self.inflow);
            match outflow.poll_send(cx, &mut inflow.stream, &mut framed) {
                Poll::Pending if inflow.poll_gone(cx) => Poll::Ready(Err(SendError::Gone)),
                Poll::Pending => {
                    busy.get_or_insert_with(seat::busy);
                    Poll::Pending
                }
                Poll::Ready(sent) => Poll::Ready(sent),
            }
        })
    }

    /// Ends the connection. What the client still sends of a body is read for a moment, so that it
    /// meets the answer and not a reset connection.
    async fn end(&mut self, mut left: u64) {
        if let Err(error) = self.inflow.stream.shutdown().await {
            tracing::debug!(%error, "a connection did not end well");
        } else if left > 0 {
            let rest = pin!(Rest::new(&mut self.inflow, &mut left));
            body::discard(rest, Skim::new()).await;
        }
    }

    fn is_stopping(&self) -> bool {
        // The flag is only ever raised, and then all end.
        self.desk.stopping.has_changed().unwrap_or(true)
    }
}
