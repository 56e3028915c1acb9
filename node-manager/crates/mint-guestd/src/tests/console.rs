// SPDX-License-Identifier: Apache-2.0
//! A guest's console: its terminal, carried as frames.

use std::time::Duration;

use mint_api::frame::{FrameKind, read_frame, write_frame};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{read, write};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

use super::*;

/// What a guest has of its console: it says what it hears, twice.
struct Serial {
    of_guest: std::os::fd::OwnedFd,
    path: String,
}

impl Serial {
    fn new() -> Self {
        let of_guest = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&of_guest).unwrap();
        unlockpt(&of_guest).unwrap();
        let path = ptsname(&of_guest, Vec::new()).unwrap().into_string().unwrap();
        // as QEMU has it
        let mut raw = tcgetattr(&of_guest).unwrap();
        raw.make_raw();
        tcsetattr(&of_guest, OptionalActions::Now, &raw).unwrap();
        Self { of_guest, path }
    }

    /// Until it has heard so many bytes. The guest is there as long as what is given.
    fn echo(self, bytes: usize) -> Self {
        let mut heard = Vec::new();
        let mut buffer = [0; 64];
        while heard.len() < bytes {
            let length = read(&self.of_guest, &mut buffer).unwrap();
            heard.extend_from_slice(&buffer[..length]);
        }
        for _ in 0..2 {
            assert_eq!(write(&self.of_guest, &heard).unwrap(), bytes);
        }
        self
    }
}

#[test]
fn console_carries_keys_and_output_is_one_clients_and_ends_with_the_guest() {
    test(async |machine| {
        machine.fakes[0].define("web", true, &xml("web"));
        let path = "/v1/local/vms/web/console";
        let refused = async || body(machine.client().upgrade(path).await.unwrap_err());
        assert!(refused().await.message.contains("no console"));
        let serial = Serial::new();
        machine.fakes[0].consoles.lock().unwrap().insert("web".into(), serial.path.clone());
        let (mut from, mut to) = tokio::io::split(machine.client().upgrade(path).await.unwrap());
        // the second would take what is meant for the first
        assert_eq!(refused().await.refusals[0].code, RefusalCode::VmBusy);
        let guest = tokio::task::spawn_blocking(move || serial.echo(6));
        write_frame(&mut to, FrameKind::Stdin, b"ls").await.unwrap();
        write_frame(&mut to, FrameKind::Stdin, b" -l\r").await.unwrap();
        let mut shown = Vec::new();
        while shown.len() < 12 {
            let frame = read_frame(&mut from).await.unwrap().unwrap();
            assert_eq!(frame.kind, FrameKind::Stdout);
            shown.extend(frame.data);
        }
        assert_eq!(String::from_utf8(shown).unwrap(), "ls -l\rls -l\r");
        drop(guest.await.unwrap());
        assert_eq!(read_frame(&mut from).await.unwrap().unwrap().kind, FrameKind::Exit);
        // and it is free for another client
        let again = Serial::new();
        machine.fakes[0].consoles.lock().unwrap().insert("web".into(), again.path.clone());
        drop(machine.client().upgrade(path).await.unwrap());
        machine.fakes[0].define("web", false, &xml("web"));
        assert_eq!(refused().await.refusals[0].code, RefusalCode::VmNotRunning);
    });
}

#[test]
fn what_was_typed_reaches_a_guest_also_when_who_typed_it_has_left() {
    test(async |machine| {
        machine.fakes[0].define("web", true, &xml("web"));
        let path = "/v1/local/vms/web/console";
        let mut lost = Vec::new();
        for number in 0..20 {
            let serial = Serial::new();
            machine.fakes[0].consoles.lock().unwrap().insert("web".into(), serial.path.clone());
            // there is something to be shown, which it does not wait for
            write(&serial.of_guest, &[b'.'; 2048]).unwrap();
            let (from, mut to) = tokio::io::split(machine.client().upgrade(path).await.unwrap());
            write_frame(&mut to, FrameKind::Stdin, b"typed\r").await.unwrap();
            drop((from, to));
            fcntl_setfl(&serial.of_guest, OFlags::RDWR | OFlags::NONBLOCK).unwrap();
            let hears = async {
                let mut buffer = [0; 64];
                loop {
                    match read(&serial.of_guest, &mut buffer) {
                        Ok(length) => return buffer[..length].to_vec(),
                        Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                    }
                }
            };
            let heard = tokio::time::timeout(Duration::from_secs(5), hears).await.ok();
            if heard.as_deref() != Some(b"typed\r") {
                lost.push(number);
            }
        }
        assert_eq!(lost, [] as [usize; 0], "of 20");
    });
}
