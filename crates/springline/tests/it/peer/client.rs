//! Clients that others wrote, in front of the gateway: over HTTP and through `springline connect`,
//! on one server's endpoint and on the one for all.
//!
//! The server behind is the npm server "everything", on both transports.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Everything, command, gateway, program, run, script};
use crate::harness::{Gateway, Ledger, fixture, stdio_entry};

/// A gateway with "everything" on stdio as `local` and on HTTP as `remote`, and the fixture.
struct Place {
    gateway: Gateway,
    ledger: Ledger,
    _remote: Everything,
    _folder: TempDir,
}

impl Place {
    async fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let ledger = folder.path().join("ledger");
        let remote = Everything::start(folder.path()).await;
        let config = json!({ "mcpServers": {
            "local": { "command": program("mcp-server-everything"), "args": ["stdio"] },
            "remote": { "url": remote.url() },
            "fixture": stdio_entry(&ledger, &[]),
        } });
        Self {
            gateway: gateway(config).await,
            ledger: Ledger(ledger),
            _remote: remote,
            _folder: folder,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.gateway.address)
    }

    /// What a client is told that uses one server over HTTP.
    fn one(&self, server: &str) -> Value {
        json!({ "url": self.url(&format!("/mcp/{server}")) })
    }

    /// What a client is told that uses this server on the endpoint for all.
    fn all(&self, server: &str) -> Value {
        let mut plan = names(server);
        plan["url"] = self.url("/mcp").into();
        plan
    }

    /// What a client is told that starts `springline connect`.
    fn connect(&self, server: Option<&str>) -> Value {
        let mut plan = server.map_or_else(|| names("local"), |_| json!({}));
        plan["command"] = env!("CARGO_BIN_EXE_springline").into();
        let mut args = vec!["connect".to_owned()];
        args.extend(server.map(str::to_owned));
        args.extend(self.socket());
        plan["args"] = args.into();
        plan
    }

    fn socket(&self) -> [String; 3] {
        let socket = self.gateway.folder.path().join("run/springline.sock");
        let socket = socket.to_str().unwrap().to_owned();
        ["--no-start".to_owned(), "--socket".to_owned(), socket]
    }

    /// The client whose name is in its call's id took back a call of the fixture's, and the fixture
    /// was told.
    async fn was_told_of_the_cancel(&self, id: &str) {
        assert_eq!(self.ledger.executed(id), 1);
        let told = |ledger: &Ledger| ledger.count("notifications/cancelled") == 1;
        self.ledger.wait("notifications/cancelled", told).await;
    }
}

/// How names look on the endpoint for all.
fn names(server: &str) -> Value {
    json!({
        "tool": format!("{server}__"),
        "uri": format!("springline://{server}/"),
        "said": format!("[{server}] "),
        "hold": "fixture__hold",
    })
}

const TYPESCRIPT_V1: &str = "typescript_v1.mjs";
const TYPESCRIPT_V2: &str = "typescript_v2.mjs";
const PYTHON: &str = "python.py";

/// What a client in full does, whichever it is.
const STEPS: [&str; 13] = [
    "initialize",
    "tools/list",
    "tools/call",
    "progress",
    "cancel",
    "sampling",
    "elicitation",
    "roots",
    "resources",
    "subscribe",
    "prompts",
    "logging",
    "ping",
];

async fn use_in_full(name: &str, plan: &Value, place: &Place) {
    let answer = script(name, plan, &place.gateway).await;
    let done = answer["done"].as_array().unwrap();
    for step in STEPS {
        assert!(done.contains(&step.into()), "{step} is not in {answer}");
    }
}

#[tokio::test]
async fn the_typescript_sdk_v1_uses_one_server_in_full_over_http() {
    let place = Place::start().await;
    use_in_full(TYPESCRIPT_V1, &place.one("local"), &place).await;
    use_in_full(TYPESCRIPT_V1, &place.one("remote"), &place).await;
}

#[tokio::test]
async fn the_typescript_sdk_v1_uses_all_servers_in_full_over_http() {
    let place = Place::start().await;
    use_in_full(TYPESCRIPT_V1, &place.all("remote"), &place).await;
    place.was_told_of_the_cancel("cancelled-by-v1").await;
}

#[tokio::test]
async fn the_typescript_sdk_v1_uses_one_server_in_full_through_connect() {
    let place = Place::start().await;
    use_in_full(TYPESCRIPT_V1, &place.connect(Some("local")), &place).await;
    use_in_full(TYPESCRIPT_V1, &place.connect(Some("remote")), &place).await;
}

#[tokio::test]
async fn the_typescript_sdk_v1_uses_all_servers_in_full_through_connect() {
    let place = Place::start().await;
    use_in_full(TYPESCRIPT_V1, &place.connect(None), &place).await;
    place.was_told_of_the_cancel("cancelled-by-v1").await;
}

#[tokio::test]
async fn the_python_sdk_uses_one_server_in_full_over_http() {
    let place = Place::start().await;
    use_in_full(PYTHON, &place.one("local"), &place).await;
    use_in_full(PYTHON, &place.one("remote"), &place).await;
}

#[tokio::test]
async fn the_python_sdk_uses_all_servers_in_full_over_http() {
    let place = Place::start().await;
    use_in_full(PYTHON, &place.all("remote"), &place).await;
    place.was_told_of_the_cancel("cancelled-by-python").await;
}

#[tokio::test]
async fn the_python_sdk_uses_one_server_in_full_through_connect() {
    let place = Place::start().await;
    use_in_full(PYTHON, &place.connect(Some("local")), &place).await;
    use_in_full(PYTHON, &place.connect(Some("remote")), &place).await;
}

#[tokio::test]
async fn the_python_sdk_uses_all_servers_in_full_through_connect() {
    let place = Place::start().await;
    use_in_full(PYTHON, &place.connect(None), &place).await;
    place.was_told_of_the_cancel("cancelled-by-python").await;
}

#[tokio::test]
async fn the_python_sdk_that_asks_for_the_modern_era_first_falls_back() {
    let place = Place::start().await;
    for mut plan in [place.one("local"), place.connect(Some("remote"))] {
        plan["mode"] = "auto".into();
        use_in_full(PYTHON, &plan, &place).await;
    }
}

#[tokio::test]
async fn the_typescript_sdk_v2_calls_tools_over_http_and_through_connect() {
    let place = Place::start().await;
    for plan in [place.one("local"), place.connect(Some("remote"))] {
        let answer = script(TYPESCRIPT_V2, &plan, &place.gateway).await;
        assert_eq!(answer["done"], json!(["legacy", "auto"]));
    }
}

#[tokio::test]
async fn the_rust_sdk_calls_a_tool_over_http() {
    let place = Place::start().await;
    let mut command = command(fixture(), place.gateway.folder.path());
    command
        .args(["rmcp-client", &place.url("/mcp")])
        .args(["--tool", "local__echo"])
        .args(["--arguments", r#"{"message":"ahoy"}"#]);
    let printed = run(command, Some(&place.gateway)).await;
    let answer: Value = serde_json::from_str(printed.trim()).unwrap();
    assert_eq!(answer["result"]["content"][0]["text"], "Echo: ahoy");
    let tools = answer["tools"].as_array().unwrap();
    assert!(tools.contains(&"remote__echo".into()), "{answer}");
}

#[tokio::test]
async fn the_inspector_lists_and_calls_over_http_and_through_connect() {
    let place = Place::start().await;
    let inspector = |server: &[String]| {
        let mut command = command("node", place.gateway.folder.path());
        command
            .arg(program("mcp-inspector"))
            .arg("--cli")
            .args(server);
        command
    };
    let http = ["--transport", "http"].map(str::to_owned);
    let http = [vec![place.url("/mcp/local")], http.to_vec()].concat();
    let connect = ["connect", "remote"].map(str::to_owned);
    let springline = vec![env!("CARGO_BIN_EXE_springline").to_owned()];
    let connect = [springline, connect.to_vec(), place.socket().to_vec()].concat();
    for server in [http, connect] {
        let mut list = inspector(&server);
        list.args(["--method", "tools/list"]);
        let listed: Value = serde_json::from_str(&run(list, Some(&place.gateway)).await).unwrap();
        assert_eq!(listed["tools"][0]["name"], "echo", "{listed}");
        let mut call = inspector(&server);
        call.args(["--method", "tools/call", "--tool-name", "echo"]);
        call.args(["--tool-arg", "message=ahoy"]);
        let called: Value = serde_json::from_str(&run(call, Some(&place.gateway)).await).unwrap();
        assert_eq!(called["content"][0]["text"], "Echo: ahoy", "{called}");
    }
}
