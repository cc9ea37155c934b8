//! The methods of MCP: which may be sent again, and what the gateway does with each.

use crate::message::Message;

/// What may be done with a request whose outcome is unknown (DESIGN.md section 5, replay classes).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReplayClass {
    /// Only reads, or sets what is already so: may be sent again.
    Safe,
    /// May have a side effect: sent again only if it was provably not executed (I4).
    Unsafe,
}

/// A method that some part of the gateway treats by itself. Others are [`Method::Other`] and pass.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[expect(missing_docs, reason = "each variant is the method of that name")]
pub enum Method {
    Initialize,
    Initialized,
    Ping,
    Cancelled,
    Progress,
    Message,
    ToolsList,
    ToolsCall,
    ToolsChanged,
    PromptsList,
    PromptsGet,
    PromptsChanged,
    ResourcesList,
    TemplatesList,
    ResourcesRead,
    Subscribe,
    Unsubscribe,
    ResourcesChanged,
    ResourceUpdated,
    SetLevel,
    Complete,
    RootsList,
    RootsChanged,
    CreateMessage,
    Elicit,
    ElicitComplete,
    Other,
}

const NAMES: [(Method, &str); 26] = [
    (Method::ToolsCall, "tools/call"),
    (Method::ToolsList, "tools/list"),
    (Method::Progress, "notifications/progress"),
    (Method::Message, "notifications/message"),
    (Method::Cancelled, "notifications/cancelled"),
    (Method::Ping, "ping"),
    (Method::Initialize, "initialize"),
    (Method::Initialized, "notifications/initialized"),
    (Method::ToolsChanged, "notifications/tools/list_changed"),
    (Method::PromptsList, "prompts/list"),
    (Method::PromptsGet, "prompts/get"),
    (Method::PromptsChanged, "notifications/prompts/list_changed"),
    (Method::ResourcesList, "resources/list"),
    (Method::TemplatesList, "resources/templates/list"),
    (Method::ResourcesRead, "resources/read"),
    (Method::Subscribe, "resources/subscribe"),
    (Method::Unsubscribe, "resources/unsubscribe"),
    (
        Method::ResourcesChanged,
        "notifications/resources/list_changed",
    ),
    (Method::ResourceUpdated, "notifications/resources/updated"),
    (Method::SetLevel, "logging/setLevel"),
    (Method::Complete, "completion/complete"),
    (Method::RootsList, "roots/list"),
    (Method::RootsChanged, "notifications/roots/list_changed"),
    (Method::CreateMessage, "sampling/createMessage"),
    (Method::Elicit, "elicitation/create"),
    (Method::ElicitComplete, "notifications/elicitation/complete"),
];

impl Method {
    /// The method of a message; [`Method::Other`] if it has none.
    pub fn of(message: &Message) -> Self {
        let literal = message.envelope().method;
        let literal = literal.map(|span| span.of(message.bytes()));
        // A name that is spelled as it is, as nearly all are, needs no decoding.
        let inner = literal.and_then(|literal| literal.get(1..literal.len().saturating_sub(1)));
        match inner {
            Some(inner) if !inner.contains(&b'\\') => NAMES
                .iter()
                .find(|(_, text)| text.as_bytes() == inner)
                .map_or(Self::Other, |(method, _)| *method),
            _ => message
                .method()
                .map_or(Self::Other, |name| Self::parse(&name)),
        }
    }

    /// The method of this name.
    pub fn parse(name: &str) -> Self {
        NAMES
            .iter()
            .find(|(_, text)| *text == name)
            .map_or(Self::Other, |(method, _)| *method)
    }

    /// The name on the wire; empty for [`Method::Other`].
    pub fn as_str(self) -> &'static str {
        NAMES
            .iter()
            .find(|(method, _)| *method == self)
            .map_or("", |(_, text)| text)
    }

    /// The replay class of a request of this method. An unknown one counts as unsafe.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "unknown and new methods are unsafe"
    )]
    pub fn replay_class(self) -> ReplayClass {
        match self {
            Self::Ping
            | Self::ToolsList
            | Self::PromptsList
            | Self::PromptsGet
            | Self::ResourcesList
            | Self::TemplatesList
            | Self::ResourcesRead
            | Self::Subscribe
            | Self::Unsubscribe
            | Self::SetLevel
            | Self::Complete => ReplayClass::Safe,
            _ => ReplayClass::Unsafe,
        }
    }

    /// Whether a request is more than a look at what a server offers. Lists, the log level and pings
    /// leave nothing in a server that its next instance would not have.
    pub(crate) fn is_use(self) -> bool {
        ListKind::of(self).is_none() && !matches!(self, Self::Ping | Self::SetLevel)
    }
}

/// A kind of list that a server has and may announce changes of.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum ListKind {
    /// `tools/list`.
    Tools,
    /// `prompts/list`.
    Prompts,
    /// `resources/list`.
    Resources,
    /// `resources/templates/list`; its changes are announced as those of resources.
    Templates,
}

impl ListKind {
    /// All kinds, in the order in which they are read again after a recovery.
    pub const ALL: [Self; 4] = [Self::Tools, Self::Prompts, Self::Resources, Self::Templates];

    /// The request that reads this list.
    pub fn method(self) -> Method {
        match self {
            Self::Tools => Method::ToolsList,
            Self::Prompts => Method::PromptsList,
            Self::Resources => Method::ResourcesList,
            Self::Templates => Method::TemplatesList,
        }
    }

    /// The list that this method reads.
    pub fn of(method: Method) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.method() == method)
    }

    /// The notification that announces a change of this list.
    pub fn changed(self) -> Method {
        match self {
            Self::Tools => Method::ToolsChanged,
            Self::Prompts => Method::PromptsChanged,
            Self::Resources | Self::Templates => Method::ResourcesChanged,
        }
    }

    /// The member of the result that holds the items.
    pub fn items(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        }
    }

    /// The member of `capabilities` under which a server declares it.
    pub fn capability(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources | Self::Templates => "resources",
        }
    }
}
