//! TLS to servers: whom to trust, and what to say when that fails.
//!
//! Owns: the client configurations, one for each set of roots. It must not know requests.
//! Only HTTP/1.1 is offered by ALPN.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use rustls::{ClientConfig, RootCertStore};

/// Why there is no TLS configuration.
#[derive(Debug, thiserror::Error)]
pub(super) enum TlsError {
    #[error("the CA file {path} could not be read")]
    CaFile { path: String, source: io::Error },
    #[error("the CA file {path} holds no usable certificate in PEM form")]
    CaEmpty { path: String },
    #[error("TLS could not be set up")]
    Setup(#[source] rustls::Error),
}

type Key = Option<PathBuf>;
type Stamp = Option<(SystemTime, u64)>;

/// The configurations, made when first needed. Roots of the system are read once; a CA file again
/// when it changed.
#[derive(Default)]
pub(super) struct Tls {
    /// Guards the cache; held while a configuration is made, so that it is made once. A lock and
    /// not a channel: it is only taken on threads that may block.
    made: Mutex<HashMap<Key, (Stamp, Arc<ClientConfig>)>>,
}

impl Tls {
    /// The configuration that trusts the system's roots and those of `ca`. Blocks on files: call
    /// it where blocking is allowed.
    pub(super) fn config(&self, ca: Option<&Path>) -> Result<Arc<ClientConfig>, TlsError> {
        let stamp = ca.and_then(|path| {
            let meta = std::fs::metadata(path).ok()?;
            Some((meta.modified().ok()?, meta.len()))
        });
        let mut made = self.made.lock();
        if let Some((known, config)) = made.get(&ca.map(Path::to_owned))
            && *known == stamp
        {
            return Ok(Arc::clone(config));
        }
        let mut roots = RootCertStore::empty();
        let native = rustls_native_certs::load_native_certs();
        for error in &native.errors {
            tracing::warn!(%error, "a certificate store of the system could not be read");
        }
        roots.add_parsable_certificates(native.certs);
        if let Some(path) = ca {
            add(&mut roots, path)?;
        }
        let config = Arc::new(build(roots).map_err(TlsError::Setup)?);
        made.insert(ca.map(Path::to_owned), (stamp, Arc::clone(&config)));
        Ok(config)
    }
}

fn add(roots: &mut RootCertStore, path: &Path) -> Result<(), TlsError> {
    let shown = || path.display().to_string();
    let pem = std::fs::read(path).map_err(|source| TlsError::CaFile {
        path: shown(),
        source,
    })?;
    let certificates: Vec<CertificateDer<'_>> = CertificateDer::pem_slice_iter(&pem)
        .filter_map(Result::ok)
        .collect();
    if roots.add_parsable_certificates(certificates).0 == 0 {
        return Err(TlsError::CaEmpty { path: shown() });
    }
    Ok(())
}

fn build(roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// What a failed handshake means, for people.
pub(super) fn explain(error: &io::Error) -> String {
    use rustls::{CertificateError, Error};
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Error>());
    let what = match inner {
        Some(Error::InvalidCertificate(bad)) => match bad {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "its certificate has expired"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "its certificate is not valid yet; compare the clocks"
            }
            CertificateError::UnknownIssuer => {
                "its certificate is signed by nobody whom this machine trusts; a private CA is \
                 named by `springline.ca`"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "its certificate is for another host name"
            }
            CertificateError::Revoked => "its certificate was revoked",
            other => return format!("its certificate cannot be used: {other:?}"),
        },
        Some(Error::InvalidMessage(_)) => {
            "it does not speak TLS; perhaps the URL should begin with http:"
        }
        Some(other) => return other.to_string(),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "it closed the connection during the handshake"
        }
        None => return error.to_string(),
    };
    what.to_owned()
}
