//! TLS and proxies.

use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::*;

/// A server's certificate for `name`, and a file that holds it as an authority.
fn certificate(name: &str) -> (TlsAcceptor, tempfile::NamedTempFile) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed([name.to_owned()]).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), cert.pem()).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    (TlsAcceptor::from(Arc::new(config)), file)
}

async fn secured(acceptor: &TlsAcceptor, peer: Peer<TcpStream>) -> Peer<TlsStream<TcpStream>> {
    let stream = acceptor.accept(peer.stream).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    Peer {
        stream,
        buffer: Vec::new(),
    }
}

fn secure_spec(ca: Option<std::path::PathBuf>) -> Box<dyn Fn(&mut HttpSpec)> {
    Box::new(move |spec| {
        spec.url.set_scheme("https").unwrap();
        spec.ca.clone_from(&ca);
    })
}

#[tokio::test]
async fn a_certificate_of_the_entrys_own_authority_is_trusted() {
    let (acceptor, file) = certificate("127.0.0.1");
    let spec = secure_spec(Some(file.path().to_owned()));
    let mut rig = Rig::with(Setup {
        spec,
        ..Setup::default()
    })
    .await;
    rig.send(1);
    let mut peer = secured(&acceptor, rig.accept().await).await;
    let asked = rig.answered(&mut peer).await;
    assert_eq!(asked.line, "POST /api/mcp?k=v HTTP/1.1");
    // The connection is kept, as any other.
    rig.send(2);
    rig.answered(&mut peer).await;
    drop(peer);
    heard_by_the_runtime().await;
    rig.send(3);
    let mut peer = secured(&acceptor, rig.accept().await).await;
    rig.answered(&mut peer).await;
}

#[tokio::test]
async fn a_certificate_that_cannot_be_trusted_says_why_and_nothing_was_sent() {
    let (acceptor, file) = certificate("elsewhere.example");
    for (ca, says) in [
        (None, "springline.ca"),
        (Some(file.path().to_owned()), "another host name"),
        (Some("/nonexistent/ca.pem".into()), "could not be read"),
    ] {
        let spec = secure_spec(ca);
        let mut rig = Rig::with(Setup {
            spec,
            ..Setup::default()
        })
        .await;
        rig.send(1);
        let peer = rig.accept().await;
        let (_, cause) = tokio::join!(acceptor.accept(peer.stream), rig.unsent());
        assert!(cause.contains(says), "{cause}");
    }
    let spec = secure_spec(None);
    let mut rig = Rig::with(Setup {
        spec,
        ..Setup::default()
    })
    .await;
    rig.send(1);
    let mut peer = rig.accept().await;
    peer.write("HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let cause = rig.unsent().await;
    assert!(cause.contains("does not speak TLS"), "{cause}");
}

/// A rig whose listener is the proxy of `https://up.example`.
async fn proxied(scheme: &'static str, ca: Option<std::path::PathBuf>, except: &str) -> Rig {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = format!("http://me:hush@{}", listener.local_addr().unwrap());
    let except = except.to_owned();
    let setup = Setup {
        proxies: ProxyEnv::read(|name| match name {
            "ALL_PROXY" => Some(proxy.clone()),
            "NO_PROXY" => Some(except.clone()),
            _ => None,
        }),
        spec: Box::new(move |spec| {
            spec.url = format!("{scheme}://up.example/mcp").parse().unwrap();
            spec.ca.clone_from(&ca);
        }),
        ..Setup::default()
    };
    Rig::on(listener, setup)
}

#[tokio::test]
async fn a_secure_server_is_reached_through_a_tunnel() {
    let (acceptor, file) = certificate("up.example");
    let mut rig = proxied("https", Some(file.path().to_owned()), "").await;
    rig.send(1);
    let mut peer = rig.accept().await;
    let asked = peer.request().await;
    assert_eq!(asked.line, "CONNECT up.example:443 HTTP/1.1");
    assert_eq!(asked.header("host"), Some("up.example:443"));
    assert_eq!(
        asked.header("proxy-authorization"),
        Some("Basic bWU6aHVzaA==")
    );
    peer.write("HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n")
        .await;
    let mut peer = secured(&acceptor, peer).await;
    let asked = rig.answered(&mut peer).await;
    assert_eq!(asked.line, "POST /mcp HTTP/1.1");
    assert_eq!(asked.header("host"), Some("up.example"));
    assert_eq!(asked.header("proxy-authorization"), None);
}

#[tokio::test]
async fn a_proxy_that_refuses_is_named_and_nothing_was_sent() {
    let mut rig = proxied("https", None, "").await;
    rig.send(1);
    let mut peer = rig.accept().await;
    peer.request().await;
    peer.reply("407 Proxy Authentication Required", "", "no")
        .await;
    let cause = rig.unsent().await;
    assert!(
        cause.contains("407") && cause.contains("credentials"),
        "{cause}"
    );
    assert!(!cause.contains("hush"), "{cause}");
}

#[tokio::test]
async fn a_plain_server_is_asked_for_by_its_whole_url() {
    let mut rig = proxied("http", None, "").await;
    rig.send(1);
    let mut peer = rig.accept().await;
    let asked = rig.answered(&mut peer).await;
    assert_eq!(asked.line, "POST http://up.example/mcp HTTP/1.1");
    assert_eq!(asked.header("host"), Some("up.example"));
    assert_eq!(
        asked.header("proxy-authorization"),
        Some("Basic bWU6aHVzaA==")
    );
}

#[tokio::test]
async fn loopback_and_exceptions_go_around_the_proxy() {
    let proxies = ProxyEnv::read(|name| (name == "ALL_PROXY").then(|| "127.0.0.1:1".to_owned()));
    let mut rig = Rig::with(Setup {
        proxies,
        ..Setup::default()
    })
    .await;
    rig.send(1);
    let mut peer = rig.accept().await;
    assert_eq!(
        rig.answered(&mut peer).await.line,
        "POST /api/mcp?k=v HTTP/1.1"
    );
    // A name under `.example` does not exist, so going there directly cannot succeed.
    let mut rig = proxied("http", None, "up.example").await;
    rig.send(1);
    let cause = rig.unsent().await;
    assert!(cause.contains("up.example"), "{cause}");
}
