//! What either side of the socket says first.
//!
//! Owns the JSON of the hellos; members that it does not know are passed over. It must not know
//! frames. The protocol is described in `docs/socket-protocol.md`.

use std::fmt;

use bytes::Bytes;
use serde_json::{Map, Value};
use springline_proto::session::{Comeback, Fate, Welcome};

/// The secret by which a client names the session that it comes back to.
#[derive(Clone, Eq, PartialEq)]
pub struct Token(Box<str>);

impl Token {
    /// A token of this text.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// The text. A secret.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// What the client says first.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ClientHello {
    /// The session that it comes back to.
    pub session: Option<Token>,
    /// What it knows of that session.
    pub comeback: Comeback,
}

/// What the gateway says first.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GatewayHello {
    /// Whether this is the session that the client named.
    pub is_resumed: bool,
    /// By what to name this session later; none if it cannot be resumed.
    pub session: Option<Token>,
    /// Where to go on.
    pub welcome: Welcome,
}

const FATES: [(Fate, &str); 3] = [
    (Fate::NotSent, "notSent"),
    (Fate::Sent, "sent"),
    (Fate::Lost, "lost"),
];

impl ClientHello {
    /// The hello as JSON.
    pub fn to_json(&self) -> Bytes {
        let mut text = Map::new();
        text.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
        if let Some(token) = &self.session {
            text.insert("session".to_owned(), token.as_str().into());
            text.insert("received".to_owned(), self.comeback.received.into());
            text.insert("pending".to_owned(), self.comeback.pending.clone().into());
        }
        Value::Object(text).to_string().into()
    }

    /// Reads what [`Self::to_json`] wrote; what is missing or odd counts as not said.
    pub fn parse(json: &[u8]) -> Self {
        let text: Value = serde_json::from_slice(json).unwrap_or_default();
        Self {
            session: token(&text),
            comeback: Comeback {
                received: text["received"].as_u64().unwrap_or(0),
                pending: numbers(&text["pending"]),
            },
        }
    }
}

impl GatewayHello {
    /// The hello as JSON.
    pub fn to_json(&self) -> Bytes {
        let mut text = Map::new();
        text.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
        text.insert("resumed".to_owned(), self.is_resumed.into());
        if let Some(token) = &self.session {
            text.insert("session".to_owned(), token.as_str().into());
        }
        text.insert("received".to_owned(), self.welcome.taken.into());
        for (fate, name) in FATES {
            let fates = self.welcome.fates.iter();
            let frames: Vec<u64> = fates
                .filter(|(_, of)| *of == fate)
                .map(|(frame, _)| *frame)
                .collect();
            if !frames.is_empty() {
                text.insert(name.to_owned(), frames.into());
            }
        }
        Value::Object(text).to_string().into()
    }

    /// Reads what [`Self::to_json`] wrote; what is missing or odd counts as not said.
    pub fn parse(json: &[u8]) -> Self {
        let text: Value = serde_json::from_slice(json).unwrap_or_default();
        let fates = FATES
            .iter()
            .flat_map(|(fate, name)| numbers(&text[*name]).into_iter().map(|of| (of, *fate)))
            .collect();
        Self {
            is_resumed: text["resumed"] == true,
            session: token(&text),
            welcome: Welcome {
                taken: text["received"].as_u64().unwrap_or(0),
                fates,
            },
        }
    }
}

fn token(text: &Value) -> Option<Token> {
    text["session"].as_str().map(Token::new)
}

fn numbers(list: &Value) -> Vec<u64> {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_u64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_reads_back_and_shows_its_token_to_nobody() {
        let client = ClientHello {
            session: Some(Token::new("secret")),
            comeback: Comeback {
                received: 7,
                pending: vec![3, 9],
            },
        };
        assert_eq!(ClientHello::parse(&client.to_json()), client);
        assert!(!format!("{client:?}").contains("secret"));
        let gateway = GatewayHello {
            is_resumed: true,
            session: Some(Token::new("secret")),
            welcome: Welcome {
                taken: 9,
                fates: vec![(3, Fate::NotSent), (9, Fate::Lost)],
            },
        };
        assert_eq!(GatewayHello::parse(&gateway.to_json()), gateway);
    }

    #[test]
    fn an_odd_hello_says_nothing() {
        for odd in ["", "{", "[]", r#"{"session":1,"received":-1,"pending":{}}"#] {
            assert_eq!(ClientHello::parse(odd.as_bytes()), ClientHello::default());
            assert!(!GatewayHello::parse(odd.as_bytes()).is_resumed);
        }
    }
}
