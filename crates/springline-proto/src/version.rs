//! The revisions of MCP that Springline speaks, and what differs between them.
//!
//! Era is data: a binding holds a [`Version`], and rules ask it questions; nothing copies an era
//! from one hop to the other.

/// A revision of the legacy era (initialize handshake), oldest first.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Version {
    /// 2024-11-05.
    V2024_11_05,
    /// 2025-03-26.
    V2025_03_26,
    /// 2025-06-18.
    V2025_06_18,
    /// 2025-11-25.
    V2025_11_25,
}

impl Version {
    /// All revisions, oldest first.
    pub const ALL: [Self; 4] = [
        Self::V2024_11_05,
        Self::V2025_03_26,
        Self::V2025_06_18,
        Self::V2025_11_25,
    ];

    /// The revision that we offer when a client asks for one that we do not know.
    pub const LATEST: Self = Self::V2025_11_25;

    /// The revision that a server assumes of a request without the header
    /// (2025-06-18 basic/transports, protocol version header).
    pub const ASSUMED: Self = Self::V2025_03_26;

    /// Parses the text of `protocolVersion` or of the `MCP-Protocol-Version` header.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|version| version.as_str() == text)
    }

    /// The text on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
        }
    }

    /// Whether the `MCP-Protocol-Version` header goes on requests after the handshake.
    pub fn has_version_header(self) -> bool {
        self >= Self::V2025_06_18
    }

    /// Whether streams open with a priming event and may be polled (2025-11-25 basic/transports).
    pub fn has_priming_event(self) -> bool {
        self >= Self::V2025_11_25
    }

    /// Whether a server of this revision may offer the standalone GET stream.
    pub fn has_get_stream(self) -> bool {
        self >= Self::V2025_03_26
    }
}
