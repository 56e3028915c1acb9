// SPDX-License-Identifier: Apache-2.0
//! Command lines of the two programs: what all of their options share.

use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::failure::Failure;

/// Parses the command line; help goes out as clap prints it.
///
/// # Errors
/// The exit code, after the reason was printed: 0 for help, 2 for all else.
pub fn parse<P: Parser>(program: &str) -> Result<P, ExitCode> {
    P::try_parse().map_err(|error| match explain(&error) {
        Some(text) => {
            eprintln!("{program}: {text}");
            ExitCode::from(2)
        }
        None => {
            // a closed terminal is nobody's loss
            _ = error.print();
            ExitCode::from(if error.use_stderr() { 2 } else { 0 })
        }
    })
}

/// The two usual faults, in a line that says what to do.
fn explain(error: &clap::Error) -> Option<String> {
    let argument = match error.get(ContextKind::InvalidArg)? {
        ContextValue::String(text) => text.split(' ').next()?,
        _ => return None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => Some(format!("unknown option {argument}; see --help")),
        ErrorKind::InvalidValue => Some(format!("{argument} wants a value; see --help")),
        _ => None,
    }
}

/// Prints a failure; gives its exit code.
pub fn end(program: &str, result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{program}: {failure}");
            failure.exit_code()
        }
    }
}
