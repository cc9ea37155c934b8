//! Where the requests of an entry go.
//!
//! Owns: what is the same in every request to one URL, made once for all sessions. It must not know
//! what credentials say.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use url::{Position, Url};

use super::HttpSpec;
use super::auth::Credentials;
use super::dial::{Origin, Place};
use super::proxy::{ProxyEnv, Way};

/// One URL, and the way to it.
pub(super) struct Site {
    pub(super) url: Url,
    pub(super) place: Arc<Place>,
    pub(super) way: Way,
    /// Path and query, as they are sent.
    pub(super) path: Box<str>,
    /// The value of `Host`.
    pub(super) authority: Box<str>,
    /// The head of a POST up to the credentials, unless a proxy is to see another one.
    pub(super) opening: Option<Box<[u8]>>,
    /// What sessions began with last: mostly all have the same. Held for a look or a change.
    credentials: Mutex<Arc<Credentials>>,
}

impl Site {
    /// Of a URL of an entry. The error is for people.
    pub(super) fn of(
        url: Url,
        server: Arc<str>,
        ca: Option<PathBuf>,
        proxies: &ProxyEnv,
    ) -> Result<Self, String> {
        let origin = Origin::of(&url)
            .ok_or_else(|| format!("the scheme {} is not spoken here", url.scheme()))?;
        let path: Box<str> = url[Position::BeforePath..Position::AfterQuery].into();
        if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the URL's path cannot be sent".to_owned());
        }
        let way = proxies.way(&url);
        let proxy = match &way {
            Way::Via(proxy) => Some(proxy.to_string()),
            Way::Direct | Way::Unusable(_) => None,
        };
        let authority: Box<str> = origin.authority().into();
        let is_absolute = matches!(way, Way::Via(_)) && !origin.secure;
        let can_stand = authority.bytes().all(|byte| byte.is_ascii_graphic());
        let opening = (!is_absolute && can_stand).then(|| {
            let text = format!("POST {path} HTTP/1.1\r\nhost: {authority}\r\n");
            text.into_bytes().into_boxed_slice()
        });
        let place = Place::new(server, origin, proxy, ca);
        Ok(Self {
            url,
            place: Arc::new(place),
            way,
            path,
            authority,
            opening,
            credentials: Mutex::new(Arc::new(Credentials::none())),
        })
    }

    /// These credentials, in the place where others that are equal stand already.
    pub(super) fn shared(&self, credentials: Credentials) -> Arc<Credentials> {
        let mut held = self.credentials.lock();
        if **held != credentials {
            *held = Arc::new(credentials);
        }
        Arc::clone(&held)
    }

    /// Whether it is the first site of this entry.
    pub(super) fn is_of(&self, spec: &HttpSpec) -> bool {
        self.place.server == spec.server && self.url == spec.url && self.place.ca == spec.ca
    }
}
