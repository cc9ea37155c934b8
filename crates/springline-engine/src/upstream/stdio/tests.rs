use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use bytes::Bytes;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, timeout};

use super::*;

const GENERATION: Generation = Generation(1);

/// Far beyond what any of these should take on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// Keeps what was reported.
struct Inbox(mpsc::Sender<Input>);

impl Sink for Inbox {
    fn input(&self, input: Input) {
        self.0.try_send(input).expect("the inbox has room");
    }
}

/// A transport with one child, and what it reported.
struct Rig {
    transport: StdioTransport,
    /// The transport reports only while it is there.
    _sink: Arc<dyn Sink>,
    inputs: mpsc::Receiver<Input>,
}

fn limits() -> StdioLimits {
    StdioLimits {
        line_budget: LineBudget::new(64 * 1024 * 1024),
        ..StdioLimits::default()
    }
}

fn spec(command: &str, args: &[&str]) -> ChildSpec {
    ChildSpec {
        server: Arc::from("test"),
        command: command.to_owned(),
        args: args.iter().map(|&arg| arg.to_owned()).collect(),
        env: Vec::new(),
        cwd: None,
    }
}

fn sh(script: &str) -> ChildSpec {
    spec("sh", &["-c", script])
}

fn python(script: &str) -> ChildSpec {
    spec("python3", &["-uc", script])
}

impl Rig {
    fn open(spec: ChildSpec, limits: StdioLimits) -> Self {
        let (sender, inputs) = mpsc::channel(100_000);
        let sink: Arc<dyn Sink> = Arc::new(Inbox(sender));
        let transport = StdioTransport::new(spec, Arc::downgrade(&sink), limits);
        transport.open(GENERATION);
        Self {
            transport,
            _sink: sink,
            inputs,
        }
    }

    async fn next(&mut self) -> Input {
        timeout(PATIENCE, self.inputs.recv())
            .await
            .expect("an input in time")
            .expect("a transport that lives")
    }

    async fn opened(&mut self) {
        assert!(matches!(
            self.next().await,
            Input::Opened {
                generation: GENERATION
            }
        ));
    }

    async fn message(&mut self) -> String {
        match self.next().await {
            Input::Message {
                message,
                exchange: None,
                ..
            } => text(message.bytes()),
            other => panic!("no message: {other:?}"),
        }
    }

    async fn lost(&mut self) -> (String, bool) {
        match self.next().await {
            Input::Lost {
                cause, never_ran, ..
            } => (cause.into(), never_ran),
            other => panic!("not lost: {other:?}"),
        }
    }

    fn send(&self, exchange: u64, body: &str) {
        let body = Bytes::copy_from_slice(body.as_bytes());
        self.transport
            .send(GENERATION, ExchangeId(exchange), body.into());
    }

    async fn ended(&mut self) -> (u64, End) {
        match self.next().await {
            Input::Ended { exchange, end, .. } => (exchange.0, end),
            other => panic!("no end of an exchange: {other:?}"),
        }
    }

    /// The `pid` member of the next message.
    async fn reported_pid(&mut self) -> Life {
        let message = self.message().await;
        let value: serde_json::Value = serde_json::from_str(&message).unwrap();
        Life::of(value["params"].as_i64().unwrap())
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Watches a process that need not be our child.
struct Life(AsyncFd<OwnedFd>);

impl Life {
    fn of(pid: i64) -> Self {
        let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK).expect("a process that lives");
        #[expect(unsafe_code, reason = "the safe constructor is deprecated")]
        // SAFETY: the descriptor is owned and never replaced.
        Self(unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }.unwrap())
    }

    async fn is_over(&self) {
        let over = timeout(PATIENCE, self.0.readable()).await;
        over.expect("the process ends in time")
            .unwrap()
            .retain_ready();
    }
}

#[tokio::test]
async fn a_message_written_byte_by_byte_arrives_whole() {
    let mut rig = Rig::open(
        python(
            r#"
import sys, os
line = '\ufeff{"jsonrpc":"2.0","method":"a","params":"読み—🎉"}\r\n'.encode()
for b in line: os.write(1, bytes([b]))
os.write(1, b'{"jsonrpc":"2.0","method":"b"}\n{"jsonrpc":"2.0","method":"c"}\n{"jsonrpc":"2.0","method":"d"}')
"#,
        ),
        limits(),
    );
    rig.opened().await;
    assert_eq!(
        rig.message().await,
        r#"{"jsonrpc":"2.0","method":"a","params":"読み—🎉"}"#
    );
    for method in ["b", "c", "d"] {
        assert_eq!(
            rig.message().await,
            format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#)
        );
    }
    assert_eq!(rig.lost().await, ("exited with status 0".into(), false));
}

#[tokio::test]
async fn rubbish_on_stdout_is_skipped_counted_and_told_once_a_minute() {
    let mut rig = Rig::open(
        sh(r#"
echo 'Starting v1'; echo; echo '{"level":"info","id":7,"msg":"up"}'; echo '{'; printf '\377\n'
echo '{"jsonrpc":"2.0","id":1,"result":{}}'
read line"#),
        limits(),
    );
    rig.opened().await;
    match rig.next().await {
        Input::Garbled {
            id: None, cause, ..
        } => assert!(cause.ends_with("no message: Starting v1"), "{cause}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(
        rig.message().await,
        r#"{"jsonrpc":"2.0","id":1,"result":{}}"#
    );
    assert_eq!(rig.transport.snapshot()[0].lines_skipped, 4);
    rig.transport.shut_down().await;
}

#[tokio::test]
async fn an_answer_that_is_no_valid_message_is_told_with_its_id() {
    let mut rig = Rig::open(
        sh(r#"
echo '{"jsonrpc":"1.0","id":5,"result":{}}'
echo '{"jsonrpc":"1.0","id":6,"method":"roots/list"}'
echo '[{"jsonrpc":"2.0","id":8,"result":1},{"jsonrpc":"2.0","method":"x"}]'"#),
        limits(),
    );
    rig.opened().await;
    match rig.next().await {
        Input::Garbled {
            id,
            too_large: false,
            ..
        } => assert_eq!(id.unwrap(), "5"),
        other => panic!("{other:?}"),
    }
    // A call of the server's under the same name space is no answer, and is told as a skipped line.
    match rig.next().await {
        Input::Garbled { id: None, .. } => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(
        rig.message().await,
        r#"{"jsonrpc":"2.0","id":8,"result":1}"#
    );
    assert_eq!(rig.message().await, r#"{"jsonrpc":"2.0","method":"x"}"#);
    rig.lost().await;
}

#[tokio::test]
async fn an_answer_that_is_not_json_is_told_with_its_id() {
    let mut rig = Rig::open(
        sh(r#"
printf '{"jsonrpc":"2.0","id":5,"result":{"text":"\377\376"}}\n'
printf '{"jsonrpc":"2.0","id":6,"result":{"text":NaN}}\n'"#),
        limits(),
    );
    rig.opened().await;
    for (expected, words) in [("5", "invalid UTF-8"), ("6", "not valid JSON")] {
        match rig.next().await {
            Input::Garbled {
                id,
                cause,
                too_large: false,
                ..
            } => {
                assert_eq!(id.unwrap(), expected);
                assert!(cause.contains(words), "{cause}");
            }
            other => panic!("{other:?}"),
        }
    }
    rig.lost().await;
}

#[tokio::test]
async fn a_line_over_the_cap_fails_its_call_only() {
    let script = r#"
import sys
x = "x" * 3_000_000
sys.stdout.write('{"jsonrpc":"2.0","result":{"text":"' + x + '"},"id":"big"}\n')
sys.stdout.write('{"jsonrpc":"2.0","method":"m","params":"' + x + '","id":1}\n')
sys.stdout.write('{"jsonrpc":"2.0","id":2,"result":{}}\n')
"#;
    let small_cap = StdioLimits {
        frame_max: 100_000,
        ..limits()
    };
    let small_budget = StdioLimits {
        line_budget: LineBudget::new(100_000),
        ..limits()
    };
    for limits in [small_cap, small_budget] {
        let budget = Arc::clone(&limits.line_budget);
        let mut rig = Rig::open(python(script), limits);
        rig.opened().await;
        for expected in [Some(Bytes::from_static(b"\"big\"")), None] {
            match rig.next().await {
                Input::Garbled {
                    id,
                    too_large: true,
                    ..
                } => assert_eq!(id, expected),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(
            rig.message().await,
            r#"{"jsonrpc":"2.0","id":2,"result":{}}"#
        );
        rig.lost().await;
        rig.transport.shut_down().await;
        assert_eq!(budget.used(), 0);
    }
}

#[tokio::test]
async fn a_flood_on_stderr_does_not_stop_the_answer_and_its_end_is_quoted() {
    let mut rig = Rig::open(
        python(
            r#"
import sys, os
os.write(2, b"x" * 1_000_000)
for line in sys.stdin:
    os.write(2, b"\nnoise" * 100_000)
    os.write(1, b'{"jsonrpc":"2.0","id":1,"result":{}}\n')
    os.write(2, b"\nTraceback:\n  \x1b[1mValueError\x1b[0m: no such thing\n")
    sys.exit(3)
"#,
        ),
        limits(),
    );
    rig.opened().await;
    rig.send(1, "{}");
    assert_eq!(rig.ended().await, (1, End::Accepted));
    assert_eq!(
        rig.message().await,
        r#"{"jsonrpc":"2.0","id":1,"result":{}}"#
    );
    let (cause, never_ran) = rig.lost().await;
    assert!(!never_ran);
    assert!(
        cause.starts_with("exited with status 3; stderr: "),
        "{cause}"
    );
    assert!(
        cause.ends_with("noise | Traceback: | ValueError: no such thing"),
        "{cause}"
    );
    assert!(cause.len() <= 512);
}

#[tokio::test]
async fn lines_are_written_in_order_and_without_raw_line_ends() {
    let mut rig = Rig::open(
        python(
            r#"
import sys, json
for line in sys.stdin:
    value = json.loads(line)
    print(json.dumps({"jsonrpc": "2.0", "method": "n", "params": [value["n"], len(line)]}))
"#,
        ),
        limits(),
    );
    let mut body = springline_proto::json::Pieces::new();
    body.push(Bytes::from_static(b"{\n \"n\":\r\n0,"));
    body.push(Bytes::from(format!(
        "\"x\":\"{}\"\n}}",
        "y".repeat(8_000_000)
    )));
    let len = body.len() + 1;
    rig.transport.send(GENERATION, ExchangeId(0), body);
    for n in 1..100 {
        rig.send(n, &format!("{{\"n\":{n}}}"));
    }
    rig.opened().await;
    let (mut echoed, mut accepted) = (Vec::new(), Vec::new());
    while echoed.len() + accepted.len() < 200 {
        match rig.next().await {
            Input::Message { message, .. } => echoed.push(text(&message.params().unwrap())),
            Input::Ended {
                exchange,
                end: End::Accepted,
                ..
            } => accepted.push(exchange.0),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(echoed[0], format!("[0, {len}]"));
    assert!(
        echoed[1..]
            .iter()
            .zip(1..)
            .all(|(echo, n)| echo.starts_with(&format!("[{n}, ")))
    );
    assert!(accepted.iter().copied().eq(0..100));
    rig.transport.shut_down().await;
}

#[tokio::test]
async fn a_line_that_was_begun_is_broken_and_those_behind_it_were_not_sent() {
    let mut rig = Rig::open(sh("head -c 10 >/dev/null; echo why >&2; exit 4"), limits());
    rig.opened().await;
    rig.send(1, &format!("\"{}\"", "x".repeat(2_000_000)));
    rig.send(2, "{}");
    rig.send(3, "{}");
    let cause: Box<str> = "exited with status 4; stderr: why".into();
    assert_eq!(
        rig.ended().await,
        (
            1,
            End::Broken {
                cause: cause.clone()
            }
        )
    );
    for unsent in [2, 3] {
        assert_eq!(
            rig.ended().await,
            (
                unsent,
                End::NotSent {
                    cause: cause.clone()
                }
            )
        );
    }
    assert_eq!(rig.lost().await.0, *cause);
}

#[tokio::test]
async fn a_full_queue_refuses_and_a_child_that_reads_nothing_harms_nobody_else() {
    let limits = StdioLimits {
        queue_max: 2,
        queue_bytes_max: 5_000_000,
        stdin_grace: Duration::from_millis(50),
        ..limits()
    };
    let mut rig = Rig::open(sh("while :; do sleep 1000; done"), limits);
    rig.opened().await;
    rig.send(1, &"1".repeat(4_000_000));
    rig.send(2, &"1".repeat(4_000_000));
    match rig.ended().await {
        (2, End::NotSent { cause }) => assert!(cause.contains("bytes wait"), "{cause}"),
        other => panic!("{other:?}"),
    }
    let refused = async {
        for n in 3..10 {
            rig.send(n, "1");
        }
        rig.ended().await
    };
    assert!(matches!(refused.await, (_, End::NotSent { .. })));
    let life = Life::of(rig.transport.snapshot()[0].pid.unwrap().into());
    rig.transport.shut_down().await;
    life.is_over().await;
}

#[tokio::test]
async fn a_child_that_closes_a_pipe_and_lives_is_lost_and_ended() {
    for (script, cause) in [
        (
            "exec 1>&-; while :; do sleep 1000; done",
            "closed its stdout",
        ),
        (
            "exec 0<&-; echo '{\"jsonrpc\":\"2.0\",\"method\":\"m\"}'; while :; do sleep 1000; done",
            "closed its stdin",
        ),
    ] {
        let limits = StdioLimits {
            stdin_grace: Duration::from_millis(50),
            exit_drain: Duration::from_millis(50),
            ..limits()
        };
        let mut rig = Rig::open(sh(script), limits);
        rig.opened().await;
        if cause.ends_with("stdin") {
            rig.message().await;
            rig.send(1, "{}");
            assert!(matches!(rig.ended().await, (1, End::NotSent { .. })));
        }
        assert_eq!(rig.lost().await, (cause.to_owned(), false));
        rig.transport.shut_down().await;
        assert!(rig.transport.snapshot().is_empty());
    }
}

#[tokio::test]
async fn a_grandchild_that_holds_the_pipes_neither_delays_the_loss_nor_survives() {
    let limits = StdioLimits {
        stdin_grace: Duration::from_millis(50),
        term_grace: Duration::from_millis(50),
        ..limits()
    };
    let mut rig = Rig::open(
        sh(r#"
sh -c 'trap "" TERM; echo "{\"jsonrpc\":\"2.0\",\"method\":\"pid\",\"params\":$$}"; while :; do sleep 1000; done' &
read line; echo '{"jsonrpc":"2.0","method":"last"}'; kill -9 $$"#),
        limits,
    );
    rig.opened().await;
    let grandchild = rig.reported_pid().await;
    rig.send(1, "{}");
    assert_eq!(rig.ended().await, (1, End::Accepted));
    assert_eq!(rig.message().await, r#"{"jsonrpc":"2.0","method":"last"}"#);
    assert_eq!(rig.lost().await, ("was killed by SIGKILL".into(), false));
    grandchild.is_over().await;
}

#[tokio::test]
async fn a_deaf_child_and_its_group_end_within_the_graces_and_in_silence() {
    let limits = StdioLimits {
        stdin_grace: Duration::from_millis(100),
        term_grace: Duration::from_millis(100),
        ..limits()
    };
    let bound = limits.end_max();
    let mut rig = Rig::open(
        sh(r#"
trap "" TERM
sh -c 'echo "{\"jsonrpc\":\"2.0\",\"method\":\"pid\",\"params\":$$}"; while :; do sleep 1000; done' &
while :; do echo '{"jsonrpc":"2.0","method":"tick"}' >/dev/null; sleep 1000; done"#),
        limits,
    );
    rig.opened().await;
    let grandchild = rig.reported_pid().await;
    let child = Life::of(rig.transport.snapshot()[0].pid.unwrap().into());
    let begun = Instant::now();
    rig.transport.end(GENERATION);
    assert!(rig.transport.snapshot()[0].ending);
    rig.transport.shut_down().await;
    assert!(begun.elapsed() < bound, "{:?}", begun.elapsed());
    assert!(rig.transport.snapshot().is_empty());
    child.is_over().await;
    grandchild.is_over().await;
    assert!(
        rig.inputs.try_recv().is_err(),
        "nothing is reported after the end"
    );
}

#[tokio::test]
async fn a_child_that_obeys_ends_at_once_after_it_read_what_was_queued() {
    let folder = tempfile::tempdir().unwrap();
    let mut spec = sh(r#"cat >"$OUT"; echo done >>"$OUT""#);
    spec.env.push(("OUT".into(), "lines".into()));
    spec.cwd = Some(folder.path().to_owned());
    let patient = StdioLimits {
        stdin_grace: PATIENCE,
        ..limits()
    };
    let mut rig = Rig::open(spec, patient);
    rig.opened().await;
    rig.send(1, "{}");
    rig.send(2, "[]");
    timeout(PATIENCE / 2, rig.transport.shut_down())
        .await
        .expect("no grace is waited out");
    let lines = std::fs::read_to_string(folder.path().join("lines")).unwrap();
    assert_eq!(lines, "{}\n[]\ndone\n");
}

#[tokio::test]
async fn no_zombie_is_left() {
    let mut rig = Rig::open(sh("read line"), limits());
    rig.opened().await;
    let pid = rig.transport.snapshot()[0].pid.unwrap();
    rig.send(1, "{}");
    assert_eq!(rig.ended().await, (1, End::Accepted));
    assert_eq!(rig.lost().await, ("exited with status 0".into(), false));
    rig.transport.shut_down().await;
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[tokio::test]
async fn an_end_during_the_start_is_silent_and_ends_the_child() {
    let folder = tempfile::tempdir().unwrap();
    let mut spec = sh("echo $$ >pid; read line");
    spec.cwd = Some(folder.path().to_owned());
    let mut rig = Rig::open(spec, limits());
    rig.transport.end(GENERATION);
    rig.send(1, "{}");
    rig.transport.shut_down().await;
    assert!(rig.transport.snapshot().is_empty());
    assert!(rig.inputs.try_recv().is_err());
    let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
    assert!(!Path::new(&format!("/proc/{}", pid.trim())).exists());
}

#[tokio::test]
async fn generations_are_children_of_their_own() {
    let mut rig = Rig::open(sh("read line; exit 1"), limits());
    rig.opened().await;
    rig.transport.open(Generation(2));
    let second = rig.next().await;
    assert!(
        matches!(
            second,
            Input::Opened {
                generation: Generation(2)
            }
        ),
        "{second:?}"
    );
    assert_eq!(rig.transport.snapshot().len(), 2);
    rig.transport.send(
        Generation(2),
        ExchangeId(9),
        Bytes::from_static(b"{}").into(),
    );
    assert_eq!(rig.ended().await, (9, End::Accepted));
    let lost = rig.next().await;
    assert!(
        matches!(
            lost,
            Input::Lost {
                generation: Generation(2),
                ..
            }
        ),
        "{lost:?}"
    );
    rig.send(1, "{}");
    assert_eq!(rig.ended().await, (1, End::Accepted));
    rig.transport.send(
        Generation(7),
        ExchangeId(1),
        Bytes::from_static(b"{}").into(),
    );
    assert_eq!(rig.lost().await.0, "exited with status 1");
}

#[tokio::test]
async fn a_child_that_cannot_start_says_why_and_shows_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str, mode: u32| {
        use std::os::unix::fs::PermissionsExt as _;
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let plain = file("plain", "echo", 0o644);
    let script = file("script", "#!/no/such/interpreter\n", 0o755);
    let mut no_folder = sh("true");
    no_folder.cwd = Some("/no/such/folder".into());
    let cases = [
        (
            spec("uvx-of-nowhere", &["secret"]),
            "launcher `uvx-of-nowhere` was not found on PATH".to_owned(),
        ),
        (
            spec("/no/such/file", &["secret"]),
            "`/no/such/file` does not exist".to_owned(),
        ),
        (
            spec(&plain, &["secret"]),
            format!("`{plain}` may not be executed: permission denied"),
        ),
        (
            spec(&script, &["secret"]),
            format!("the interpreter that `{script}` names does not exist"),
        ),
        (
            spec("sh", &["secret\0"]),
            "the command, its arguments or its environment contain a NUL character".to_owned(),
        ),
        (
            spec("sh", &[&"x".repeat(4_000_000)]),
            "its arguments and environment are too large for the system".to_owned(),
        ),
        (no_folder, "its working directory does not exist".to_owned()),
    ];
    for (spec, expected) in cases {
        let mut rig = Rig::open(spec, limits());
        assert_eq!(rig.lost().await, (expected, true));
        rig.transport.shut_down().await;
    }
}

#[tokio::test]
async fn nothing_but_the_three_pipes_is_inherited() {
    let mut rig = Rig::open(
        python(
            r#"
import os, json
open_now = [int(fd) for fd in os.listdir("/proc/self/fd")]
own = [fd for fd in open_now if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}")]
print(json.dumps({"jsonrpc": "2.0", "method": "fds", "params": [own, os.getpgrp() == os.getpid()]}))
"#,
        ),
        limits(),
    );
    rig.opened().await;
    assert!(rig.message().await.ends_with(r#""params": [[], true]}"#));
}

/// Tells a process that it is what [`a_killed_gateway_leaves_no_orphan`] kills.
const VICTIM: &str = "SPRINGLINE_TEST_VICTIM";

/// Starts a child with a grandchild, tells both pids and lives on.
async fn be_killed() {
    let mut rig = Rig::open(
        sh(r#"
trap "" TERM HUP
exec 3<&0
sh -c 'echo "{\"jsonrpc\":\"2.0\",\"method\":\"pid\",\"params\":$$}" ; read line; true' <&3 &
exec python3 -c 'import signal; signal.pause()'"#),
        limits(),
    );
    rig.opened().await;
    let grandchild = rig.message().await;
    let child = rig.transport.snapshot()[0].pid.unwrap();
    eprintln!(
        "\nPIDS {child} {}",
        grandchild.rsplit(':').next().unwrap().trim_end_matches('}')
    );
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_killed_gateway_leaves_no_orphan() {
    if std::env::var_os(VICTIM).is_some() {
        return be_killed().await;
    }
    let mut gateway = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "upstream::stdio::tests::a_killed_gateway_leaves_no_orphan",
            "--nocapture",
        ])
        .env(VICTIM, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(gateway.stderr.take().unwrap()));
    let pids = lines
        .map(Result::unwrap)
        .find(|line| line.starts_with("PIDS "))
        .unwrap();
    let processes: Vec<Life> = pids
        .split(' ')
        .skip(1)
        .map(|pid| Life::of(pid.parse().unwrap()))
        .collect();
    assert_eq!(processes.len(), 2);
    rustix::process::kill_process(Pid::from_child(&gateway), Signal::KILL).unwrap();
    gateway.wait().unwrap();
    for process in processes {
        process.is_over().await;
    }
}
