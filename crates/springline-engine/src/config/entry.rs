//! One server entry: its text, what it means now, and what it means when it is read again.
//!
//! Owns the reading of an entry and of its `springline` block. A fault in an entry stays in the
//! entry: it must not know of any other.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use springline_proto::settings::{ReplayPolicy, StateLossPolicy};

use super::build::Parts;
use super::default::{DECLARATIONS, Home, declaration};
use super::definition::{Definition, RESERVED_HEADERS};
use super::document::{Node, Value, refuse_duplicates};
use super::env_file;
use super::environment::Environment;
use super::expand::Expander;
use super::identity::Identity;
use super::nearest::nearest;
use super::place::{EntryError, Note, Place, Problem, ProblemKind};
use super::secret::Secret;
use super::setting::Settings;
use super::value::{Given, Layer, read_block, read_member};

/// A server entry.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub place: Place,
    /// Whether the operator switched it off.
    pub disabled: bool,
    /// How the server is reached, or why that is not known.
    pub definition: Result<Definition, EntryError>,
    /// How its calls are treated. The defaults if the entry is refused.
    pub options: EntryOptions,
    /// The entry whose second name this is.
    pub alias_of: Option<String>,
    /// The entry as it was written; of a second name: the other entry.
    raw: RawEntry,
}

/// An entry as it was written, before any variable is replaced. It may hold secrets: there is no
/// way to see it from outside.
#[derive(Clone, Debug)]
struct RawEntry {
    node: Node,
    /// The folder of the file in which it stands.
    folder: Arc<Path>,
}

/// What an instance of a server belongs to.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Scope {
    /// One instance for each client session.
    #[default]
    Session,
    /// One instance for all of them.
    Global,
}

/// How the calls of one entry are treated. All of it may change while instances live.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EntryOptions {
    /// What an instance belongs to.
    pub scope: Scope,
    /// Which refused calls are sent once more.
    pub replay: ReplayPolicy,
    /// Tools that may be run again when it is unknown whether they ran.
    pub safe_tools: Vec<String>,
    /// What a client learns of lost state.
    pub on_state_loss: StateLossPolicy,
    /// Time to start and shake hands.
    pub start_timeout: Duration,
    /// Silence on a call after which it is given up.
    pub call_timeout: Duration,
    /// The longest that a call may take.
    pub call_timeout_max: Duration,
    /// How long a refused connection is tried again; may be zero.
    pub reconnect_wait: Duration,
    /// How long an instance without calls is kept; `None` while a client is attached.
    pub idle_timeout: Option<Duration>,
}

impl EntryOptions {
    /// The options of an entry that says nothing.
    pub fn from_settings(settings: &Settings) -> EntryOptions {
        EntryOptions {
            scope: Scope::default(),
            replay: ReplayPolicy::default(),
            safe_tools: Vec::new(),
            on_state_loss: StateLossPolicy::default(),
            start_timeout: settings.start_timeout,
            call_timeout: settings.call_timeout,
            call_timeout_max: settings.call_timeout_max,
            reconnect_wait: settings.reconnect_wait,
            idle_timeout: None,
        }
    }

    fn apply(&mut self, block: &Layer) -> Result<(), Problem> {
        for (key, (place, given)) in block {
            match (*key, given) {
                ("scope", Given::Text(text)) => {
                    self.scope = match text.as_str() {
                        "session" => Scope::Session,
                        "global" => Scope::Global,
                        _ => {
                            return Err(Problem::new(
                                ProblemKind::Unavailable,
                                place,
                                format!("scope \"{text}\" comes in a later version"),
                                "write \"session\" or \"global\", or remove the key",
                            ));
                        }
                    };
                }
                ("replay", Given::Text(text)) => {
                    self.replay = match text.as_str() {
                        "annotated" => ReplayPolicy::Annotated,
                        "never" => ReplayPolicy::Never,
                        _ => ReplayPolicy::AfterSessionLoss,
                    };
                }
                ("onStateLoss", Given::Text(text)) => {
                    self.on_state_loss = match text.as_str() {
                        "hide" => StateLossPolicy::Hide,
                        "fail" => StateLossPolicy::Fail,
                        _ => StateLossPolicy::Notify,
                    };
                }
                ("safeTools", Given::List(tools)) => self.safe_tools.clone_from(tools),
                ("startTimeout", Given::Duration(time)) => self.start_timeout = *time,
                ("callTimeout", Given::Duration(time)) => self.call_timeout = *time,
                ("callTimeoutMax", Given::Duration(time)) => self.call_timeout_max = *time,
                ("reconnectWait", Given::Duration(time)) => self.reconnect_wait = *time,
                ("idleTimeout", Given::Duration(time)) => self.idle_timeout = Some(*time),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Entry {
    /// An entry that was never in a file, for a gateway of one server.
    pub fn synthetic(name: &str, definition: Definition, options: EntryOptions) -> Entry {
        let node = Node {
            place: Place::Whole,
            value: Value::Null,
        };
        Entry {
            name: name.to_owned(),
            place: Place::Whole,
            disabled: false,
            definition: Ok(definition),
            options,
            alias_of: None,
            raw: RawEntry {
                node,
                folder: Arc::from(Path::new("")),
            },
        }
    }

    /// Reads an entry. Nothing that is wrong with it is lost: it becomes `definition`.
    pub(crate) fn read(
        name: &str,
        node: Node,
        folder: Arc<Path>,
        settings: &Settings,
        environment: &dyn Environment,
    ) -> Entry {
        let raw = RawEntry { node, folder };
        let defaults = EntryOptions::from_settings(settings);
        let alias = raw.alias(environment);
        let resolved = match &alias {
            Ok(None) => raw.resolve(defaults.clone(), environment),
            // Until `become_second_name`.
            Ok(Some(target)) => Err(Problem::invalid(
                &raw.node.place,
                format!("there is no server `{target}`"),
                "name another entry in `aliasOf`",
            )),
            Err(problem) => Err(problem.clone()),
        };
        let (definition, options) = match resolved {
            Ok((definition, options)) => (Ok(definition), options),
            Err(problem) => (Err(problem), defaults),
        };
        Entry {
            name: name.to_owned(),
            place: raw.node.place.clone(),
            disabled: raw.disabled(environment),
            definition,
            options,
            alias_of: alias.unwrap_or_default(),
            raw,
        }
    }

    /// The name under which its instances are known where several sessions use them: its own, or
    /// that of the entry whose second name it is.
    pub fn instance_name(&self) -> &str {
        self.alias_of.as_deref().unwrap_or(&self.name)
    }

    /// Takes what the other entry says, of which this is a second name.
    pub(crate) fn become_second_name(&mut self, other: &Entry) {
        if other.alias_of.is_some() {
            let first = other.alias_of.as_deref().unwrap_or_default();
            self.definition = Err(Problem::invalid(
                &self.place,
                format!("`{}` is a second name itself", other.name),
                format!("write `\"aliasOf\": \"{first}\"`"),
            ));
            return;
        }
        self.definition.clone_from(&other.definition);
        self.options = other.options.clone();
        self.raw = other.raw.clone();
    }

    /// The definition that the same text makes now: variables and files are read again. Blocks on
    /// the disk. After a refused credential, compare the result with `definition`.
    pub fn re_expand(&self, environment: &dyn Environment) -> Result<Definition, EntryError> {
        if self.raw.node.value == Value::Null {
            return self.definition.clone();
        }
        self.raw
            .resolve(self.options.clone(), environment)
            .map(|(definition, _)| definition)
    }

    /// The digest of everything that reaches the server; `None` for a refused entry.
    pub fn identity(&self, key: &[u8]) -> Option<Identity> {
        let definition = self.definition.as_ref().ok()?;
        Some(Identity::of_definition(definition, key))
    }

    /// The digest of the text behind [`Entry::identity`]. Where it is equal and the identity is not,
    /// a credential was rotated.
    pub fn text_identity(&self, key: &[u8]) -> Identity {
        Identity::of_text(&self.raw.node, key)
    }

    /// What an operator should know about the entry.
    pub(crate) fn notes(&self) -> Vec<Note> {
        let Value::Object(members) = &self.raw.node.value else {
            return Vec::new();
        };
        let mut notes = Vec::new();
        let mut note = |place: &Place, text: String| {
            notes.push(Note {
                place: place.clone(),
                server: Some(self.name.clone()),
                text,
            });
        };
        for member in members {
            let name = member.name.as_str();
            match (name, &member.node.value) {
                ("springline", _) => {}
                ("enabled", Value::Bool(false)) => {
                    note(
                        &member.place,
                        "`enabled: false` is taken as `disabled: true`".to_owned(),
                    );
                }
                ("headers", Value::Object(headers)) => {
                    for header in headers {
                        if RESERVED_HEADERS.contains(&header.name.to_lowercase().as_str()) {
                            let text = format!(
                                "the header {} is set by Springline itself and ignored here",
                                header.name
                            );
                            note(&header.place, text);
                        }
                    }
                }
                _ if declaration(Home::Entry, name).is_some() => {}
                _ => note(&member.place, ignored(name)),
            }
        }
        notes
    }
}

/// The note for a key of an entry that is not ours.
fn ignored(name: &str) -> String {
    if declaration(Home::Block, name).is_some() {
        return format!("the key `{name}` is ignored here; it belongs into a `springline` block");
    }
    let ours = DECLARATIONS
        .iter()
        .filter(|declared| declared.home == Home::Entry);
    match nearest(name, ours.map(|declared| declared.key)) {
        Some(near) => format!("the key `{name}` is ignored; did you mean `{near}`?"),
        None if name == "timeout" => {
            "the key `timeout` is ignored; see `springline.callTimeout`".to_owned()
        }
        None => format!("the key `{name}` is ignored"),
    }
}

impl RawEntry {
    /// The name in `springline.aliasOf`. Such an entry says nothing else.
    fn alias(&self, environment: &dyn Environment) -> Result<Option<String>, Problem> {
        let block = self.node.member("springline");
        let Some((declared, member)) = declaration(Home::Block, "aliasOf")
            .zip(block.and_then(|block| block.node.member("aliasOf")))
        else {
            return Ok(None);
        };
        let expander = self.expander(environment, None);
        let mut layer = Layer::new();
        read_member(declared, member, &expander, &mut layer)?;
        let Some((_, Given::Text(target))) = layer.get("aliasOf") else {
            return Ok(None);
        };
        let inner = block.map_or(Ok(&[][..]), |block| block.node.members("`springline`"))?;
        refuse_duplicates(inner)?;
        let other = inner.iter().find(|held| held.name != "aliasOf");
        let own =
            self.node.members("the entry")?.iter().find(|held| {
                held.name != "disabled" && declaration(Home::Entry, &held.name).is_some()
            });
        if let Some(other) = own.or(other) {
            return Err(Problem::invalid(
                &other.place,
                format!("`{}` has no meaning beside `aliasOf`", other.name),
                format!("write it at the entry `{target}`"),
            ));
        }
        Ok(Some(target.clone()))
    }

    fn disabled(&self, environment: &dyn Environment) -> bool {
        let Some(declared) = declaration(Home::Entry, "disabled") else {
            return false;
        };
        let mut layer = Layer::new();
        let expander = self.expander(environment, None);
        let given = self.node.member("disabled").and_then(|member| {
            read_member(declared, member, &expander, &mut layer).ok()?;
            layer.get("disabled")
        });
        match given {
            Some((_, Given::Flag(disabled))) => *disabled,
            _ => self
                .node
                .member("enabled")
                .is_some_and(|member| member.node.value == Value::Bool(false)),
        }
    }

    fn expander<'a>(
        &'a self,
        environment: &'a dyn Environment,
        entry: Option<&'a IndexMap<String, Secret>>,
    ) -> Expander<'a> {
        Expander {
            environment,
            folder: &self.folder,
            entry,
        }
    }

    /// Reads the text with the environment as it is now.
    fn resolve(
        &self,
        mut options: EntryOptions,
        environment: &dyn Environment,
    ) -> Result<(Definition, EntryOptions), Problem> {
        let members = self.node.members("the entry")?;
        let env_file = self.env_file(environment)?;
        let expander = self.expander(environment, Some(&env_file));
        let mut entry = Layer::new();
        let mut block = Layer::new();
        for member in members {
            // The file was read before everything that may refer to it.
            let declared = declaration(Home::Entry, &member.name);
            if let Some(declared) = declared.filter(|declared| declared.key != "envFile") {
                if let Value::Object(inner) = &member.node.value {
                    refuse_duplicates(inner)?;
                }
                read_member(declared, member, &expander, &mut entry)?;
            } else if member.name == "springline" && member.node.value != Value::Null {
                let inner = member.node.members("`springline`")?;
                read_block(inner, Home::Block, "", &expander, &mut block)?;
            }
        }
        options.apply(&block)?;
        let parts = Parts {
            node: &self.node,
            entry: &entry,
            block: &block,
            env_file: &env_file,
            expander: &expander,
        };
        Ok((parts.build()?, options))
    }

    fn env_file(&self, environment: &dyn Environment) -> Result<IndexMap<String, Secret>, Problem> {
        let declared = declaration(Home::Entry, "envFile").zip(self.node.member("envFile"));
        let Some((declared, member)) = declared else {
            return Ok(IndexMap::new());
        };
        let mut layer = Layer::new();
        let expander = self.expander(environment, None);
        read_member(declared, member, &expander, &mut layer)?;
        let Some((place, Given::Path(path))) = layer.get("envFile") else {
            return Ok(IndexMap::new());
        };
        let shown = member.node.shown_path(path);
        let text = expander.text(path, &shown, place)?;
        env_file::parse(Path::new(&shown), &text)
    }
}
