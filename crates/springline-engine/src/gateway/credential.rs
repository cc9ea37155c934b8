//! From a configured HTTP entry to what its transport needs, now and when it is read again.

use std::sync::Arc;

use parking_lot::Mutex;

use super::rest::Identities;
use crate::config::{Auth, Definition, Entry, HttpDefinition, ProcessEnvironment};
use crate::event::Events;
use crate::upstream::http::{Credentials, HttpAuth, HttpSpec};

/// Where the credentials of an entry come from, and which are in use.
pub(crate) struct Source {
    /// The entry as it was written last.
    pub(crate) entry: Arc<Entry>,
    /// The digest of its definition with the credentials that are in use, if those are others than
    /// were written there.
    pub(crate) rotated: Option<Box<[u8; 32]>>,
}

/// The transport's view of an entry; `source` is where its credentials are read again.
pub(crate) fn http_spec(
    server: &Arc<str>,
    definition: &HttpDefinition,
    source: &Arc<Mutex<Source>>,
    identities: Identities,
    events: &Arc<Events>,
) -> HttpSpec {
    let credentials = credentials_of(definition).unwrap_or_else(|error| {
        tracing::warn!(server = %server, %error, "credentials that cannot be sent are left out");
        Credentials::none()
    });
    let source = Arc::clone(source);
    let first = Arc::clone(&source.lock().entry);
    let (name, events) = (Arc::clone(server), Arc::clone(events));
    HttpSpec {
        server: Arc::clone(server),
        url: definition.url.clone(),
        credentials,
        reread: Arc::new(move || {
            let entry = Arc::clone(&source.lock().entry);
            let definition = reread(&entry)?;
            let credentials = credentials_of(&definition)?;
            // Nothing but credentials changes in mid-life.
            if is_same_place(&first, &definition) {
                let identity = identities.of(&Definition::Http(definition));
                source.lock().rotated = Some(Box::new(identity));
            }
            Ok(credentials)
        }),
        ca: definition.ca.as_ref().map(|ca| ca.path.clone()),
        on_delete: Some(Arc::new(move |generation, outcome| {
            let mut facts = serde_json::Map::new();
            facts.insert("server".to_owned(), name.as_ref().into());
            facts.insert("generation".to_owned(), generation.0.into());
            facts.insert("result".to_owned(), outcome.to_string().into());
            events.record("session.deleted", facts);
        })),
    }
}

/// Whether a definition is that of the entry but for its credentials.
fn is_same_place(entry: &Entry, definition: &HttpDefinition) -> bool {
    let pem = |of: &HttpDefinition| of.ca.as_ref().map(|ca| ca.pem.to_vec());
    match &entry.definition {
        Ok(Definition::Http(first)) => first.url == definition.url && pem(first) == pem(definition),
        Ok(Definition::Stdio(_)) | Err(_) => false,
    }
}

fn reread(entry: &Entry) -> Result<HttpDefinition, String> {
    match entry.re_expand(&ProcessEnvironment) {
        Ok(Definition::Http(definition)) => Ok(definition),
        Ok(Definition::Stdio(_)) => Err("the entry is no HTTP server any more".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn credentials_of(definition: &HttpDefinition) -> Result<Credentials, String> {
    let auth = match &definition.auth {
        None => HttpAuth::None,
        Some(Auth::Bearer { token }) => HttpAuth::Bearer {
            token: token.expose().to_owned(),
        },
        Some(Auth::RmqHmacSha256 {
            access_key,
            secret_key,
            instance_id,
        }) => HttpAuth::RmqHmacSha256 {
            access_key: access_key.expose().to_owned(),
            secret_key: secret_key.expose().to_owned(),
            instance_id: instance_id.clone(),
        },
    };
    Credentials::from_headers(&definition.headers, auth).map_err(|error| error.to_string())
}
