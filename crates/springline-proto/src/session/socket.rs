//! The socket of `connect`: numbered frames both ways, which outlive a connection.
//!
//! Owns what the client may not have yet: it is sent again on the client's next connection, and its
//! answers stay in the journal until the client has them. A frame of the client is taken once.
//! Must not know what a message says, nor how frames are written.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::port::{
    ClientFrame, Comeback, Downstream, Event, Fate, Mark, Output, Part, Past, PastCall, Welcome,
};
use super::stream::Outlet;
use super::{Phase, Session};
use crate::call::{Connection, Moment};
use crate::error::{Fault, FaultKind};
use crate::json::Pieces;
use crate::seldom::Unset;
use crate::settings::{COMEBACK_MAX, SessionSettings};

/// Frames that may wait for their acknowledgement without a body, for each one that may with it.
const BARE_PER_EVENT: usize = 4;

/// The gateway's end of the frames.
#[derive(Default)]
pub(super) struct Frames {
    /// The last frame of the client that was taken.
    taken: u64,
    /// The last number of ours on the present connection, or the last one that had one.
    sent: u64,
    /// Sent and not acknowledged, without a gap; the last one is number `sent`.
    unread: VecDeque<Entry>,
    /// For the next connection, on which they get their numbers.
    waiting: VecDeque<Entry>,
    /// Bytes of both.
    bytes: usize,
    /// Requests that will not be answered, by frame, with their calls: of before a restart, or
    /// with answers that were too much to keep. Settled with the client's first word after it was
    /// told.
    past: BTreeMap<u64, (Fate, Option<u64>)>,
    /// When the session ends if its client does not come back.
    expires: Option<Moment>,
}

/// One message for the client.
struct Entry {
    /// None: it was too much to keep.
    data: Option<Pieces>,
    /// The call that it answers.
    call: Option<u64>,
    /// The client's frame that it answers; 0 if none.
    frame: u64,
}

impl Entry {
    fn len(&self) -> usize {
        self.data.as_ref().map_or(0, Pieces::len)
    }
}

impl Unset for Frames {
    fn unset() -> &'static Self {
        static NONE: Frames = Frames {
            taken: 0,
            sent: 0,
            unread: VecDeque::new(),
            waiting: VecDeque::new(),
            bytes: 0,
            past: BTreeMap::new(),
            expires: None,
        };
        &NONE
    }
}

impl Frames {
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    pub(super) fn set_taken(&mut self, frame: u64) {
        self.taken = frame;
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        self.expires
    }

    /// Takes out what the client has, and returns the calls that it answered.
    fn read_up_to(&mut self, received: u64) -> Vec<u64> {
        let mut answered = Vec::new();
        while self.sent.saturating_sub(self.unread.len() as u64) < received
            && let Some(entry) = self.unread.pop_front()
        {
            self.bytes = self.bytes.saturating_sub(entry.len());
            answered.extend(entry.call);
        }
        if self.unread.is_empty() {
            // An idle session keeps no room for what it once sent.
            self.unread.shrink_to_fit();
        }
        answered
    }

    /// Keeps to the bounds: what was sent goes first, then what is no answer, then bodies of
    /// answers, whose clients hear that they are lost. Returns the calls that nobody can hear of.
    fn trim(&mut self, limits: &SessionSettings) -> Trimmed {
        let mut trimmed = Trimmed::default();
        for entry in &mut self.unread {
            if self.bytes <= limits.redelivery_bytes_max {
                break;
            }
            self.bytes = self.bytes.saturating_sub(entry.len());
            entry.data = None;
        }
        let is_over = |socket: &Self| {
            socket.bytes > limits.redelivery_bytes_max
                || socket.waiting.len() > limits.redelivery_events_max
        };
        while is_over(self)
            && let Some(at) = self.waiting.iter().position(|entry| entry.frame == 0)
        {
            let entry = self.waiting.remove(at);
            self.bytes = self
                .bytes
                .saturating_sub(entry.map_or(0, |entry| entry.len()));
            trimmed.dropped += 1;
        }
        for entry in &mut self.waiting {
            if self.bytes <= limits.redelivery_bytes_max {
                break;
            }
            self.bytes = self.bytes.saturating_sub(entry.len());
            entry.data = None;
        }
        let bare_max = limits.redelivery_events_max.saturating_mul(BARE_PER_EVENT);
        while self.unread.len() > bare_max
            && let Some(entry) = self.unread.pop_front()
        {
            self.bytes = self.bytes.saturating_sub(entry.len());
            trimmed.calls.extend(entry.call);
        }
        trimmed
    }
}

/// What did not fit.
#[derive(Default)]
struct Trimmed {
    dropped: usize,
    calls: Vec<u64>,
}

impl Session {
    /// The client attached: it hears what it lacks, and what became of what it waits for.
    pub(super) fn on_attached(&mut self, now: Moment, connection: Connection, comeback: &Comeback) {
        if let Some(older) = self.main.filter(|older| *older != connection) {
            self.put_stream(older, Part::End);
        }
        let read = self.socket.read_up_to(comeback.received);
        self.settle_calls(read);
        let wanted: BTreeSet<u64> = comeback.pending.iter().copied().collect();
        self.abandon(&wanted);
        let kept = self.sort_kept(&wanted);
        let past = self.socket.past.iter();
        let mut fates: Vec<(u64, Fate)> = past
            .filter(|(frame, _)| wanted.contains(frame))
            .map(|(frame, (fate, _))| (*frame, *fate))
            .collect();
        let open: BTreeSet<u64> = self.frames_pending().map(|(_, frame)| frame).collect();
        for frame in wanted.range(..=self.socket.taken) {
            let answered = kept.iter().any(|entry| entry.frame == *frame);
            let told = fates.iter().any(|(of, _)| of == frame);
            if !open.contains(frame) && !answered && !told {
                // It was answered at once, or the journal failed: nobody knows.
                fates.push((*frame, Fate::Sent));
            }
        }
        if self.socket.expires.take().is_some() {
            self.out.push_back(Output::Emit(Event::Reattached));
        }
        self.socket.sent = comeback.received;
        self.attach(connection);
        let taken = self.socket.taken;
        self.put_stream(connection, Part::Welcome(Welcome { taken, fates }));
        for entry in kept {
            self.queue(entry);
        }
        self.flush_held(now);
    }

    /// Calls that the client has given up on go on, and are answered to nobody. Their ids are free.
    fn abandon(&mut self, wanted: &BTreeSet<u64>) {
        let given_up: Vec<u64> = self
            .frames_pending()
            .filter(|(_, frame)| !wanted.contains(frame))
            .map(|(number, _)| number)
            .collect();
        for number in given_up {
            let Some(pending) = self.pending.get_mut(&number) else {
                continue;
            };
            let outlet = std::mem::replace(&mut pending.outlet, Outlet::Gone);
            let call = if let Outlet::Socket { call, .. } = outlet {
                call
            } else {
                None
            };
            pending.holds_id = false;
            self.settle_calls(call);
        }
    }

    /// What is kept for the client, in its order, less answers that it does not want.
    fn sort_kept(&mut self, wanted: &BTreeSet<u64>) -> Vec<Entry> {
        let socket = &mut *self.socket;
        let all: Vec<Entry> = socket
            .unread
            .drain(..)
            .chain(socket.waiting.drain(..))
            .collect();
        socket.bytes = 0;
        let mut kept = Vec::new();
        for entry in all {
            if entry.frame != 0 && !wanted.contains(&entry.frame) {
                self.settle_calls(entry.call);
            } else if entry.data.is_some() {
                kept.push(entry);
            } else if entry.frame != 0 {
                let lost = (Fate::Lost, entry.call);
                self.socket.past.insert(entry.frame, lost);
            }
        }
        kept
    }

    fn frames_pending(&self) -> impl Iterator<Item = (u64, u64)> {
        self.pending.iter().filter_map(|(number, pending)| {
            if let Outlet::Socket { frame, .. } = pending.outlet {
                Some((*number, frame))
            } else {
                None
            }
        })
    }

    /// A message of the client. One that was taken before is not taken again; a gap ends the
    /// session, for something is lost.
    pub(super) fn on_frame(&mut self, now: Moment, frame: ClientFrame) {
        let ClientFrame {
            connection,
            number,
            received,
            line,
            refusal,
        } = frame;
        if self.main != Some(connection) {
            return;
        }
        self.on_acknowledged(connection, received);
        if number <= self.socket.taken {
            return;
        }
        if number > self.socket.taken.saturating_add(1) {
            self.close(now, &Fault::new(FaultKind::SessionEnded));
            return;
        }
        self.last_activity = now;
        self.socket.taken = number;
        self.out.push_back(Output::Taken(number));
        match (line, refusal) {
            (_, Some(refusal)) => self.say(None, refusal),
            (Ok(message), None) => self.on_message(now, None, super::Accept::Both, message),
            (Err(error), None) => self.on_malformed(now, &error),
        }
    }

    /// The client has our frames up to this one.
    pub(super) fn on_acknowledged(&mut self, connection: Connection, received: u64) {
        if self.main != Some(connection) {
            return;
        }
        // It speaks, so it has heard its welcome.
        let told = std::mem::take(&mut self.socket.past);
        self.settle_calls(told.into_values().filter_map(|(_, call)| call));
        let read = self.socket.read_up_to(received);
        self.settle_calls(read);
    }

    /// The connection broke without a goodbye: the session waits for its client.
    pub(super) fn on_socket_cut(&mut self, now: Moment) {
        if self.downstream != Downstream::Socket {
            return;
        }
        if self.phase == Phase::Fresh {
            // There is nothing to come back to.
            self.close(now, &Fault::new(FaultKind::SessionEnded));
            return;
        }
        self.socket.expires = Some(now.after(COMEBACK_MAX));
    }

    pub(super) fn expire_socket(&mut self, now: Moment) {
        if self.socket.expires.is_some_and(|at| at <= now) && self.phase != Phase::Closed {
            self.socket.expires = None;
            self.out.push_back(Output::Emit(Event::Abandoned));
            self.close(now, &Fault::new(FaultKind::SessionEnded));
        }
    }

    /// The session ends: nobody comes back for anything.
    pub(super) fn clear_socket(&mut self) {
        if self.downstream != Downstream::Socket {
            return;
        }
        let socket = &mut *self.socket;
        socket.expires = None;
        let past = std::mem::take(&mut socket.past).into_values();
        let mut calls: Vec<u64> = past.filter_map(|(_, call)| call).collect();
        let kept = socket.unread.drain(..).chain(socket.waiting.drain(..));
        calls.extend(kept.filter_map(|entry| entry.call));
        socket.bytes = 0;
        self.settle_calls(calls);
    }

    /// A call that the journal of an earlier process holds.
    pub(super) fn restore_frame(&mut self, call: PastCall) {
        let fate = match call.fate {
            Past::NotSent => Fate::NotSent,
            Past::Sent => Fate::Sent,
            Past::Lost => Fate::Lost,
            Past::Answered(body) => {
                self.socket.bytes = self.socket.bytes.saturating_add(body.len());
                self.socket.waiting.push_back(Entry {
                    data: Some(body.into()),
                    call: Some(call.number),
                    frame: call.frame,
                });
                return;
            }
        };
        self.socket
            .past
            .insert(call.frame, (fate, Some(call.number)));
    }

    /// The answer to the request in a frame of the client.
    pub(super) fn answer_frame(&mut self, call: Option<u64>, frame: u64, body: Pieces) {
        if let Some(number) = call {
            self.mark(number, Mark::Answered(body.clone()));
        }
        let data = Some(body);
        self.queue(Entry { data, call, frame });
    }

    /// A message of no call, or what is answered at once to the frame that is being taken.
    pub(super) fn put_frame(&mut self, data: Pieces, is_answer: bool) {
        let data = Some(data);
        let call = None;
        let frame = if is_answer { self.socket.taken } else { 0 };
        self.queue(Entry { data, call, frame });
    }

    fn queue(&mut self, entry: Entry) {
        let socket = &mut *self.socket;
        socket.bytes = socket.bytes.saturating_add(entry.len());
        match (self.main, &entry.data) {
            (Some(connection), Some(data)) => {
                socket.sent = socket.sent.saturating_add(1);
                let part = Part::Frame {
                    number: socket.sent,
                    data: data.clone(),
                };
                socket.unread.push_back(entry);
                self.put_stream(connection, part);
            }
            _ => socket.waiting.push_back(entry),
        }
        let trimmed = self.socket.trim(&self.settings);
        self.settle_calls(trimmed.calls);
        for _ in 0..trimmed.dropped {
            let reason = "its client is away";
            self.out.push_back(Output::Emit(Event::Dropped { reason }));
        }
    }

    pub(super) fn settle_calls(&mut self, calls: impl IntoIterator<Item = u64>) {
        for number in calls {
            self.mark(number, Mark::Settled);
        }
    }
}
