// SPDX-License-Identifier: Apache-2.0
//! A monitor of the guest's QEMU that is ours: libvirt has another one (QEMU's docs/interop/qmp-spec).
//!
//! What little is asked is asked by this code and not by the `qapi` crate: that panics when QEMU
//! ends before it has said who it is, and understands no state that a later QEMU adds.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

/// For an answer: QEMU may wait for a page of its guest meanwhile.
const ANSWERS: Duration = Duration::from_secs(60);
/// Nothing that is asked for has a longer answer.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// QEMU leaves memory out of a migration's stream that is a file's, and shared.
const LEAVES_MEMORY_OUT: &str = "x-ignore-shared";

/// A monitor.
#[derive(Debug)]
pub(crate) struct Monitor(BufReader<UnixStream>);

/// How far QEMU is with a migration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Switch {
    /// The guest runs here, or is paused, and no migration has stopped it.
    NotYet,
    /// It is stopped for the switch-over, its disks are quiet: nothing changes its memory.
    Stopped,
    /// A migration has failed, or was taken back.
    Failed,
    /// QEMU does not say.
    Unknown,
}

impl Monitor {
    /// Of a QEMU that listens there.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn open(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(ANSWERS))?;
        stream.set_write_timeout(Some(ANSWERS))?;
        let mut monitor = Self(BufReader::new(stream));
        monitor.line()?;
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    fn line(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        (&mut self.0).take(ANSWER_BYTES_MAX).read_line(&mut line)?;
        if !line.ends_with('\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&line)?)
    }

    fn execute(&mut self, command: &str, arguments: &Value) -> io::Result<Value> {
        let asked = json!({ "execute": command, "arguments": arguments });
        self.0.get_mut().write_all(format!("{asked}\n").as_bytes())?;
        loop {
            let mut answer = self.line()?;
            if let Some(done) = answer.get_mut("return") {
                return Ok(done.take());
            }
            if let Some(error) = answer.get("error") {
                return Err(io::Error::other(format!("QEMU says to {command}: {error}")));
            }
            // an event
        }
    }

    /// Memory is left out of the next stream, or not.
    ///
    /// # Errors
    /// When QEMU does not do so, as while a migration is on.
    pub fn leave_memory_out(&mut self, is_left_out: bool) -> io::Result<()> {
        let capability = json!({ "capability": LEAVES_MEMORY_OUT, "state": is_left_out });
        let arguments = json!({ "capabilities": [capability] });
        self.execute("migrate-set-capabilities", &arguments).map(drop)
    }

    fn state(&mut self) -> io::Result<String> {
        let status = self.execute("query-status", &json!({}))?;
        Ok(text(&status, "status"))
    }

    /// Whether the guest's vCPUs run.
    ///
    /// # Errors
    /// When QEMU does not answer.
    pub fn runs(&mut self) -> io::Result<bool> {
        Ok(self.state()? == "running")
    }

    /// How far it is with a migration to another host.
    ///
    /// # Errors
    /// When QEMU does not answer.
    pub fn switch(&mut self) -> io::Result<Switch> {
        let state = self.state()?;
        // of a guest that came by one, that is told as long as it begins no other
        let migration = text(&self.execute("query-migrate", &json!({}))?, "status");
        Ok(switch(&state, &migration))
    }
}

fn switch(state: &str, migration: &str) -> Switch {
    // stopped before its disks are quiet: only from the second state on nothing changes
    let is_stopped = ["finish-migrate", "postmigrate"].contains(&state);
    match migration {
        "pre-switchover" | "device" | "completed" if is_stopped => Switch::Stopped,
        "failed" | "cancelled" => Switch::Failed,
        _ => Switch::NotYet,
    }
}

fn text(of: &Value, name: &str) -> String {
    of.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn memory_is_quiet_once_the_disks_are() {
        assert_eq!(switch("running", ""), Switch::NotYet);
        assert_eq!(switch("running", "active"), Switch::NotYet);
        assert_eq!(switch("finish-migrate", "active"), Switch::NotYet);
        assert_eq!(switch("finish-migrate", "pre-switchover"), Switch::Stopped);
        assert_eq!(switch("finish-migrate", "device"), Switch::Stopped);
        assert_eq!(switch("postmigrate", "completed"), Switch::Stopped);
        // it came by that one
        assert_eq!(switch("running", "completed"), Switch::NotYet);
        assert_eq!(switch("paused", "completed"), Switch::NotYet);
        assert_eq!(switch("running", "failed"), Switch::Failed);
        assert_eq!(switch("running", "cancelled"), Switch::Failed);
    }

    #[test]
    fn answers_are_found_among_events_and_an_end_is_no_answer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let qemu = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let say = |line: &str| (&stream).write_all(format!("{line}\n").as_bytes()).unwrap();
            say(r#"{"QMP": {}}"#);
            assert!(lines.next().unwrap().unwrap().contains("qmp_capabilities"));
            say(r#"{"return": {}}"#);
            let asked = lines.next().unwrap().unwrap();
            assert!(asked.contains(r#""capability":"x-ignore-shared","state":true"#), "{asked}");
            say(r#"{"event": "MIGRATION", "data": {"status": "setup"}}"#);
            say(r#"{"return": {}}"#);
            lines.next().unwrap().unwrap();
            say(r#"{"error": {"class": "GenericError", "desc": "no"}}"#);
            lines.next().unwrap().unwrap();
        });
        let mut monitor = Monitor::open(&path).unwrap();
        monitor.leave_memory_out(true).unwrap();
        let error = monitor.leave_memory_out(false).unwrap_err();
        assert!(error.to_string().contains("\"desc\":\"no\""), "{error}");
        let error = monitor.runs().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        qemu.join().unwrap();
    }
}
