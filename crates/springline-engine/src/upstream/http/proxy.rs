//! Which proxy a request goes through: the variables that every HTTP tool on the machine honours.
//!
//! Owns: the reading of `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`. It must not know
//! the process environment (a lookup is passed in) and opens no connection.
//!
//! - Both cases are read, the lower one first. Upper-case `HTTP_PROXY` counts too: the reason to
//!   ignore it is a CGI program's, where a client's `Proxy` header would set it.
//! - `NO_PROXY` is split at commas and blanks: `*`, a host (its subdomains too), a suffix with a
//!   leading dot or `*.`, an address, a range in CIDR form; each but a range may end in `:PORT`.
//! - Loopback is never proxied, whatever the variables say.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderValue;
use url::{Host, Url};

use super::auth::basic;

/// A proxy, as one variable named it.
#[derive(Clone, Eq, PartialEq)]
pub(super) struct Proxy {
    /// Whether the proxy itself is spoken to over TLS.
    pub(super) secure: bool,
    pub(super) host: String,
    pub(super) port: u16,
    /// `Proxy-Authorization`, from the user information.
    pub(super) authorization: Option<HeaderValue>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The way to a server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Way {
    Direct,
    Via(Arc<Proxy>),
    /// A variable names a proxy that cannot be used; going around it could leak the request into a
    /// network where it does not belong.
    Unusable(&'static str),
}

/// The proxy variables, read once.
#[derive(Clone, Debug)]
pub struct ProxyEnv {
    http: Way,
    https: Way,
    except: Vec<Exception>,
}

impl ProxyEnv {
    /// No proxy at all.
    pub fn none() -> Self {
        Self {
            http: Way::Direct,
            https: Way::Direct,
            except: Vec::new(),
        }
    }

    /// Reads the variables through `lookup`. A value that is no proxy is kept as unusable: requests
    /// that would go through it fail with a text that names the variable.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let first = |names: &[&'static str]| {
            names.iter().find_map(|name| {
                let value = lookup(name).filter(|value| !value.trim().is_empty())?;
                Some(way(name, value.trim()))
            })
        };
        let all = first(&["all_proxy", "ALL_PROXY"]).unwrap_or(Way::Direct);
        let except = lookup("no_proxy")
            .filter(|value| !value.trim().is_empty())
            .or_else(|| lookup("NO_PROXY"))
            .unwrap_or_default();
        Self {
            http: first(&["http_proxy", "HTTP_PROXY"]).unwrap_or_else(|| all.clone()),
            https: first(&["https_proxy", "HTTPS_PROXY"]).unwrap_or(all),
            except: except
                .split([',', ' ', '\t', '\n'])
                .filter(|word| !word.is_empty())
                .map(Exception::parse)
                .collect(),
        }
    }

    /// The way to the host and port of `url`.
    pub(super) fn way(&self, url: &Url) -> Way {
        let way = if url.scheme() == "https" {
            &self.https
        } else {
            &self.http
        };
        let Some(host) = url.host() else {
            return Way::Direct;
        };
        let port = url.port_or_known_default().unwrap_or(0);
        if *way == Way::Direct || is_loopback(&host) {
            return Way::Direct;
        }
        if self
            .except
            .iter()
            .any(|exception| exception.covers(&host, port))
        {
            return Way::Direct;
        }
        way.clone()
    }
}

fn way(name: &'static str, value: &str) -> Way {
    // A bare `host:port` means plain HTTP, as everywhere.
    let url = if value.contains("://") {
        Url::parse(value)
    } else {
        Url::parse(&format!("http://{value}"))
    };
    let Ok(url) = url else {
        return Way::Unusable(name);
    };
    let secure = match url.scheme() {
        "http" => false,
        "https" => true,
        // SOCKS is another protocol, which we do not speak.
        _ => return Way::Unusable(name),
    };
    let Some(host) = url.host_str() else {
        return Way::Unusable(name);
    };
    Way::Via(Arc::new(Proxy {
        secure,
        host: host.to_owned(),
        port: url.port().unwrap_or(if secure { 443 } else { 80 }),
        authorization: basic(&url),
    }))
}

/// Whether a host is this machine by its very name.
pub(super) fn is_loopback(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => {
            let name = name.trim_end_matches('.');
            name.eq_ignore_ascii_case("localhost")
                || name.to_ascii_lowercase().ends_with(".localhost")
        }
        Host::Ipv4(address) => address.is_loopback(),
        Host::Ipv6(address) => {
            address.is_loopback()
                || address
                    .to_ipv4_mapped()
                    .is_some_and(|address| address.is_loopback())
        }
    }
}

/// One word of `NO_PROXY`.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Exception {
    Everything,
    /// A range of addresses: the network and how many leading bits count.
    Range(IpAddr, u32),
    /// A host and its subdomains, lower case, without a leading dot.
    Domain(String, Option<u16>),
    Address(IpAddr, Option<u16>),
}

impl Exception {
    fn parse(word: &str) -> Self {
        if word == "*" {
            return Self::Everything;
        }
        if let Some((network, bits)) = word.split_once('/')
            && let (Ok(network), Ok(bits)) = (network.parse::<IpAddr>(), bits.parse())
        {
            return Self::Range(network, bits);
        }
        if let Ok(address) = word.parse() {
            return Self::Address(address, None);
        }
        let (host, port) = match word.rsplit_once(':') {
            Some((host, port)) if port.parse::<u16>().is_ok() => (host, port.parse().ok()),
            _ => (word, None),
        };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = bare.parse() {
            return Self::Address(address, port);
        }
        let domain = host
            .trim_start_matches('*')
            .trim_start_matches('.')
            .trim_end_matches('.');
        Self::Domain(domain.to_ascii_lowercase(), port)
    }

    fn covers(&self, host: &Host<&str>, port: u16) -> bool {
        let address = match host {
            Host::Domain(name) => name.parse().ok(),
            Host::Ipv4(address) => Some(IpAddr::V4(*address)),
            Host::Ipv6(address) => Some(IpAddr::V6(*address)),
        };
        match self {
            Self::Everything => true,
            Self::Range(network, bits) => {
                address.is_some_and(|address| in_range(*network, *bits, address))
            }
            Self::Address(excepted, only) => {
                address == Some(*excepted) && only.is_none_or(|only| only == port)
            }
            Self::Domain(domain, only) => {
                let Host::Domain(name) = host else {
                    return false;
                };
                let name = name.trim_end_matches('.').to_ascii_lowercase();
                let inside = name
                    .strip_suffix(domain.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
                !domain.is_empty() && inside && only.is_none_or(|only| only == port)
            }
        }
    }
}

fn in_range(network: IpAddr, bits: u32, address: IpAddr) -> bool {
    // The bits that do not count are shifted out; a shift by the whole width leaves nothing.
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let differ = network.to_bits() ^ address.to_bits();
            bits <= 32 && differ.checked_shr(32 - bits).unwrap_or(0) == 0
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let differ = network.to_bits() ^ address.to_bits();
            bits <= 128 && differ.checked_shr(128 - bits).unwrap_or(0) == 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{ProxyEnv, Way};

    fn env(vars: &[(&'static str, &'static str)]) -> ProxyEnv {
        let vars = vars.to_vec();
        ProxyEnv::read(move |name| {
            vars.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    fn shown(env: &ProxyEnv, url: &str) -> String {
        match env.way(&url.parse().unwrap()) {
            Way::Direct => "direct".to_owned(),
            Way::Via(proxy) => proxy.to_string(),
            Way::Unusable(name) => format!("unusable {name}"),
        }
    }

    #[test]
    fn each_scheme_has_its_variable_and_all_stands_in() {
        let env = env(&[("HTTPS_PROXY", "http://p:3128"), ("all_proxy", "q:8080")]);
        assert_eq!(shown(&env, "https://a.example/mcp"), "p:3128");
        assert_eq!(shown(&env, "http://a.example/mcp"), "q:8080");
    }

    #[test]
    fn lower_case_wins_and_an_empty_value_is_none() {
        let both = env(&[("http_proxy", "http://low"), ("HTTP_PROXY", "http://up")]);
        assert_eq!(shown(&both, "http://a.example"), "low:80");
        let empty = env(&[("http_proxy", " "), ("HTTP_PROXY", "http://up:1")]);
        assert_eq!(shown(&empty, "http://a.example"), "up:1");
        assert_eq!(shown(&ProxyEnv::none(), "http://a.example"), "direct");
    }

    #[test]
    fn loopback_is_never_proxied() {
        let env = env(&[("ALL_PROXY", "http://p:1")]);
        for host in [
            "localhost",
            "LOCALHOST",
            "a.localhost",
            "127.0.0.1",
            "127.9.9.9",
            "[::1]",
        ] {
            assert_eq!(
                shown(&env, &format!("http://{host}:9/mcp")),
                "direct",
                "{host}"
            );
        }
    }

    #[test]
    fn no_proxy_takes_hosts_suffixes_ports_addresses_and_ranges() {
        let env = env(&[
            ("ALL_PROXY", "http://p:1"),
            (
                "NO_PROXY",
                ".corp, exact.example,10.0.0.0/8 [fd00::1]:443,fd12::/16,b.example:8443",
            ),
        ]);
        for direct in [
            "https://a.corp",
            "https://A.B.Corp/",
            "https://exact.example",
            "https://sub.exact.example",
            "https://10.200.3.4",
            "https://[fd00::1]",
            "https://[fd12::9]",
            "https://b.example:8443",
        ] {
            assert_eq!(shown(&env, direct), "direct", "{direct}");
        }
        for proxied in [
            "https://notcorp",
            "https://inexact.example",
            "https://11.0.0.1",
            "http://[fd00::1]",
            "https://b.example",
        ] {
            assert_eq!(shown(&env, proxied), "p:1", "{proxied}");
        }
    }

    #[test]
    fn a_star_excepts_everything() {
        let env = env(&[("ALL_PROXY", "http://p:1"), ("no_proxy", "*")]);
        assert_eq!(shown(&env, "https://a.example"), "direct");
    }

    #[test]
    fn a_proxy_that_we_cannot_speak_to_is_named_and_not_gone_around() {
        let env = env(&[("HTTPS_PROXY", "socks5://p:1")]);
        assert_eq!(shown(&env, "https://a.example"), "unusable HTTPS_PROXY");
    }

    #[test]
    fn user_information_becomes_an_authorization_that_debug_hides() {
        let env = env(&[("HTTPS_PROXY", "http://me:hush@p:1")]);
        let Way::Via(proxy) = env.way(&"https://a.example".parse().unwrap()) else {
            panic!("not proxied");
        };
        assert_eq!(proxy.authorization.as_ref().unwrap(), "Basic bWU6aHVzaA==");
        assert!(!format!("{env:?}").contains("hush"));
    }
}
