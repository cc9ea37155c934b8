//! The echo server on standard input and output, as servers of the Rust SDK are built: the streams
//! of the runtime, and one write for each answer.

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use super::{Reply, reply};

pub(super) async fn run() -> anyhow::Result<()> {
    let mut input = BufReader::with_capacity(64 * 1024, tokio::io::stdin());
    let mut output = tokio::io::stdout();
    let mut line = Vec::new();
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line).await? == 0 {
            return Ok(());
        }
        if let Some(Reply::Initialize(mut text) | Reply::Result { mut text, .. }) = reply(&line) {
            text.push('\n');
            output.write_all(text.as_bytes()).await?;
            output.flush().await?;
        }
    }
}
