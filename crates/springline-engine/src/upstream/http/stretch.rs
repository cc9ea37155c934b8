//! Large answers on their way through: what a JSON body or one event of a stream gives out as it
//! comes.
//!
//! Owns the choice of what passes: an answer, by its first members, that is larger than may be held.
//! It must not know whether anybody waits for it: it reports, the machine judges.

use bytes::Bytes;
use springline_proto::json::{Flow, FlowError, Step};
use springline_proto::settings::HELD_MAX;
use springline_proto::sse::{SseDecoder, SseItem};
use springline_proto::upstream::{End, Stretch};

use super::body::{BodyError, Inflow};
use super::exchange::Exchange;
use super::window::Window;

/// An answer that is scanned while it comes.
struct Passage {
    flow: Flow,
    steps: Vec<Step>,
    seen: usize,
    window: Window,
}

/// What became of a body that is larger than may be held.
pub(super) enum Passed {
    /// It came to its end and was an answer; [`Stretch::End`] is to be reported.
    Whole,
    /// It passed as far as it came.
    Ended(End),
    /// It is no answer by its first members, and nothing of it was reported.
    Not(Bytes),
}

impl Passage {
    fn new() -> Self {
        Self {
            flow: Flow::new(),
            steps: Vec::new(),
            seen: 0,
            window: Window::default(),
        }
    }

    /// Scans the next bytes and hands out what they are.
    fn push(&mut self, chunk: Bytes, mut give: impl FnMut(Stretch)) -> Result<(), FlowError> {
        if chunk.is_empty() {
            return Ok(());
        }
        self.seen += chunk.len();
        let scanned = self.flow.push(&chunk, &mut self.steps);
        let chunk = self.window.count(chunk);
        for step in self.steps.drain(..) {
            give(match step {
                Step::Pass(range) => Stretch::Bytes(chunk.slice(range)),
                Step::Id(id) => Stretch::Id(id),
            });
        }
        scanned
    }
}

/// The begin of an answer, and what of it came before it was known to be one.
fn begin(exchange: &Exchange, flow: &Flow, len: Option<u64>, first: Vec<Stretch>) {
    let id = first.iter().find_map(|stretch| match stretch {
        Stretch::Id(id) => Some(id.clone()),
        Stretch::Begin { .. } | Stretch::Bytes(_) | Stretch::End => None,
    });
    let len = len.map(|len| len.saturating_sub(flow.skipped()));
    exchange.stretch(Stretch::Begin { id, len });
    for stretch in first {
        exchange.stretch(stretch);
    }
}

/// Reports a JSON body as it comes, of which `begun` was read.
pub(super) async fn pass_body(exchange: &Exchange, inflow: &mut Inflow, begun: Bytes) -> Passed {
    let len = inflow.left().map(|left| left + begun.len() as u64);
    let mut passage = Passage::new();
    let (mut raw, mut first) = (Vec::new(), Vec::new());
    let mut chunk = begun;
    loop {
        raw.push(chunk.clone());
        let scanned = passage.push(chunk, |stretch| first.push(stretch));
        if scanned.is_err() || (passage.seen > HELD_MAX && !passage.flow.is_answer()) {
            return Passed::Not(raw.concat().into());
        }
        if passage.flow.is_answer() {
            break;
        }
        chunk = match inflow.next().await {
            Some(Ok(chunk)) => chunk,
            Some(Err(error)) => return Passed::Ended(broken(&error)),
            None => return Passed::Not(raw.concat().into()),
        };
    }
    drop(raw);
    begin(exchange, &passage.flow, len, first);
    let body_max = exchange.wire.limits.body_max;
    loop {
        passage.window.room().await;
        let scanned = match inflow.next().await {
            Some(Ok(chunk)) => passage.push(chunk, |stretch| exchange.stretch(stretch)),
            Some(Err(error)) => return Passed::Ended(broken(&error)),
            None => match passage.flow.finish() {
                Ok(()) => return Passed::Whole,
                Err(error) => Err(error),
            },
        };
        if let Some(cause) = spoilt(scanned, passage.seen, body_max) {
            let too_large = scanned.is_ok();
            exchange.garbled(None, cause.clone(), too_large);
            let cause = cause.into_boxed_str();
            return Passed::Ended(End::Broken { cause });
        }
    }
}

/// Why an answer that passes cannot be completed, if so.
fn spoilt(scanned: Result<(), FlowError>, seen: usize, max: usize) -> Option<String> {
    match scanned {
        Err(error) => Some(format!("the answer that had begun is none: {error}")),
        Ok(()) if seen > max => Some(format!("an answer of {seen} bytes or more, over {max}")),
        Ok(()) => None,
    }
}

fn broken(error: &BodyError) -> End {
    End::Broken {
        cause: error.to_string().into_boxed_str(),
    }
}

/// The events of a stream that are too large to be held.
pub(super) struct LargeEvents<'a> {
    exchange: &'a Exchange,
    /// Whether any may pass.
    stretches: bool,
    /// Whether the event at hand was found to be none that passes.
    refused: bool,
    /// The one that passes.
    passage: Option<Box<Passage>>,
}

impl<'a> LargeEvents<'a> {
    pub(super) fn new(exchange: &'a Exchange, stretches: bool) -> Self {
        Self {
            exchange,
            stretches,
            refused: false,
            passage: None,
        }
    }

    /// The next bytes of the stream, once there is room for them. Cancel safe.
    pub(super) async fn next(&self, inflow: &mut Inflow) -> Option<Result<Bytes, BodyError>> {
        if let Some(passage) = &self.passage {
            passage.window.room().await;
        }
        inflow.next().await
    }

    /// Gives bytes to the decoder; those in the midst of a large line need not be copied.
    pub(super) fn push(&mut self, decoder: &mut SseDecoder, chunk: &Bytes) {
        if let Some(bytes) = decoder.push_passing(chunk) {
            self.pass(bytes);
        }
    }

    /// Takes what belongs to a large event; the item comes back if it does not.
    pub(super) fn take(&mut self, item: SseItem) -> Option<SseItem> {
        match item {
            SseItem::Bytes(bytes) => self.pass(bytes),
            SseItem::Passed => {
                if let Some(passage) = self.passage.take() {
                    match passage.flow.finish() {
                        Ok(()) => self.exchange.stretch(Stretch::End),
                        Err(error) => self.spoil(Err(error), passage.seen),
                    }
                }
            }
            other => {
                self.refused = false;
                return Some(other);
            }
        }
        None
    }

    /// Lets the event at hand pass, if it is an answer and larger than may be held.
    pub(super) fn begin(&mut self, decoder: &mut SseDecoder) {
        if !self.stretches || self.refused || self.passage.is_some() {
            return;
        }
        let Some(begun) = decoder.begun(HELD_MAX) else {
            return;
        };
        let (mut passage, mut first) = (Passage::new(), Vec::new());
        let scanned = passage.push(begun, |stretch| first.push(stretch));
        if scanned.is_err() || !passage.flow.is_answer() {
            self.refused = true;
            return;
        }
        decoder.pass();
        begin(self.exchange, &passage.flow, None, first);
        self.passage = Some(Box::new(passage));
    }

    fn pass(&mut self, bytes: Bytes) {
        let Some(passage) = &mut self.passage else {
            return;
        };
        let exchange = self.exchange;
        let scanned = passage.push(bytes, |stretch| exchange.stretch(stretch));
        let seen = passage.seen;
        self.spoil(scanned, seen);
    }

    /// Gives up what passes, if it cannot be completed; the rest of its event goes by.
    fn spoil(&mut self, scanned: Result<(), FlowError>, seen: usize) {
        let max = self.exchange.wire.limits.body_max;
        if let Some(cause) = spoilt(scanned, seen, max) {
            self.passage = None;
            self.exchange.garbled(None, cause, scanned.is_ok());
        }
    }
}
