// SPDX-License-Identifier: Apache-2.0
//! What the service manager is told.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use crate::run::say_ready;

/// Set in the process that says it: the environment of this one is all tests'.
const SAYS_IT: &str = "MINT_TEST_SAYS_READY";

#[test]
fn service_manager_is_told_that_requests_are_answered() {
    if std::env::var_os(SAYS_IT).is_some() {
        return say_ready();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::ready::service_manager_is_told_that_requests_are_answered"])
        .env(SAYS_IT, "1")
        .env("NOTIFY_SOCKET", &path)
        .status()
        .unwrap();
    assert!(status.success());
    let mut said = [0; 64];
    let count = manager.recv(&mut said).unwrap();
    assert_eq!(std::str::from_utf8(&said[..count]).unwrap().trim_end(), "READY=1");
}
