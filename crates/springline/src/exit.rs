//! The exit codes of every command: part of the contract with scripts.

use std::process::ExitCode;

/// How a command ended, by its exit code.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// It did what was asked.
    Done = 0,
    /// It failed in a way that no other code names.
    Failed = 1,
    /// The command line is wrong (clap's own code).
    Usage = 2,
    /// The configuration is refused; the message names file and line.
    Config = 3,
    /// Another gateway holds the socket or the state folder; the message names its pid.
    Taken = 4,
    /// No gateway answers on the socket.
    Unreachable = 5,
    /// There is no such server or tool.
    Unknown = 6,
    /// The call ended in an error: of the server, of the tool (`isError`), or of the gateway.
    Call = 7,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
