//! Session ids, the end of a generation, DELETE.

use super::*;

#[tokio::test]
async fn a_minted_id_is_told_before_the_messages() {
    let mut rig = Rig::new().await;
    rig.send_as(1, Purpose::Initialize, Route::default(), false);
    let mut peer = rig.accept().await;
    peer.request().await;
    let headers = "content-type: application/json\r\nMcp-Session-Id: a~!z\r\n";
    peer.reply("200 OK", headers, ANSWER).await;
    match rig.input().await {
        Input::Minted {
            generation,
            exchange,
            session_id,
        } => {
            assert_eq!(
                (generation, exchange, &*session_id),
                (GEN, ExchangeId(1), "a~!z")
            );
        }
        other => panic!("{other:?}"),
    }
    rig.message().await;
    assert_eq!(rig.end().await, End::Complete);
    // Only the handshake mints.
    rig.send(2);
    peer.request().await;
    peer.reply("200 OK", headers, ANSWER).await;
    rig.message().await;
    assert_eq!(rig.end().await, End::Complete);
}

#[tokio::test]
async fn an_id_that_no_header_may_carry_breaks_the_handshake() {
    let mut rig = Rig::new().await;
    for id in ["a b", "\u{e9}", "", &"x".repeat(1025)] {
        rig.send_as(1, Purpose::Initialize, Route::default(), false);
        let mut peer = rig.accept().await;
        peer.request().await;
        let headers = format!("Content-Type: application/json\r\nMcp-Session-Id: {id}\r\n");
        peer.reply("200 OK", &headers, ANSWER).await;
        assert!(rig.broken().await.contains("session id"));
    }
    rig.send_as(2, Purpose::Initialize, Route::default(), false);
    let mut peer = rig.accept().await;
    peer.request().await;
    peer.reply("500 Internal Server Error", "Mcp-Session-Id: x\r\n", "")
        .await;
    assert!(matches!(rig.end().await, End::Refused(_)));
}

async fn delete_rig(delete_timeout: Duration) -> (Rig, mpsc::UnboundedReceiver<DeleteOutcome>) {
    let (tell, told) = mpsc::unbounded_channel();
    let limits = HttpLimits {
        delete_timeout,
        ..HttpLimits::default()
    };
    let setup = Setup {
        limits,
        deletes: Some(tell),
        ..Setup::default()
    };
    (Rig::with(setup).await, told)
}

#[tokio::test]
async fn the_end_drops_what_runs_and_deletes_once() {
    let (mut rig, mut told) = delete_rig(Duration::from_secs(5)).await;
    rig.send(1);
    let mut call = rig.accept().await;
    call.request().await;
    rig.transport.end(GEN, true, route());
    call.closed().await;
    let mut peer = rig.accept().await;
    let asked = peer.request().await;
    assert_eq!(asked.line, "DELETE /api/mcp?k=v HTTP/1.1");
    assert_eq!(asked.header("mcp-session-id"), Some("s-1"));
    assert_eq!(asked.header("mcp-protocol-version"), Some("2025-06-18"));
    assert_eq!(asked.header("content-length"), None);
    peer.write("HTTP/1.1 204 No Content\r\n\r\n").await;
    assert_eq!(told.recv().await, Some(DeleteOutcome::Done));
    // Nothing more is heard of it, and nothing more is sent for it.
    rig.send(2);
    rig.transport.end(GEN, true, Route::default());
    rig.transport.end(GEN, false, route());
    rig.transport.shut_down().await;
    assert!(rig.heard.try_recv().is_err());
    assert!(told.try_recv().is_err());
}

#[tokio::test]
async fn the_outcome_of_a_delete_is_told_and_waited_for_at_shut_down() {
    let (rig, mut told) = delete_rig(Duration::from_secs(5)).await;
    rig.transport.end(GEN, true, route());
    let mut peer = rig.accept().await;
    peer.request().await;
    peer.reply("405 Method Not Allowed", "", "").await;
    rig.transport.shut_down().await;
    assert_eq!(told.try_recv(), Ok(DeleteOutcome::Refused(405)));
    rig.transport.end(GEN, true, route());
    peer.request().await;
    drop(peer);
    rig.transport.shut_down().await;
    assert!(matches!(told.try_recv(), Ok(DeleteOutcome::Failed(_))));

    let (rig, mut told) = delete_rig(Duration::from_millis(30)).await;
    rig.transport.end(GEN, true, route());
    let mut peer = rig.accept().await;
    peer.request().await;
    rig.transport.shut_down().await;
    assert_eq!(told.try_recv(), Ok(DeleteOutcome::TimedOut));
    peer.closed().await;
}

#[tokio::test]
async fn a_transport_that_is_dropped_drops_its_exchanges() {
    let rig = Rig::new().await;
    rig.send(1);
    let mut peer = rig.accept().await;
    peer.request().await;
    drop(rig.transport);
    peer.closed().await;
}
