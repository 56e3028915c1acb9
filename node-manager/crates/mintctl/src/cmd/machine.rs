// SPDX-License-Identifier: Apache-2.0
//! `mintctl machine …`.

use std::io::Read;
use std::path::Path;

use mint_api::{LinkRequest, LinkView, MachineIntroduction, MachineView};
use serde_json::{Value, json};

use super::context::{Context, Outcome};
use crate::args::{LinkArgs, MachineCommand};
use crate::failure::Failure;
use crate::output::{Table, or_dash, print, print_json};

/// What another machine says of itself is not longer.
const INTRODUCTION_BYTES_MAX: u64 = 256 << 10;

/// Runs it.
pub async fn run(context: &Context, command: MachineCommand) -> Outcome {
    match command {
        MachineCommand::Show => show(context).await,
        MachineCommand::Introduce => {
            let said: MachineIntroduction = context.client.get("/v1/machine/introduction").await?;
            print_json(&said)?;
            Ok(0)
        }
        MachineCommand::Link(args) => link(context, args).await,
        MachineCommand::Unlink { name } => {
            let path = format!("/v1/machine/links/{name}/remove");
            let answer: Value = context.client.post(&path, &json!({})).await?;
            if context.json {
                print_json(&answer)?;
            } else {
                print(&format!("machine {name} is linked no more; say it there, too"))?;
            }
            Ok(0)
        }
        MachineCommand::Poweroff => end(context, "poweroff").await,
        MachineCommand::Reboot => end(context, "reboot").await,
    }
}

async fn show(context: &Context) -> Outcome {
    let view: MachineView = context.client.get("/v1/machine").await?;
    if context.json {
        print_json(&view)?;
        return Ok(0);
    }
    let id = view.id.map_or_else(|| "without an id".to_owned(), |id| id.to_string());
    print(&format!("machine {id}, nodes in {}", view.subnet))?;
    if !view.links.is_empty() {
        table(&view.links).print()?;
    }
    Ok(0)
}

fn table(links: &[LinkView]) -> Table {
    let mut table = Table::new(&["MACHINE", "STATE", "VIA", "ADDRESS", "SUBNET", "NODES"]);
    for link in links {
        let nodes: Vec<String> =
            link.nodes.iter().map(|node| format!("{}/{}", link.name, node.name)).collect();
        table.row([
            link.name.to_string(),
            state(link),
            format!("node{}", link.via),
            link.address.to_string(),
            link.subnet.to_string(),
            or_dash(nodes.join(" ")),
        ]);
    }
    table
}

fn state(link: &LinkView) -> String {
    if link.is_up { "up".to_owned() } else { format!("down ({})", link.reason) }
}

async fn link(context: &Context, args: LinkArgs) -> Outcome {
    let introduction = read(&args.ca)?;
    let request = LinkRequest { name: args.name, address: args.address, introduction };
    let view: LinkView = context.client.post("/v1/machine/links", &request).await?;
    if context.json {
        print_json(&view)?;
        return Ok(0);
    }
    print(&format!("machine {} is linked: {}", view.name, state(&view)))?;
    if !view.is_up {
        print("say it there, too: it answers only when it knows this machine")?;
    }
    Ok(0)
}

/// What the other machine said of itself.
fn read(path: &Path) -> Result<MachineIntroduction, Failure> {
    let bad = |why: &dyn std::fmt::Display| {
        Failure::usage(format_args!(
            "{}: {why}; it is to be what `mintctl machine introduce` printed on the other machine",
            path.display()
        ))
    };
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().take(INTRODUCTION_BYTES_MAX).read_to_string(&mut text)
    } else {
        std::fs::File::open(path)
            .and_then(|file| file.take(INTRODUCTION_BYTES_MAX).read_to_string(&mut text))
    };
    read.map_err(|error| bad(&error))?;
    serde_json::from_str(&text).map_err(|error| bad(&error))
}

/// Node 0 stops the others on its way down.
async fn end(context: &Context, word: &str) -> Outcome {
    let path = format!("/v1/machine/{word}");
    let answer: Value = context.client.post(&path, &json!({})).await?;
    if context.json {
        print_json(&answer)?;
    } else {
        print(&format!("{word}: node 0 stops all nodes and itself"))?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_no_machine_printed_is_named_with_what_it_is_to_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b");
        for text in [None, Some("{}"), Some("-----BEGIN CERTIFICATE-----")] {
            if let Some(text) = text {
                std::fs::write(&path, text).unwrap();
            }
            let Failure::Error(error) = read(&path).unwrap_err() else { panic!() };
            assert_eq!(error.exit_status(), 2);
            assert!(error.message.contains("mintctl machine introduce"), "{error}");
        }
    }
}
