//! What there is for each server, for people: its instances, and those that are on their way out.
//!
//! Owns which upstream is shown under which name. It must not know how any of it is shown.

use std::collections::BTreeMap;
use std::sync::Arc;

use springline_proto::upstream::{Standby, Transport};

use super::Gateway;
use super::global::GlobalCell;
use super::session::SessionCell;
use super::upstream::UpstreamCell;

/// What a server entry looks like from outside.
#[derive(Clone, Debug)]
pub struct ServerView {
    /// Its name.
    pub name: String,
    /// Whether it is configured; if not, it is here for instances that are on their way out.
    pub is_configured: bool,
    /// Whether it is a child process.
    pub is_child: bool,
    /// Why it cannot be used, if so.
    pub unavailable: Option<String>,
    /// Why its last start failed, if it did.
    pub failure: Option<String>,
    /// Its upstreams.
    pub instances: Vec<InstanceView>,
}

/// One upstream of one session, or of all.
#[derive(Clone, Debug)]
pub struct InstanceView {
    /// The digest of the session's id; `global` for one that all sessions share, nothing if its
    /// session is over.
    pub session: Option<String>,
    /// What it is at.
    pub standby: Standby,
    /// It takes no new calls: it finishes those that it has, or is being ended.
    pub is_draining: bool,
    /// Calls that are not answered.
    pub pending: usize,
    /// Its processes.
    pub pids: Vec<u32>,
}

/// One upstream, and what it is shown under.
struct Shown {
    view: InstanceView,
    is_child: bool,
}

/// By the name of the server; those that all sessions share, by that of the instance.
#[derive(Default)]
struct Inventory {
    own: BTreeMap<Arc<str>, Vec<Shown>>,
    global: BTreeMap<Arc<str>, Vec<Shown>>,
}

impl Inventory {
    fn add_session(&mut self, session: &SessionCell) {
        let digest = || Some(session.digest());
        for cell in session.upstreams() {
            let draining = cell.is_draining();
            self.put_own(&cell, view_of(&cell, digest(), draining));
        }
        let leaving = session.leaving.lock().clone();
        for cell in leaving.iter().filter(|cell| !cell.is_gone()) {
            self.put_own(cell, view_of(cell, digest(), true));
        }
    }

    fn add_global(&mut self, global: &GlobalCell, is_shared: bool) {
        let (current, leaving) = global.cells();
        let session = || Some("global".to_owned());
        let shown = self.global.entry(Arc::clone(global.name())).or_default();
        if is_shared || current.has_instance() {
            let draining = !is_shared || current.is_draining();
            shown.push(shown_of(&current, session(), draining));
        }
        for cell in leaving.iter().filter(|cell| !cell.is_gone()) {
            shown.push(shown_of(cell, session(), true));
        }
    }

    /// One whose session is over, or whose last call is.
    fn add_retired(&mut self, cell: &UpstreamCell) {
        let view = view_of(cell, None, true);
        if !view.pids.is_empty() || !cell.is_gone() {
            self.put_own(cell, view);
        }
    }

    fn put_own(&mut self, cell: &UpstreamCell, view: InstanceView) {
        let server = Arc::clone(cell.carrier().server());
        let is_child = cell.is_child();
        let of_it = self.own.entry(server).or_default();
        of_it.push(Shown { view, is_child });
    }
}

impl Gateway {
    /// The names of the server entries, in the order of the configuration.
    pub fn server_names(&self) -> Vec<String> {
        let entries = self.shared.entries.read();
        entries.keys().map(ToString::to_string).collect()
    }

    /// All server entries, for people, in the order of the configuration; after them those that are
    /// configured no longer, and still finish something. Looks for launchers on the disk.
    pub fn servers(&self) -> Vec<ServerView> {
        let shared = &self.shared;
        let mut found = Inventory::default();
        for session in shared.sessions() {
            found.add_session(&session);
        }
        for global in shared.globals() {
            let is_shared = shared.global_spec(global.name()).is_some();
            found.add_global(&global, is_shared);
        }
        for cell in shared.retired() {
            found.add_retired(&cell);
        }
        let entries = shared.entries.read().clone();
        let mut servers: Vec<ServerView> = Vec::with_capacity(entries.len());
        for spec in entries.values() {
            let own = found.own.remove(&spec.name).unwrap_or_default();
            let of_all = found.global.get(&spec.instance).into_iter().flatten();
            let of_all = of_all
                .filter(|shown| spec.is_global() || shown.view.is_draining)
                .map(|shown| shown.view.clone());
            servers.push(ServerView {
                name: spec.name.to_string(),
                is_configured: true,
                is_child: spec.transport() == Transport::Stdio && spec.definition.is_ok(),
                unavailable: spec.problem(),
                failure: shared.failure(&spec.name),
                instances: own
                    .into_iter()
                    .map(|shown| shown.view)
                    .chain(of_all)
                    .collect(),
            });
        }
        let is_used = |name: &str| entries.values().any(|spec| *spec.instance == *name);
        found.global.retain(|name, _| !is_used(name));
        for (name, of_all) in found.global {
            found.own.entry(name).or_default().extend(of_all);
        }
        servers.extend(
            found
                .own
                .into_iter()
                .filter_map(|(name, shown)| gone(&name, shown)),
        );
        servers
    }
}

/// A server that is configured no longer, if something of it is left.
fn gone(name: &str, mut shown: Vec<Shown>) -> Option<ServerView> {
    shown.retain(|shown| shown.view.is_draining);
    let is_child = shown.first()?.is_child;
    Some(ServerView {
        name: name.to_owned(),
        is_configured: false,
        is_child,
        unavailable: None,
        failure: None,
        instances: shown.into_iter().map(|shown| shown.view).collect(),
    })
}

fn shown_of(cell: &UpstreamCell, session: Option<String>, is_draining: bool) -> Shown {
    Shown {
        view: view_of(cell, session, is_draining),
        is_child: cell.is_child(),
    }
}

fn view_of(cell: &UpstreamCell, session: Option<String>, is_draining: bool) -> InstanceView {
    let (standby, pending) = cell.standby();
    let children = cell.carrier().children();
    InstanceView {
        session,
        standby,
        is_draining,
        pending,
        pids: children.iter().filter_map(|child| child.pid).collect(),
    }
}
