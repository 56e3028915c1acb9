// SPDX-License-Identifier: Apache-2.0
//! Commands that are not about one node.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use jiff::Timestamp;
use mint_api::{ApplyRequest, ApplyResult, DoctorReport, EventView, Hello, Repaired, WaitFor};
use serde_json::{Value, json};

use super::context::{Context, Outcome};
use crate::args::{Args, Wait};
use crate::output::{print, print_json};

/// `doctor`: 1 when something is not in order.
pub async fn doctor(context: &Context, repair: bool) -> Outcome {
    let report: DoctorReport = if repair {
        let repaired: Repaired = context.client.post("/v1/repair", &json!({})).await?;
        repaired.done.iter().for_each(|text| eprintln!("repaired: {text}"));
        repaired.report
    } else {
        context.client.get("/v1/doctor").await?
    };
    if context.json {
        print_json(&report)?;
    } else {
        for check in &report.checks {
            print(&format!("{:<4}  {:<10} {}", check.status, check.name, check.detail))?;
        }
    }
    Ok(u8::from(!report.ok))
}

/// `events`.
pub async fn events(context: &Context, follow: bool, since: u64) -> Outcome {
    let path = format!("/v1/events?follow={follow}&since={since}");
    let mut lines = context.client.lines(&path, None).await?;
    while let Some(raw) = lines.next_raw().await? {
        if context.json {
            print(&String::from_utf8_lossy(&raw))?;
        } else if let Ok(event) = serde_json::from_slice::<EventView>(&raw) {
            print(&sentence(&event))?;
        }
        std::io::stdout().flush()?;
    }
    Ok(0)
}

fn sentence(event: &EventView) -> String {
    let what = match (&event.old, &event.new) {
        (Some(old), Some(new)) if event.event == "state" => format!("{old} -> {new}"),
        (Some(old), Some(new)) => format!("{} {old} -> {new}", event.event),
        _ => event.event.clone(),
    };
    let reason =
        if event.reason.is_empty() { String::new() } else { format!(": {}", event.reason) };
    let at = utc(event.time_ns);
    format!("{at} #{} node {} ({}) {what}{reason}", event.seq, event.node, event.name)
}

/// Date and time of ns since 1970, to the second.
pub fn utc(ns: u64) -> String {
    let seconds = i64::try_from(ns / 1_000_000_000).expect("a billionth of what has 64 bits");
    Timestamp::from_second(seconds).expect("64 bits of ns end in 2554").to_string()
}

/// `apply`: the worst status of all nodes.
pub async fn apply(context: &Context, dir: Option<PathBuf>, wait: Wait) -> Outcome {
    let dir = dir.map(|dir| std::path::absolute(&dir).unwrap_or(dir));
    let request = ApplyRequest {
        dir: dir.map(|dir| dir.to_string_lossy().into_owned()),
        wait: match wait {
            Wait::Mintd => WaitFor::Mintd,
            Wait::Running => WaitFor::Running,
        },
    };
    let result: ApplyResult =
        context.client.operate("/v1/apply", &request, |text| eprintln!("{text}")).await?;
    tell_applied(context, &result)
}

/// What became of all descriptions.
pub fn tell_applied(context: &Context, result: &ApplyResult) -> Outcome {
    if context.json {
        print_json(result)?;
    } else {
        for node in &result.nodes {
            print(&format!("{}: {}", node.name, node.result))?;
        }
        if result.nodes.is_empty() {
            print("no node is described")?;
        }
    }
    let worst = |node: &mint_api::Applied| node.error.as_ref().map_or(0, |e| e.exit_status());
    Ok(result.nodes.iter().map(worst).max().unwrap_or(0))
}

/// `config show`.
pub async fn config(context: &Context) -> Outcome {
    let config: Value = context.client.get("/v1/config").await?;
    if context.json {
        print_json(&config)?;
    } else {
        print(toml::to_string_pretty(&config).map_err(std::io::Error::other)?.trim_end())?;
    }
    Ok(0)
}

/// `version`: works without a daemon.
pub async fn version(context: &Context) -> Outcome {
    let ours = env!("CARGO_PKG_VERSION");
    let daemon = context.client.get::<Hello>("/v1/hello").await.ok();
    if context.json {
        print_json(&json!({
            "mintctl": ours,
            "mintd": daemon.as_ref().map(|hello| &hello.version),
            "node": daemon.as_ref().map(|hello| hello.node),
            "name": daemon.as_ref().map(|hello| &hello.name),
        }))?;
    } else {
        print(&format!("mintctl {ours}"))?;
        print(&match daemon {
            Some(hello) => {
                format!("mintd {} on node {} ({})", hello.version, hello.node, hello.name)
            }
            None => "mintd does not answer".to_owned(),
        })?;
    }
    Ok(0)
}

/// `completions`.
pub fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "mintctl", &mut text);
    std::io::stdout().lock().write_all(&text)?;
    Ok(0)
}

/// `man`: one page per command.
pub fn man(folder: &Path) -> Outcome {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Args::command(), folder)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let second = |seconds: u64| utc(seconds * 1_000_000_000 + 999_999_999);
        assert_eq!(second(0), "1970-01-01T00:00:00Z");
        assert_eq!(second(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(second(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(second(1_740_787_200), "2025-03-01T00:00:00Z");
        assert_eq!(utc(u64::MAX), "2554-07-21T23:34:33Z");
    }

    #[test]
    fn man_pages_and_completions_are_made() {
        let folder = tempfile::tempdir().unwrap();
        man(folder.path()).unwrap();
        for page in ["mintctl.1", "mintctl-node-add.1"] {
            let text = fs::read_to_string(folder.path().join(page)).unwrap();
            assert!(text.contains("mintctl"), "{page}");
        }
    }
}
