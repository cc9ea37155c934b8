//! From a configured HTTP entry to what its transport needs, now and when it is read again.

use std::sync::Arc;

use super::entry::EntrySpec;
use crate::config::{Auth, Definition, Entry, HttpDefinition, ProcessEnvironment};
use crate::upstream::http::{Credentials, HttpAuth, HttpSpec};

/// The transport's view of an entry.
pub(crate) fn http_spec(server: &Arc<str>, definition: &HttpDefinition) -> HttpSpec {
    let credentials = credentials_of(definition).unwrap_or_else(|error| {
        tracing::warn!(server = %server, %error, "credentials that cannot be sent are left out");
        Credentials::none()
    });
    HttpSpec {
        server: Arc::clone(server),
        url: definition.url.clone(),
        credentials,
        ca: definition.ca.as_ref().map(|ca| ca.path.clone()),
    }
}

/// What the sources of an entry's credentials hold now.
pub(crate) struct Reread {
    pub(crate) credentials: Credentials,
    /// The digest of the definition with them; none if more than credentials changed, which is not
    /// taken in mid-life.
    pub(crate) identity: Option<[u8; 32]>,
}

/// Reads the credentials of an entry again. May block on files.
pub(crate) fn reread(spec: &EntrySpec) -> Result<Reread, String> {
    let definition = match spec.entry.re_expand(&ProcessEnvironment) {
        Ok(Definition::Http(definition)) => definition,
        Ok(Definition::Stdio(_)) => return Err("the entry is no HTTP server any more".to_owned()),
        Err(error) => return Err(error.to_string()),
    };
    let credentials = credentials_of(&definition)?;
    let is_same = is_same_place(&spec.entry, &definition);
    Ok(Reread {
        credentials,
        identity: is_same.then(|| spec.identities.of(&Definition::Http(definition))),
    })
}

/// Whether a definition is that of the entry but for its credentials.
fn is_same_place(entry: &Entry, definition: &HttpDefinition) -> bool {
    let pem = |of: &HttpDefinition| of.ca.as_ref().map(|ca| ca.pem.to_vec());
    match &entry.definition {
        Ok(Definition::Http(first)) => first.url == definition.url && pem(first) == pem(definition),
        Ok(Definition::Stdio(_)) | Err(_) => false,
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
