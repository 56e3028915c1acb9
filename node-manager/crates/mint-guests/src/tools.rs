// SPDX-License-Identifier: Apache-2.0
//! Programs that the node has: `ip`, `virsh`, `virt-xml-validate`. Behind a trait, so that
//! tests see what would be run.

use std::io::{self, Write};
use std::process::{Command, Stdio};

use crate::failure::Failure;

/// For one virsh command at boot, in seconds.
const LIBVIRT_LIMIT_S: &str = "120";

/// How a program ended.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ended {
    /// Whether its exit status was 0.
    pub ok: bool,
    /// What it wrote to standard output.
    pub out: String,
    /// What it wrote to standard error.
    pub err: String,
}

/// Runs programs.
pub trait Tools {
    /// Runs a program with that standard input to its end.
    ///
    /// # Errors
    /// When it could not be started.
    fn run(&mut self, words: &[&str], input: &str) -> io::Result<Ended>;
}

/// The programs on the path.
#[derive(Debug, Default)]
pub struct Path;

impl Tools for Path {
    fn run(&mut self, words: &[&str], input: &str) -> io::Result<Ended> {
        let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program may end without reading it all: its status tells. What is written here
            // is less than a pipe holds, so that nobody waits for the other.
            match stdin.write_all(input.as_bytes()) {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
                _ => {}
            }
        }
        let output = child.wait_with_output()?;
        Ok(Ended {
            ok: output.status.success(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}

/// Runs a program that must succeed; gives its standard output.
///
/// # Errors
/// [`Failure::Failed`]: `what` did not work, and what the program said.
pub fn must(
    tools: &mut dyn Tools,
    words: &[&str],
    input: &str,
    what: impl FnOnce() -> String,
) -> Result<String, Failure> {
    match tools.run(words, input) {
        Ok(ended) if ended.ok => Ok(ended.out),
        Ok(ended) => {
            let said = format!("{}{}", ended.out, ended.err);
            Err(Failure::Failed(format!("{}: {}", what(), said.trim())))
        }
        Err(error) => Err(Failure::Failed(format!("{}: {}: {error}", what(), words[0]))),
    }
}

/// The words of a virsh command.
pub fn virsh<'a>(words: &[&'a str]) -> Vec<&'a str> {
    ["virsh", "-q"].iter().chain(words).copied().collect()
}

/// The same at boot: a libvirtd that never answers must not keep it for ever.
pub fn virsh_limited<'a>(words: &[&'a str]) -> Vec<&'a str> {
    ["timeout", LIBVIRT_LIMIT_S].into_iter().chain(virsh(words)).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Remembers what was run, and answers by the first rule whose words are in the line.
    #[derive(Default)]
    pub(crate) struct Played {
        pub(crate) lines: Vec<String>,
        pub(crate) inputs: Vec<String>,
        pub(crate) answers: Vec<(&'static str, bool, String)>,
    }

    impl Played {
        pub(crate) fn answer(mut self, words: &'static str, ok: bool, text: &str) -> Self {
            self.answers.push((words, ok, text.to_owned()));
            self
        }
    }

    impl Tools for Played {
        fn run(&mut self, words: &[&str], input: &str) -> io::Result<Ended> {
            let line = words.join(" ");
            let known = self.answers.iter().find(|(words, ..)| line.contains(words));
            let (ok, text) = known.map_or((true, ""), |(_, ok, text)| (*ok, text.as_str()));
            let (out, err) = if ok { (text, "") } else { ("", text) };
            let ended = Ended { ok, out: out.to_owned(), err: err.to_owned() };
            self.lines.push(line);
            self.inputs.push(input.to_owned());
            Ok(ended)
        }
    }

    #[test]
    fn programs_get_input_and_give_output_and_status() {
        let ended = Path.run(&["cat"], "text").unwrap();
        assert_eq!((ended.ok, ended.out.as_str()), (true, "text"));
        let ended = Path.run(&["sh", "-c", "echo why >&2; exit 3"], "").unwrap();
        assert_eq!((ended.ok, ended.err.as_str()), (false, "why\n"));
        // it ends without reading
        assert!(Path.run(&["true"], &"x".repeat(1 << 20)).unwrap().ok);
    }

    #[test]
    fn failure_says_what_and_why() {
        let mut tools = Played::default().answer("virsh", false, "no such pool");
        let failure = must(&mut tools, &virsh(&["pool-start"]), "", || "the pool".to_owned());
        assert_eq!(failure, Err(Failure::Failed("the pool: no such pool".to_owned())));
        let failure = must(&mut Path, &["/nowhere/program"], "", || "it".to_owned());
        let Err(Failure::Failed(text)) = failure else { panic!() };
        assert!(text.starts_with("it: /nowhere/program: "), "{text}");
    }
}
