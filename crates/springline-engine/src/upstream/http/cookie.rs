//! Cookies of one upstream session: load balancers keep a session on its server by them.
//!
//! Owns: the part of RFC 6265 that one origin needs: name and value, `Path`, `Max-Age`, `Expires`,
//! `Secure`. `Domain` means nothing here, since a jar belongs to one origin and one generation and
//! never crosses either (I9). It must not know connections or the protocol.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::HeaderValue;

use super::field::Fields;

/// Cookies that one session keeps; the oldest goes beyond it (I8). Browsers keep 50 for a domain.
const COOKIES_MAX: usize = 64;

/// Bytes of one cookie; a larger one is ignored, as browsers do.
const COOKIE_BYTES_MAX: usize = 4096;

#[derive(Clone, Debug)]
struct Cookie {
    name: String,
    value: String,
    path: String,
    secure: bool,
    expires: Option<SystemTime>,
}

/// The cookies of one session.
#[derive(Default)]
pub(super) struct Jar {
    cookies: Vec<Cookie>,
}

impl Jar {
    /// Takes in every `Set-Cookie` of an answer to a request for `path`.
    pub(super) fn store(&mut self, fields: &Fields, path: &str, now: SystemTime) {
        for value in fields.all("set-cookie") {
            let Ok(text) = std::str::from_utf8(value) else {
                continue;
            };
            let Some(cookie) = parse(text, path, now) else {
                continue;
            };
            let same = |kept: &Cookie| kept.name == cookie.name && kept.path == cookie.path;
            let gone = cookie.expires.is_some_and(|at| at <= now);
            if let Some(kept) = self.cookies.iter().position(same) {
                if gone {
                    self.cookies.remove(kept);
                } else if let Some(kept) = self.cookies.get_mut(kept) {
                    // It keeps its place: the order of creation is the order of sending.
                    *kept = cookie;
                }
            } else if !gone {
                if self.cookies.len() >= COOKIES_MAX {
                    self.cookies.remove(0);
                }
                self.cookies.push(cookie);
            }
        }
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.cookies.is_empty()
    }

    /// The value of `Cookie` for a request for `path`; none if there is none to send. `configured`
    /// is what the entry's own headers say, and goes first.
    pub(super) fn header(
        &mut self,
        configured: Option<&HeaderValue>,
        path: &str,
        is_secure: bool,
        now: SystemTime,
    ) -> Option<HeaderValue> {
        self.cookies
            .retain(|cookie| cookie.expires.is_none_or(|at| at > now));
        let mut sent: Vec<&Cookie> = self
            .cookies
            .iter()
            .filter(|cookie| path_matches(&cookie.path, path) && (is_secure || !cookie.secure))
            .collect();
        // Longer paths first (RFC 6265, 5.4); the sort keeps the order of creation.
        sent.sort_by_key(|cookie| std::cmp::Reverse(cookie.path.len()));
        let mut text = Vec::new();
        if let Some(configured) = configured.filter(|_| !sent.is_empty()) {
            text.extend_from_slice(configured.as_bytes());
        }
        for cookie in sent {
            if !text.is_empty() {
                text.extend_from_slice(b"; ");
            }
            text.extend_from_slice(cookie.name.as_bytes());
            text.push(b'=');
            text.extend_from_slice(cookie.value.as_bytes());
        }
        if text.is_empty() {
            return None;
        }
        let mut value = HeaderValue::from_bytes(&text).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

/// RFC 6265, 5.2.
fn parse(text: &str, request_path: &str, now: SystemTime) -> Option<Cookie> {
    if text.len() > COOKIE_BYTES_MAX {
        return None;
    }
    let mut parts = text.split(';');
    let (name, value) = parts.next()?.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    if name.is_empty() || text.chars().any(char::is_control) {
        return None;
    }
    let mut cookie = Cookie {
        name: name.to_owned(),
        value: value.to_owned(),
        path: default_path(request_path).to_owned(),
        secure: false,
        expires: None,
    };
    let mut max_age = None;
    for part in parts {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let (key, value) = (key.trim(), value.trim());
        if key.eq_ignore_ascii_case("path") && value.starts_with('/') {
            value.clone_into(&mut cookie.path);
        } else if key.eq_ignore_ascii_case("secure") {
            cookie.secure = true;
        } else if key.eq_ignore_ascii_case("expires") {
            cookie.expires = date(value).or(cookie.expires);
        } else if key.eq_ignore_ascii_case("max-age") {
            max_age = value.parse::<i64>().ok().or(max_age);
        }
    }
    // `Max-Age` wins over `Expires`; zero and below mean "now".
    if let Some(seconds) = max_age {
        let age = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        cookie.expires = if age.is_zero() {
            Some(UNIX_EPOCH)
        } else {
            now.checked_add(age)
        };
    }
    Some(cookie)
}

/// Dates of cookies are often written with dashes between day, month and year.
fn date(text: &str) -> Option<SystemTime> {
    let text = text.trim_matches('"');
    httpdate::parse_http_date(text)
        .or_else(|_| httpdate::parse_http_date(&text.replace('-', " ")))
        .ok()
}

/// RFC 6265, 5.1.4: the path up to its last slash.
fn default_path(path: &str) -> &str {
    match path.rfind('/') {
        None | Some(0) => "/",
        Some(end) => path.get(..end).unwrap_or("/"),
    }
}

fn path_matches(cookie: &str, request: &str) -> bool {
    request
        .strip_prefix(cookie)
        .is_some_and(|rest| rest.is_empty() || cookie.ends_with('/') || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use http::header::HeaderValue;

    use super::{COOKIES_MAX, Fields, Jar};

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_hours(500_000)
    }

    fn store(jar: &mut Jar, cookies: &[&str]) {
        let named: Vec<_> = cookies
            .iter()
            .map(|cookie| ("Set-Cookie", *cookie))
            .collect();
        jar.store(&Fields::made(&named), "/api/mcp", now());
    }

    fn sent(jar: &mut Jar, path: &str, is_secure: bool) -> String {
        jar.header(None, path, is_secure, now())
            .map_or_else(String::new, |value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_cookie_comes_back_where_its_path_says() {
        let mut jar = Jar::default();
        store(
            &mut jar,
            &[
                "a=1",
                "b=2; Path=/",
                "c=3; path=/api/mcp; HttpOnly",
                "d=4; Path=/x",
            ],
        );
        assert_eq!(sent(&mut jar, "/api/mcp", false), "c=3; a=1; b=2");
        assert_eq!(sent(&mut jar, "/apix", false), "b=2");
    }

    #[test]
    fn a_newer_value_replaces_and_an_expired_one_removes() {
        let mut jar = Jar::default();
        store(&mut jar, &["a=1", "b=2", "c=3; Max-Age=60"]);
        store(&mut jar, &["a=9", "b=; Max-Age=0"]);
        assert_eq!(sent(&mut jar, "/api/mcp", false), "a=9; c=3");
        store(&mut jar, &["a=; Expires=Thu, 01-Jan-1970 00:00:00 GMT"]);
        assert_eq!(sent(&mut jar, "/api/mcp", false), "c=3");
        let later = now() + Duration::from_secs(61);
        assert!(jar.header(None, "/api/mcp", false, later).is_none());
    }

    #[test]
    fn a_secure_cookie_stays_off_plain_connections() {
        let mut jar = Jar::default();
        store(&mut jar, &["a=1; Secure"]);
        assert_eq!(sent(&mut jar, "/api/mcp", false), "");
        assert_eq!(sent(&mut jar, "/api/mcp", true), "a=1");
    }

    #[test]
    fn a_configured_cookie_goes_first() {
        let mut jar = Jar::default();
        store(&mut jar, &["a=1"]);
        let configured = HeaderValue::from_static("k=v");
        let value = jar
            .header(Some(&configured), "/api/mcp", false, now())
            .unwrap();
        assert_eq!(value.as_bytes(), b"k=v; a=1");
        assert!(value.is_sensitive());
    }

    #[test]
    fn the_jar_is_bounded() {
        let mut jar = Jar::default();
        for n in 0..=COOKIES_MAX {
            store(&mut jar, &[&format!("c{n}=1")]);
        }
        assert_eq!(jar.cookies.len(), COOKIES_MAX);
        assert!(!sent(&mut jar, "/api/mcp", false).contains("c0=1"));
        store(&mut jar, &[&format!("huge={}", "x".repeat(5000))]);
        assert!(!sent(&mut jar, "/api/mcp", false).contains("huge"));
    }
}
