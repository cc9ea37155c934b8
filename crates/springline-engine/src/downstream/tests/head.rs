//! Hosts, origins, credentials and media types.

use http::HeaderMap;
use springline_proto::session::Accept;

use super::script::{House, initialize, uid};
use crate::downstream::guard::{self, Announced, Arrival, PlaceError};
use crate::downstream::{HttpSettings, Principal, Token};

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        map.append(*name, value.parse().unwrap());
    }
    map
}

#[test]
fn loopback_listeners_take_loopback_hosts_and_the_configured_ones() {
    let settings = HttpSettings {
        allowed_hosts: vec!["gw.example.net".into(), "other.example:8443".into()],
        ..HttpSettings::default()
    };
    let check =
        |host: &str| guard::check_place(&headers(&[("host", host)]), Arrival::Loopback, &settings);
    for host in [
        "localhost",
        "LocalHost:1",
        "127.0.0.1:7333",
        "127.0.0.2:7333",
        "[::1]:8080",
        "[::1]",
        "gw.example.net",
        "GW.example.net:443",
        "other.example:8443",
    ] {
        assert_eq!(check(host), Ok(()), "{host}");
    }
    for host in [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "128.0.0.1",
        "::1",
        "other.example",
        "other.example:1",
        "localhost:x",
        "user@localhost",
        "",
        "[::1",
        "[::1]x",
        "localhost:99999",
    ] {
        assert_eq!(check(host), Err(PlaceError::Host), "{host}");
    }
    assert_eq!(
        guard::check_place(&HeaderMap::new(), Arrival::Loopback, &settings),
        Err(PlaceError::Host)
    );
    let twice = headers(&[("host", "localhost"), ("host", "localhost")]);
    assert_eq!(
        guard::check_place(&twice, Arrival::Loopback, &settings),
        Err(PlaceError::Host)
    );
}

#[test]
fn other_listeners_check_hosts_only_against_a_list() {
    let host = headers(&[("host", "gw.example.net")]);
    let open = HttpSettings::default();
    assert_eq!(guard::check_place(&host, Arrival::Network, &open), Ok(()));
    let listed = HttpSettings {
        allowed_hosts: vec!["a.example".into()],
        ..open
    };
    assert_eq!(
        guard::check_place(&host, Arrival::Network, &listed),
        Err(PlaceError::Host)
    );
    assert_eq!(guard::check_place(&host, uid(1), &listed), Ok(()));
}

#[test]
fn a_request_line_that_names_a_host_is_held_to_the_same_rule() {
    let settings = HttpSettings::default();
    let check = |target: &str, arrival| {
        guard::check_authority(&target.parse().unwrap(), arrival, &settings)
    };
    for target in ["/mcp", "http://localhost:7333/mcp", "http://[::1]/mcp"] {
        assert_eq!(check(target, Arrival::Loopback), Ok(()), "{target}");
    }
    for target in ["http://evil.example/mcp", "http://localhost@evil.example/"] {
        let refused = check(target, Arrival::Loopback);
        assert_eq!(refused, Err(PlaceError::Host), "{target}");
        assert_eq!(check(target, uid(1)), Ok(()), "{target}");
    }
}

#[test]
fn origins_are_checked_everywhere() {
    let settings = HttpSettings {
        allowed_origins: vec!["https://app.example".into()],
        ..HttpSettings::default()
    };
    for arrival in [Arrival::Loopback, Arrival::Network, uid(1)] {
        let check = |origin: &str| {
            guard::check_place(
                &headers(&[("host", "localhost"), ("origin", origin)]),
                arrival,
                &settings,
            )
        };
        for origin in [
            "http://localhost:6274",
            "https://127.0.0.1",
            "http://[::1]:3000",
            "https://app.example",
        ] {
            assert_eq!(check(origin), Ok(()), "{origin}");
        }
        for origin in [
            "https://evil.example",
            "null",
            "http://localhost.evil.example",
            "file://localhost",
            "http://app.example",
            "https://app.example:8443",
            "",
        ] {
            assert_eq!(check(origin), Err(PlaceError::Origin), "{origin}");
        }
    }
}

#[test]
fn a_token_is_matched_whole_and_names_its_principal() {
    let settings = HttpSettings {
        tokens: vec![Token::new("laptop", "s3cret"), Token::new("phone", "other")],
        ..HttpSettings::default()
    };
    let judge = |value: &str| {
        guard::principal(
            &headers(&[("authorization", value)]),
            Arrival::Loopback,
            &settings,
        )
    };
    assert_eq!(
        judge("Bearer s3cret"),
        Some(Principal::Token("laptop".into()))
    );
    assert_eq!(
        judge("bearer  other"),
        Some(Principal::Token("phone".into()))
    );
    for wrong in [
        "Bearer s3cre",
        "Bearer s3crett",
        "Bearer ",
        "Basic s3cret",
        "s3cret",
        "Bearer S3CRET",
    ] {
        assert_eq!(judge(wrong), None, "{wrong}");
    }
    assert_eq!(
        guard::principal(&HeaderMap::new(), Arrival::Network, &settings),
        None
    );
    assert_eq!(
        guard::principal(&HeaderMap::new(), uid(7), &settings),
        Some(Principal::Uid(7))
    );
    assert!(!format!("{settings:?}").contains("s3cret"));
}

#[test]
fn media_types_are_parsed_not_compared() {
    for (value, announced) in [
        ("application/json", Announced::Json),
        ("Application/JSON; charset=utf-8", Announced::Json),
        ("application/json;charset=UTF-8", Announced::Json),
        (
            "application/json; Charset=\"us-ascii\"; a=b",
            Announced::Json,
        ),
        ("application/json; charset=utf-16", Announced::OtherCharset),
        (
            "application/json;a=b;charset=latin1",
            Announced::OtherCharset,
        ),
        ("application/json; charset", Announced::OtherCharset),
        ("text/plain", Announced::Other),
        ("application/jsonp", Announced::Other),
    ] {
        let headers = headers(&[("content-type", value)]);
        assert_eq!(guard::announced(&headers), announced, "{value}");
    }
    assert_eq!(guard::announced(&HeaderMap::new()), Announced::Other);
    for (value, accept) in [
        ("application/json, text/event-stream", Some(Accept::Both)),
        (
            "text/event-stream;q=0.9, Application/JSON;q=0.1",
            Some(Accept::Both),
        ),
        ("*/*", Some(Accept::Both)),
        ("application/json", Some(Accept::Json)),
        ("application/*", Some(Accept::Json)),
        (
            "application/json, text/event-stream;q=0",
            Some(Accept::Json),
        ),
        ("text/event-stream", None),
        ("text/html", None),
        ("", None),
    ] {
        assert_eq!(
            guard::accept_post(&headers(&[("accept", value)])),
            accept,
            "{value}"
        );
    }
    assert_eq!(guard::accept_post(&HeaderMap::new()), Some(Accept::Both));
    let two = headers(&[
        ("accept", "application/json"),
        ("accept", "text/event-stream"),
    ]);
    assert_eq!(guard::accept_post(&two), Some(Accept::Both));
}

#[tokio::test]
async fn a_foreign_host_or_origin_gets_403_that_names_the_setting() {
    let house = House::open(HttpSettings::default()).await;
    let reply = house
        .post(&["Host: evil.example"], &initialize("2025-11-25"))
        .await;
    assert!(reply.refusal(403, -32600, None).contains("allowedHosts"));
    let reply = house
        .post(&["Origin: https://evil.example"], &initialize("2025-11-25"))
        .await;
    assert!(reply.refusal(403, -32600, None).contains("allowedOrigins"));
    assert_eq!(house.script.opened(), 0);
}

#[tokio::test]
async fn a_missing_or_wrong_token_gets_401_before_anything_else_is_judged() {
    let tokens = vec![Token::new("laptop", "one"), Token::new("phone", "two")];
    let house = House::open(HttpSettings {
        tokens,
        ..HttpSettings::default()
    })
    .await;
    for auth in [&[][..], &["Authorization: Bearer wrong"][..]] {
        let reply = house.ask("POST /mcp", auth, "x").await;
        reply.refusal(401, -32600, None);
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
    }
    let session = house
        .session(&["Authorization: Bearer one"], "2025-11-25")
        .await;
    assert_eq!(
        house.script.principal("s-1"),
        Principal::Token("laptop".into())
    );
    let ping = r#"{"jsonrpc":"2.0","id":5,"method":"ping"}"#;
    let stolen = house
        .post(&["Authorization: Bearer two", &session], ping)
        .await;
    let unknown = house
        .post(&["Authorization: Bearer two", "Mcp-Session-Id: s-9"], ping)
        .await;
    stolen.refusal(404, -32001, Some(5.into()));
    let without_date = |reply: &super::script::Reply| {
        let mut headers = reply.headers.clone();
        headers.retain(|(name, _)| name != "date");
        (reply.status, headers, reply.body.clone())
    };
    assert_eq!(without_date(&stolen), without_date(&unknown));
}

#[tokio::test]
async fn browsers_are_answered_with_cors_only_when_it_is_on() {
    let preflight = [
        "Origin: https://app.example",
        "Access-Control-Request-Method: POST",
    ];
    let settings = HttpSettings {
        allowed_origins: vec!["https://app.example".into()],
        ..HttpSettings::default()
    };
    let house = House::open(settings.clone()).await;
    let reply = house.ask("OPTIONS /mcp", &preflight, "").await;
    assert_eq!(
        (reply.status, reply.header("access-control-allow-origin")),
        (204, None)
    );
    let house = House::open(HttpSettings {
        cors: true,
        ..settings
    })
    .await;
    let reply = house.ask("OPTIONS /mcp/time", &preflight, "").await;
    assert_eq!(reply.status, 204);
    assert_eq!(
        reply.header("access-control-allow-origin"),
        Some("https://app.example")
    );
    assert!(
        reply
            .header("access-control-allow-headers")
            .unwrap()
            .contains("Mcp-Session-Id")
    );
    let reply = house.post(&preflight[..1], &initialize("2025-11-25")).await;
    assert!(
        reply
            .header("access-control-expose-headers")
            .unwrap()
            .contains("Mcp-Session-Id")
    );
    let reply = house.post(&[], &initialize("2025-11-25")).await;
    assert_eq!(reply.header("access-control-allow-origin"), None);
}
