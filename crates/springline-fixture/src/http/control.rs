//! The control endpoint: what a test calls in process, over HTTP.
//!
//! `GET /__control` gives the log; `POST /__control` takes one command. Owns
//! the commands' spelling. Must not be counted among the requests.

use serde::Deserialize;
use serde_json::{Value, json};

use super::body::{self, Body};
use super::server::{Command, Context};
use crate::fault::Rule;

/// Where the endpoint is.
pub(super) const PATH: &str = "/__control";

#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
enum Order {
    ForgetSessions,
    Rule { rule: Rule },
    ClearRules,
    Settings { settings: Value },
    Release { id: String },
    Open { id: String },
    Arrived { id: String, count: u64 },
    UpdateResource,
    AddTool,
    CloseIdle,
    DropConnections,
    ResetLog,
    Wait { method: String, count: usize },
}

/// Carries out one order; `Arrived` and `Wait` answer when it is true.
pub(super) async fn handle(
    context: &Context,
    method: &http::Method,
    bytes: &[u8],
) -> std::io::Result<hyper::Response<Body>> {
    let (status, answer) = if method == http::Method::GET {
        (200, serde_json::to_value(context.world.account.log())?)
    } else {
        match serde_json::from_slice(bytes) {
            Ok(order) => match obey(context, order).await {
                Ok(()) => (200, json!({"done": true})),
                Err(error) => (400, json!({"error": error.to_string()})),
            },
            Err(error) => (400, json!({"error": error.to_string()})),
        }
    };
    hyper::Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .body(body::whole(answer.to_string()))
        .map_err(std::io::Error::other)
}

async fn obey(context: &Context, order: Order) -> serde_json::Result<()> {
    let world = &context.world;
    match order {
        Order::ForgetSessions => world.forget(),
        Order::Rule { rule } => world.faults.add(rule),
        Order::ClearRules => world.faults.clear(),
        Order::Settings { settings } => world.faults.merge(&settings)?,
        Order::Release { id } => world.gates.release(&id),
        Order::Open { id } => world.gates.open(&id),
        Order::Arrived { id, count } => world.gates.arrived(&id, count).await,
        Order::UpdateResource => world.update_resource(),
        Order::AddTool => world.add_tool(),
        Order::CloseIdle => drop(context.commands.send(Command::CloseIdle)),
        Order::DropConnections => drop(context.commands.send(Command::Drop)),
        Order::ResetLog => world.account.reset(),
        Order::Wait { method, count } => {
            world.account.wait(|log| log.count(&method) >= count).await;
        }
    }
    Ok(())
}
