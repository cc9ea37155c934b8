//! `springline bridge`: stdio to one server, with the gateway's engine inside this process.
//!
//! Owns: the life of the one session. It must not know transports: the engine picks them by the
//! definition of the server.

use springline_engine::downstream::{Gate, Parts as _, Principal, Session as _, socket};
use springline_proto::session::{Downstream, Endpoint, Part};

use crate::stdio::{Deaf, Front, Heard};

/// Carries one session between the client in front and a gate, until either side ends: the client
/// by the end of its input, and then its calls in flight finish.
///
/// # Errors
/// [`Deaf`] when the client stopped reading first; nothing more can be said to it.
pub async fn carry<G: Gate>(gate: &G, endpoint: Endpoint, front: &mut Front) -> Result<(), Deaf> {
    let principal = Principal::Uid(socket::own_uid());
    let session = match gate.open(&principal, endpoint, Downstream::Pipe) {
        Ok(session) => session,
        Err(error) => {
            front.complain(&error.to_string());
            return Err(Deaf);
        }
    };
    let mut parts = session.pipe();
    let carried = loop {
        if front.is_finished() && !front.is_waiting() {
            break Ok(());
        }
        tokio::select! {
            biased;
            part = parts.next() => match part {
                Some(Part::Event { data, .. }) => {
                    if front.pass(data).await.is_err() {
                        break Err(Deaf);
                    }
                }
                Some(Part::Begin | Part::Accepted | Part::Json(_) | Part::Refuse { .. }) => {}
                Some(Part::End) | None => break Ok(()),
            },
            heard = front.heard() => match heard {
                Heard::Message(message) => session.line(Ok(message)),
                Heard::Malformed(error) => session.line(Err(error)),
                Heard::Finished => {}
                Heard::Deaf => break Err(Deaf),
            },
        }
    };
    if carried.is_ok() {
        drain(&mut parts, front).await?;
    }
    session.close();
    carried
}

/// Passes on what the server has said already.
async fn drain<P: springline_engine::downstream::Parts>(
    parts: &mut P,
    front: &mut Front,
) -> Result<(), Deaf> {
    loop {
        let next = tokio::select! {
            biased;
            part = parts.next() => part,
            () = std::future::ready(()) => return Ok(()),
        };
        match next {
            Some(Part::Event { data, .. }) => front.pass(data).await?,
            Some(_) => {}
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
