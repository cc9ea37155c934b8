//! Binding TCP listeners.
//!
//! Owns: the addresses, and the search for who holds one that is taken. It must not know what is
//! served on them.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use tokio::net::{TcpListener, TcpSocket};

/// Connections that the system holds until they are accepted; the system may have a lower bound of its
/// own. A client that finds no room tries again after a second, so a burst of them should find some.
const BACKLOG: u32 = 4096;

/// Why a listener was not bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else listens there.
    #[error("{address} is taken{}; stop that process, or choose another address with --listen", holder(*.pid))]
    InUse {
        /// The address.
        address: SocketAddr,
        /// The process that holds it, if it could be found.
        pid: Option<u32>,
    },
    /// The system refused.
    #[error("{address} cannot be listened on")]
    Refused {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

fn holder(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" by process {pid}"))
        .unwrap_or_default()
}

/// Binds every address. With `both_loopbacks`, `::1` is tried beside `127.0.0.1` under the same
/// port, since `localhost` may be either to a client; a machine without it does without. Needs the context
/// of a runtime with IO.
pub fn bind(addresses: &[SocketAddr], both_loopbacks: bool) -> Result<Vec<TcpListener>, BindError> {
    let mut listeners = Vec::with_capacity(addresses.len() + 1);
    for address in addresses {
        // A port that the first address drew holds for the others too.
        let port = match (
            address.port(),
            listeners.first().map(TcpListener::local_addr),
        ) {
            (0, Some(Ok(first))) => first.port(),
            (port, _) => port,
        };
        listeners.push(bind_one(SocketAddr::new(address.ip(), port))?);
    }
    let is_paired = addresses.iter().any(SocketAddr::is_ipv6);
    let first = listeners
        .first()
        .and_then(|listener| listener.local_addr().ok());
    if let (true, false, Some(first)) = (both_loopbacks, is_paired, first)
        && first.ip().is_loopback()
    {
        let second = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), first.port());
        match listen(second) {
            Ok(listener) => listeners.push(listener),
            Err(error) => tracing::debug!(%error, %second, "the second loopback is not served"),
        }
    }
    Ok(listeners)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    // An address may be taken again at once after a stop.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn bind_one(address: SocketAddr) -> Result<TcpListener, BindError> {
    listen(address).map_err(|source| {
        if source.kind() == io::ErrorKind::AddrInUse {
            BindError::InUse {
                address,
                pid: listener_pid(address.port()),
            }
        } else {
            BindError::Refused { address, source }
        }
    })
}

/// The process of this user that listens on a port, if `/proc` tells.
fn listener_pid(port: u16) -> Option<u32> {
    let inode = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .find_map(|table| listener_inode(&table, port).map(str::to_owned))?;
    let mut name = String::new();
    write!(name, "socket:[{inode}]").ok()?;
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let files = fs::read_dir(entry.path().join("fd")).ok()?;
        files
            .flatten()
            .filter_map(|file| fs::read_link(file.path()).ok())
            .any(|link| link.as_os_str() == name.as_str())
            .then_some(pid)
    })
}

/// The inode of the socket in state "listening" on a port (proc(5), /proc/net/tcp).
fn listener_inode(table: &str, port: u16) -> Option<&str> {
    let suffix = format!(":{port:04X}");
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let local = fields.nth(1)?;
        let state = fields.nth(1)?;
        (local.ends_with(&suffix) && state == "0A")
            .then(|| fields.nth(5))
            .flatten()
    })
}
