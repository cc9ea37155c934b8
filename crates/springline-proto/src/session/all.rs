//! The endpoint of all servers.
//!
//! Owns which server a request goes to, and what each server entry is known to offer. Must not
//! know how names and URIs are written: `aggregate` does that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::client::Level;
use super::gather::{Gather, List, Walk};
use super::port::{Accept, EntryView, Known, Output};
use super::request::result_response;
use super::route::Astray;
use super::{Phase, Session};
use crate::aggregate;
use crate::call::{ClientExchange, Moment};
use crate::error::plain_error;
use crate::message::Message;
use crate::method::{ListKind, Method};
use crate::names::CursorKey;
use crate::upstream::{self, Hello};
use crate::version::Version;

/// Names of removed entries that are remembered, for a better error.
const REMOVED_MAX: usize = 256;

/// What a session on the endpoint of all servers knows beyond the rest.
pub(super) struct All {
    /// In the order of the configuration.
    pub(super) entries: Vec<Entry>,
    pub(super) cursor_key: CursorKey,
    /// Names of entries that are configured no longer, and whether their servers were started.
    pub(super) removed: BTreeMap<Arc<str>, bool>,
    due: Due,
    hello: Option<Hello>,
    /// The raw level that the client set.
    level: Option<Bytes>,
    /// Starts that were asked for, by our number.
    starts: BTreeMap<u64, Arc<str>>,
    /// Lists that are being read, by our number of the request under way.
    pub(super) walks: BTreeMap<u64, Walk>,
    /// Requests for lists that wait for servers.
    pub(super) gathers: Vec<Gather>,
    /// Lists that the client has seen.
    pub(super) answered: BTreeSet<ListKind>,
    /// Lists whose change the client will be told, and when.
    pub(super) changed: BTreeMap<ListKind, Moment>,
}

/// Which servers are started when the client is heard of next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Due {
    /// None: all that can be are.
    Nothing,
    /// Those that came while no client was attached.
    New,
    /// All, whatever runs: `initialize` came, and nothing after it. A client that goes away then
    /// costs no instance.
    All,
}

/// One server entry.
pub(super) struct Entry {
    pub(super) name: Arc<str>,
    pub(super) unavailable: Option<Arc<str>>,
    started: bool,
    /// The raw `result` of its last `initialize`.
    initialize: Option<Bytes>,
    pub(super) lists: BTreeMap<ListKind, List>,
}

impl Entry {
    fn of(view: EntryView) -> Self {
        let remembered = view.remembered.as_deref().cloned().unwrap_or_default();
        let lists = remembered.lists.into_iter();
        Self {
            name: view.name,
            unavailable: view.unavailable,
            started: false,
            initialize: remembered.initialize,
            lists: lists
                .map(|(kind, pages)| (kind, List::remembered(pages)))
                .collect(),
        }
    }

    pub(super) fn is_available(&self) -> bool {
        self.unavailable.is_none()
    }

    /// Whether it may have this list; one that was never seen may.
    pub(super) fn may_have(&self, kind: ListKind) -> bool {
        self.initialize
            .as_ref()
            .is_none_or(|result| aggregate::has_capability(result, &[kind.capability()]))
    }

    fn has_logging(&self) -> bool {
        self.initialize
            .as_ref()
            .is_some_and(|result| aggregate::has_capability(result, &["logging"]))
    }
}

impl All {
    pub(super) fn new(entries: Vec<EntryView>, cursor_key: [u8; 32]) -> Self {
        Self {
            entries: entries.into_iter().map(Entry::of).collect(),
            cursor_key: CursorKey::new(cursor_key),
            removed: BTreeMap::new(),
            due: Due::Nothing,
            hello: None,
            level: None,
            starts: BTreeMap::new(),
            walks: BTreeMap::new(),
            gathers: Vec::new(),
            answered: BTreeSet::new(),
            changed: BTreeMap::new(),
        }
    }

    /// As after a handshake: whatever is available counts as started, and is greeted at its first use.
    pub(super) fn restore(&mut self, hello: Hello, level: Option<Bytes>) {
        self.hello = Some(hello);
        self.level = level;
        for entry in &mut self.entries {
            entry.started = entry.is_available();
        }
    }

    pub(super) fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| *entry.name == *name)
    }

    pub(super) fn entry_mut(&mut self, name: &str) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| *entry.name == *name)
    }

    /// When a list waits no longer, or a change is told.
    pub(super) fn deadline(&self) -> Option<Moment> {
        let gathers = self.gathers.iter().map(Gather::until);
        gathers.chain(self.changed.values().copied()).min()
    }

    /// The servers that are configured no longer, and were started while they were.
    pub(super) fn removed_started(&self) -> Vec<Arc<str>> {
        let removed = self.removed.iter().filter(|(_, started)| **started);
        removed.map(|(name, _)| Arc::clone(name)).collect()
    }

    pub(super) fn started(&self) -> Vec<Arc<str>> {
        let started = self.entries.iter().filter(|entry| entry.started);
        started.map(|entry| Arc::clone(&entry.name)).collect()
    }
}

impl Session {
    /// `initialize` is answered at once, with what is remembered. The servers are started when the
    /// client goes on ([`Self::go_on`]).
    pub(super) fn open_all(
        &mut self,
        now: Moment,
        exchange: Option<ClientExchange>,
        accept: Accept,
        id: &[u8],
        params: &Bytes,
    ) {
        let number = self.admit(now, exchange, accept, id, Method::Initialize);
        let version = super::open::version_of(params).unwrap_or(Version::LATEST);
        let hello = Hello {
            params: super::open::with_known_version(params),
        };
        let Some(all) = &mut self.all else {
            return;
        };
        all.hello = Some(hello);
        all.level = None;
        all.due = Due::All;
        let servers: Vec<(&str, Option<Bytes>)> = all
            .entries
            .iter()
            .filter(|entry| entry.is_available())
            .map(|entry| (&*entry.name, entry.initialize.clone()))
            .collect();
        let result = aggregate::initialize_result(version, &servers);
        self.answer_initialize(now, number, &result);
    }

    /// The client is heard of after its `initialize`: by `notifications/initialized`, or by a request.
    pub(super) fn go_on(&mut self) {
        let Some(all) = &mut self.all else {
            return;
        };
        match std::mem::replace(&mut all.due, Due::Nothing) {
            Due::Nothing => return,
            Due::New => {}
            Due::All => {
                for entry in &mut all.entries {
                    entry.started = false;
                }
            }
        }
        self.start_all();
    }

    /// Entries came, or can be used now: an attached client has them started, any other with its
    /// next word.
    fn start_new(&mut self) {
        let is_attached = self.main.is_some();
        let Some(all) = &mut self.all else {
            return;
        };
        if all.due == Due::Nothing {
            all.due = Due::New;
        }
        if is_attached && all.due == Due::New {
            self.go_on();
        }
    }

    /// Starts what can be started and is not. The driver paces the starts.
    fn start_all(&mut self) {
        let (Some(all), Phase::Open) = (&mut self.all, self.phase) else {
            return;
        };
        let Some(hello) = all.hello.clone() else {
            return;
        };
        let mut names = Vec::new();
        for entry in &mut all.entries {
            if entry.is_available() && !entry.started {
                entry.started = true;
                names.push(Arc::clone(&entry.name));
            }
        }
        for name in names {
            let number = self.next_number();
            if let Some(all) = &mut self.all {
                all.starts.insert(number, Arc::clone(&name));
            }
            let (key, hello) = (self.call_key(number), hello.clone());
            self.tell(Arc::clone(&name), upstream::Input::Start { key, hello });
            self.tell(name, upstream::Input::Attached(self.main.is_some()));
        }
    }

    /// A server of all is ready.
    pub(super) fn on_one_started(&mut self, server: &Arc<str>, number: u64, result: &Bytes) {
        let Some(all) = &mut self.all else {
            return;
        };
        all.starts.remove(&number);
        let level = all.level.clone();
        let Some(entry) = all.entry_mut(server) else {
            return;
        };
        entry.initialize = Some(result.clone());
        if let Some(level) = level.filter(|_| entry.has_logging()) {
            self.send_level(server, &level);
        }
    }

    /// A new instance took the place of an old one; it may offer other things.
    pub(super) fn on_renewed(&mut self, now: Moment, server: &Arc<str>, result: &Bytes) {
        let what = Known::Initialize(result.clone());
        self.out.push_back(Output::Remember {
            server: Arc::clone(server),
            what,
        });
        let Some(entry) = self.all.as_mut().and_then(|all| all.entry_mut(server)) else {
            return;
        };
        let before = ListKind::ALL.map(|kind| entry.may_have(kind));
        entry.initialize = Some(result.clone());
        let after = ListKind::ALL.map(|kind| entry.may_have(kind));
        for (kind, (before, after)) in ListKind::ALL.into_iter().zip(before.into_iter().zip(after))
        {
            if before != after {
                self.note_changed(now, kind);
            }
        }
    }

    /// A server of all could not be started; its calls and lists will say so themselves.
    pub(super) fn on_one_failed(&mut self, number: u64) -> bool {
        self.all
            .as_mut()
            .is_some_and(|all| all.starts.remove(&number).is_some())
    }

    /// A request on the endpoint of all servers.
    pub(super) fn on_request_all(
        &mut self,
        now: Moment,
        exchange: Option<ClientExchange>,
        accept: Accept,
        id: &[u8],
        method: Method,
        message: &Message,
    ) {
        self.go_on();
        let number = self.admit(now, exchange, accept, id, method);
        if let Some(kind) = ListKind::of(method) {
            self.on_list(now, number, kind, message);
            return;
        }
        if method == Method::SetLevel {
            self.on_set_level(now, number, message);
            return;
        }
        match self.route(method, message) {
            Ok((server, routed)) => {
                let effect = self.effect_of(method, message);
                if let Some(pending) = self.pending.get_mut(&number) {
                    pending.server = Some(Arc::clone(&server));
                    pending.effect = effect;
                }
                let key = self.call_key(number);
                self.tell(
                    server,
                    upstream::Input::Call {
                        key,
                        message: routed,
                        // Names and URIs in it may have to be rewritten.
                        stretches: false,
                    },
                );
            }
            Err(Astray::Error(error)) => self.reject(now, number, &error),
            Err(Astray::Fault(fault)) => self.fail(now, number, &fault),
        }
    }

    fn on_set_level(&mut self, now: Moment, number: u64, message: &Message) {
        let raw = message.param("level").unwrap_or_default();
        let Some(level) = Level::parse(&raw) else {
            self.reject(now, number, &plain_error(-32602, "Invalid log level"));
            return;
        };
        self.level = Some(level);
        let raw = Bytes::copy_from_slice(&raw);
        let mut servers = Vec::new();
        if let Some(all) = &mut self.all {
            all.level = Some(raw.clone());
            let with = all
                .entries
                .iter()
                .filter(|entry| entry.started && entry.has_logging());
            servers.extend(with.map(|entry| Arc::clone(&entry.name)));
        }
        self.persist();
        for server in servers {
            self.send_level(&server, &raw);
        }
        if let Some(pending) = self.settle(number) {
            self.give(
                now,
                &pending.outlet,
                result_response(pending.id.as_slice(), b"{}"),
            );
        }
    }

    /// Our own request; nobody waits for its answer.
    fn send_level(&mut self, server: &Arc<str>, level: &Bytes) {
        let params = [br#"{"level":"#, &level[..], b"}"].concat();
        self.ask_server(server, Method::SetLevel, &params);
    }

    /// Sends a request of our own to a server; its answer comes under the number.
    pub(super) fn ask_server(&mut self, server: &Arc<str>, method: Method, params: &[u8]) -> u64 {
        let number = self.next_number();
        let head = format!(
            r#"{{"jsonrpc":"2.0","id":{number},"method":"{}","params":"#,
            method.as_str()
        );
        let body = [head.as_bytes(), params, b"}"].concat();
        if let Ok(message) = Message::parse(body) {
            let key = self.call_key(number);
            let stretches = false;
            let call = upstream::Input::Call {
                key,
                message,
                stretches,
            };
            self.tell(Arc::clone(server), call);
        }
        number
    }

    /// A notification of the client, for the servers that it concerns.
    pub(super) fn notify_all(&mut self, method: Method, message: &Message) {
        let servers = if method == Method::RootsChanged {
            self.servers()
        } else if method == Method::Progress {
            self.asker_of(message.param("progressToken"))
                .into_iter()
                .collect()
        } else {
            // Others have no server to go to.
            Vec::new()
        };
        for server in servers {
            self.tell(
                server,
                upstream::Input::Notify {
                    message: message.clone(),
                },
            );
        }
    }

    /// The entries changed, or what is remembered of them.
    pub(super) fn on_entries(&mut self, now: Moment, views: Vec<EntryView>) {
        let Some(all) = &mut self.all else {
            if self.phase != Phase::Open {
                self.entries = views;
            }
            return;
        };
        let mut old = std::mem::take(&mut all.entries);
        let before: Vec<Arc<str>> = old.iter().map(|entry| Arc::clone(&entry.name)).collect();
        let mut changed = BTreeSet::new();
        for view in views {
            let known = old.iter().position(|entry| entry.name == view.name);
            let mut entry = Entry::of(view);
            if let Some(known) = known.map(|at| old.swap_remove(at)) {
                entry.started = known.started && entry.is_available();
                entry.initialize = known.initialize.or(entry.initialize);
                for (kind, list) in known.lists {
                    match entry.lists.get(&kind) {
                        Some(new) if list.gives_way_to(kind, new) => {
                            changed.insert(kind);
                        }
                        _ => {
                            entry.lists.insert(kind, list);
                        }
                    }
                }
            }
            all.entries.push(entry);
        }
        all.removed
            .extend(old.into_iter().map(|entry| (entry.name, entry.started)));
        for entry in &mut all.entries {
            // Added again: its upstream knows the handshake still.
            if all.removed.remove(&entry.name) == Some(true) {
                entry.started = entry.is_available();
            }
        }
        while all.removed.len() > REMOVED_MAX {
            all.removed.pop_first();
        }
        let after: Vec<Arc<str>> = all
            .entries
            .iter()
            .map(|entry| Arc::clone(&entry.name))
            .collect();
        if before != after {
            changed.extend(ListKind::ALL);
        }
        for kind in changed {
            self.note_changed(now, kind);
        }
        self.start_new();
        self.try_gathers(now);
    }
}
