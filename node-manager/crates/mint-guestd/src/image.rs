// SPDX-License-Identifier: Apache-2.0
//! Disk images: what one is, and its copy as a raw file. `qemu-img` does both.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use mint_api::{ErrorBody, ErrorCode, Line};
use mint_serve::lines::Lines;
use serde::Deserialize;
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

const QEMU_IMG: &str = "qemu-img";
/// What is read, one file each. Not what reaches beyond its file (http, nbd, …).
const FORMATS: [&str; 6] = ["raw", "qcow2", "vmdk", "vdi", "vhdx", "vpc"];
/// Between two words about how far a copy is.
const TELLS_EVERY: Duration = Duration::from_secs(1);

/// What an image says of itself.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub(crate) struct Image {
    pub format: String,
    /// Size of the disk.
    #[serde(rename = "virtual-size")]
    pub virtual_bytes: u64,
    /// What it takes now.
    #[serde(rename = "actual-size", default)]
    pub actual_bytes: u64,
    #[serde(rename = "backing-filename")]
    backing: Option<String>,
    #[serde(rename = "format-specific", default)]
    more: Value,
}

impl Image {
    /// Reads what an image says of itself.
    ///
    /// # Errors
    /// When it is none, or `qemu-img` is not there.
    pub async fn of(path: &Path) -> Result<Self, ErrorBody> {
        let failed = |why: &str| {
            let text = format!("{} is no image that qemu-img reads: {why}", path.display());
            ErrorBody::new(ErrorCode::Failed, text)
        };
        let mut command = Command::new(QEMU_IMG);
        command.args(["info", "--output=json"]).arg(path).stdin(Stdio::null()).kill_on_drop(true);
        let done = command.output().await.map_err(|error| failed(&error.to_string()))?;
        if !done.status.success() {
            return Err(failed(String::from_utf8_lossy(&done.stderr).trim()));
        }
        serde_json::from_slice(&done.stdout).map_err(|error| failed(&error.to_string()))
    }

    /// Why it is not taken, if so: its format is not one of [`FORMATS`], or a part of it is in
    /// another file than `path`, its own.
    pub fn unfit(&self, path: &Path) -> Option<String> {
        if !FORMATS.contains(&self.format.as_str()) {
            return Some(format!("its format is {}, not {}", self.format, FORMATS.join(", ")));
        }
        if let Some(backing) = &self.backing {
            return Some(format!("it is only what differs from {backing}"));
        }
        let data = &self.more["data"];
        if let Some(file) = data["data-file"].as_str() {
            return Some(format!("its content is in {file}"));
        }
        let extents = data["extents"].as_array().into_iter().flatten();
        let mut names = extents.filter_map(|extent| extent["filename"].as_str());
        let other = names.find(|name| Path::new(name) != path)?;
        Some(format!("a part of it is in {other}"))
    }

    /// Copies it to a raw file; holes stay holes. Tells how far it is, in percent.
    ///
    /// # Errors
    /// What `qemu-img` said.
    pub async fn copy(&self, from: &Path, to: &Path, lines: &Lines) -> Result<(), ErrorBody> {
        let failed = |why: &str| {
            let text = format!("cannot copy {} to {}: {why}", from.display(), to.display());
            ErrorBody::new(ErrorCode::Failed, text)
        };
        let mut command = Command::new(QEMU_IMG);
        command.args(["convert", "-p", "-f", &self.format, "-O", "raw"]).arg(from).arg(to);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.kill_on_drop(true).spawn().map_err(|error| failed(&error.to_string()))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let telling = async {
            let mut last = Instant::now();
            let mut buffer = [0; 1024];
            let Some(mut stdout) = stdout else { return };
            while let Ok(length @ 1..) = stdout.read(&mut buffer).await {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                if let Some(percent) = percent(&text).filter(|_| last.elapsed() > TELLS_EVERY) {
                    last = Instant::now();
                    lines.send(&Line::Progress(format!("{percent} % copied"))).await;
                }
            }
        };
        let complaining = async {
            let mut text = String::new();
            if let Some(mut stderr) = stderr {
                _ = stderr.read_to_string(&mut text).await;
            }
            text
        };
        let ((), said) = tokio::join!(telling, complaining);
        match child.wait().await {
            Ok(status) if status.success() => Ok(()),
            Ok(_) => Err(failed(said.trim())),
            Err(error) => Err(failed(&error.to_string())),
        }
    }
}

/// Whole percents of the last `(12.34/100%)`.
fn percent(text: &str) -> Option<u32> {
    let (_, last) = text.rsplit_once('(')?;
    last.split_once(['.', '/'])?.0.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(json: &str) -> Image {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn image_with_a_part_elsewhere_is_not_taken() {
        let path = Path::new("/i/web.img");
        let unfit = |more: &str| {
            image(&format!("{{\"format\": \"qcow2\", \"virtual-size\": 1048576{more}}}"))
                .unfit(path)
        };
        assert_eq!(unfit(""), None);
        assert_eq!(
            unfit(r#", "format-specific": {"type": "qcow2", "data": {"compat": "1.1"}}"#),
            None
        );
        assert!(unfit(r#", "backing-filename": "/etc/shadow""#).unwrap().contains("/etc/shadow"));
        let data = r#", "format-specific": {"data": {"data-file": "/etc/shadow"}}"#;
        assert!(unfit(data).unwrap().contains("/etc/shadow"));
        let extents = |name: &str| {
            unfit(&format!(
                r#", "format-specific": {{"data": {{"extents": [{{"filename": "{name}"}}]}}}}"#
            ))
        };
        assert_eq!(extents("/i/web.img"), None);
        assert!(extents("/etc/shadow").unwrap().contains("/etc/shadow"));
        let luks = image(r#"{"format": "luks", "virtual-size": 1}"#);
        assert!(luks.unfit(path).unwrap().contains("luks"));
    }

    #[test]
    fn percents_are_read() {
        assert_eq!(percent("    (0.00/100%)\r    (51.73/100%)\r"), Some(51));
        assert_eq!(percent("    (100/100%)\n"), Some(100));
        assert_eq!(percent("nothing"), None);
    }
}
