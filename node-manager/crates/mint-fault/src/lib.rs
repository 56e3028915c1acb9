// SPDX-License-Identifier: Apache-2.0
//! Named steps of Mint's daemons, for the rig's tests of what a death there leaves behind.
//!
//! If `MINT_FAULT` in a daemon's environment names a file that holds the name of a step, the
//! first one that comes there
//!
//! - ends the daemon at once (`STEP`),
//! - ends its node's kernel (`STEP panic`), or
//! - stands still (`STEP halt`) until [`halted`]`(FILE)` is gone, so that a test can end
//!   something else just then.
//!
//! The file goes first: so a test sees that the step was hit, and it is hit once. Without
//! `MINT_FAULT` a step looks at the environment, and nothing else.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::abort;
use std::thread::sleep;
use std::time::Duration;

const VARIABLE: &str = "MINT_FAULT";
/// Between looks whether a halt is over.
const LOOK: Duration = Duration::from_millis(20);

/// What a step's file asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Abort,
    Panic,
    Halt,
}

/// Whether steps look at anything: a daemon may save the way there.
pub fn is_armed() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// The step of that name. Blocks where it is asked to.
pub fn fault_point(step: &str) {
    let Some(file) = std::env::var_os(VARIABLE).map(PathBuf::from) else { return };
    match hit(&file, step) {
        None => {}
        Some(Fault::Halt) => wait(&halted(&file)),
        Some(Fault::Panic) => {
            _ = fs::write("/proc/sysrq-trigger", "c");
            abort();
        }
        Some(Fault::Abort) => abort(),
    }
}

/// The file that is there while a step stands still.
pub fn halted(file: &Path) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(".halted");
    name.into()
}

/// Whether the file asks for something at this step; it does not any more then.
fn hit(file: &Path, step: &str) -> Option<Fault> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut words = text.split_whitespace();
    if words.next() != Some(step) {
        return None;
    }
    let fault = match words.next() {
        Some("panic") => Fault::Panic,
        Some("halt") => Fault::Halt,
        _ => Fault::Abort,
    };
    // of several that come here, one finds the file
    let taken = match fault {
        Fault::Halt => fs::rename(file, halted(file)),
        Fault::Abort | Fault::Panic => fs::remove_file(file),
    };
    taken.is_ok().then_some(fault)
}

fn wait(halted: &Path) {
    while halted.exists() {
        sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_is_hit_once_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("fault");
        assert_eq!(hit(&file, "after-claim"), None);
        for (text, fault) in [
            ("after-claim\n", Fault::Abort),
            ("after-claim panic\n", Fault::Panic),
            ("after-claim halt\n", Fault::Halt),
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(hit(&file, "after-release"), None);
            assert_eq!(hit(&file, "after-claim"), Some(fault));
            assert_eq!(halted(&file).exists(), fault == Fault::Halt);
            assert_eq!(hit(&file, "after-claim"), None);
        }
    }

    #[test]
    fn halt_lasts_as_long_as_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("fault");
        fs::write(&file, "here halt").unwrap();
        let stands = file.clone();
        let daemon = std::thread::spawn(move || {
            assert_eq!(hit(&stands, "here"), Some(Fault::Halt));
            wait(&halted(&stands));
        });
        while !halted(&file).exists() {
            sleep(LOOK);
        }
        assert!(!daemon.is_finished());
        fs::remove_file(halted(&file)).unwrap();
        daemon.join().unwrap();
    }
}
