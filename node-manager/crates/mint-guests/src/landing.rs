// SPDX-License-Identifier: Apache-2.0
//! A domain's XML for the host that it goes to: CPUs and NUMA nodes of that host in place of
//! those of the one it leaves. All else stays, byte by byte.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use mint_types::CpuSet;
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use crate::domain::{DomainError, cpu_set};
use crate::marks::{ELEMENT, marked};

/// CPUs and NUMA nodes of a host, by its own numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HostCpus {
    /// CPUs that are online.
    pub online: CpuSet,
    /// Those that a vCPU of a running guest has for itself.
    pub taken: CpuSet,
    /// NUMA nodes.
    pub numa_nodes: CpuSet,
}

/// A domain's XML for another host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Landing {
    /// The XML.
    pub xml: String,
    /// What is another there, in words, in the order of the XML.
    pub changes: Vec<String>,
}

/// What is done with a range of the text.
enum Cut {
    Drop,
    Put(String),
}

/// Makes a domain's XML fit another host.
///
/// vCPUs that are pinned to one CPU each get a CPU of their own there: the same one if it is
/// free, else the lowest that is. If there are not enough, none of them is pinned. A list of
/// several CPUs stays if the host has them all, and is left out else; so are NUMA nodes. What a layout of the other
/// host kept vCPUs to ([`crate::marks`]) is left out in any case.
///
/// # Errors
/// When it is no XML, or a list of CPUs cannot be read.
pub fn land(xml: &str, host: &HostCpus) -> Result<Landing, DomainError> {
    let marked = marked(xml);
    let is_marked = |vcpu: &str, set: &CpuSet| {
        marked.iter().any(|pin| pin.vcpu.to_string() == *vcpu && pin.cpus == *set)
    };
    let pins = single_pins(xml, is_marked)?;
    let places = places(&pins, host);
    let mut changes = Vec::new();
    let mut cuts = Vec::new();
    walk(xml, |path, tag, span, is_whole| {
        let cpus = |name: &str| attribute(tag, name);
        match path {
            ["domain", "vcpu"] => {
                let Some(text) = cpus("cpuset")? else { return Ok(()) };
                if !is_there(&text, &host.online)? {
                    changes.push(format!("vCPUs: not kept to CPUs {text}"));
                    cuts.push((span, Cut::Put(changed(tag, "cpuset", None, is_whole)?)));
                }
            }
            ["domain", "cputune", "vcpupin"] => {
                let (Some(vcpu), Some(text)) = (cpus("vcpu")?, cpus("cpuset")?) else {
                    return Ok(());
                };
                let set = read(&text)?;
                if is_marked(&vcpu, &set) {
                    changes.push(format!("vCPU {vcpu}: not kept to CPUs {text} any more"));
                    cuts.push((whole(xml, span, is_whole)?, Cut::Drop));
                    return Ok(());
                }
                let one = set.iter().next().filter(|_| set.len() == 1);
                match one.map(|cpu| (cpu, places.as_ref().and_then(|map| map.get(&cpu)))) {
                    Some((cpu, Some(&there))) if cpu == there => {}
                    Some((cpu, Some(&there))) => {
                        changes.push(format!("vCPU {vcpu}: CPU {cpu} -> CPU {there}"));
                        let there = there.to_string();
                        let fresh = changed(tag, "cpuset", Some(&there), is_whole)?;
                        cuts.push((span, Cut::Put(fresh)));
                    }
                    None if is_there(&text, &host.online)? => {}
                    _ => {
                        changes.push(format!("vCPU {vcpu}: not pinned to {text}"));
                        cuts.push((whole(xml, span, is_whole)?, Cut::Drop));
                    }
                }
            }
            ["domain", "metadata", ELEMENT] => {
                cuts.push((whole(xml, span, is_whole)?, Cut::Drop));
            }
            ["domain", "cputune", "emulatorpin" | "iothreadpin"] => {
                let Some(text) = cpus("cpuset")? else { return Ok(()) };
                if !is_there(&text, &host.online)? {
                    let what = path.last().copied().unwrap_or_default().trim_end_matches("pin");
                    changes.push(format!("{what} threads: not pinned to {text}"));
                    cuts.push((whole(xml, span, is_whole)?, Cut::Drop));
                }
            }
            ["domain", "numatune", "memory" | "memnode"] => {
                let Some(text) = cpus("nodeset")? else { return Ok(()) };
                if !is_there(&text, &host.numa_nodes)? {
                    changes.push(format!("memory: not kept to NUMA nodes {text}"));
                    cuts.push((whole(xml, span, is_whole)?, Cut::Drop));
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(Landing { xml: apply(xml, cuts), changes })
}

/// CPUs that one vCPU alone is pinned to, in the order of vCPUs.
fn single_pins(
    xml: &str,
    is_marked: impl Fn(&str, &CpuSet) -> bool,
) -> Result<Vec<u32>, DomainError> {
    let mut pins = Vec::new();
    walk(xml, |path, tag, _, _| {
        if path == ["domain", "cputune", "vcpupin"] {
            let set = attribute(tag, "cpuset")?.map(|text| read(&text)).transpose()?;
            let set = set.unwrap_or_default();
            if is_marked(&attribute(tag, "vcpu")?.unwrap_or_default(), &set) {
                return Ok(());
            }
            pins.extend(set.iter().next().filter(|_| set.len() == 1));
        }
        Ok(())
    })?;
    Ok(pins)
}

/// For each CPU of a pin, the one of the other host; nothing if it has not enough.
fn places(pins: &[u32], host: &HostCpus) -> Option<BTreeMap<u32, u32>> {
    let mut free: Vec<u32> = host.online.iter().filter(|&cpu| !host.taken.contains(cpu)).collect();
    let mut places = BTreeMap::new();
    for &cpu in pins {
        if let Some(at) = free.iter().position(|&one| one == cpu) {
            places.insert(cpu, free.remove(at));
        }
    }
    for &cpu in pins {
        if let Entry::Vacant(place) = places.entry(cpu) {
            if free.is_empty() {
                return None;
            }
            place.insert(free.remove(0));
        }
    }
    Some(places)
}

fn read(text: &str) -> Result<CpuSet, DomainError> {
    cpu_set(text).ok_or_else(|| DomainError::Unreadable(format!("`{text}` is no list of CPUs")))
}

fn is_there(text: &str, host: &CpuSet) -> Result<bool, DomainError> {
    Ok(read(text)?.iter().all(|one| host.contains(one)))
}

fn attribute(tag: &BytesStart<'_>, name: &str) -> Result<Option<String>, DomainError> {
    let bad = |error: &dyn std::fmt::Display| DomainError::Unreadable(error.to_string());
    let found = tag.try_get_attribute(name).map_err(|error| bad(&error))?;
    found
        .map(|found| found.unescape_value().map(|text| text.trim().to_owned()))
        .transpose()
        .map_err(|error| bad(&error))
}

/// The tag with another value of an attribute, or without it.
fn changed(
    tag: &BytesStart<'_>,
    name: &str,
    value: Option<&str>,
    is_whole: bool,
) -> Result<String, DomainError> {
    let bad = |error: &dyn std::fmt::Display| DomainError::Unreadable(error.to_string());
    let mut fresh = BytesStart::new(String::from_utf8_lossy(tag.name().as_ref()).into_owned());
    for attribute in tag.attributes() {
        let attribute = attribute.map_err(|error| bad(&error))?;
        let key = String::from_utf8_lossy(attribute.key.as_ref());
        if key != name {
            // its quotes may be other ones: what it holds is written anew
            let kept = attribute.unescape_value().map_err(|error| bad(&error))?;
            fresh.push_attribute((key.as_ref(), kept.as_ref()));
        } else if let Some(value) = value {
            fresh.push_attribute((name, value));
        }
    }
    let inner = String::from_utf8_lossy(&fresh);
    Ok(if is_whole { format!("<{inner}/>") } else { format!("<{inner}>") })
}

/// A part of the text, in bytes.
type Span = std::ops::Range<usize>;

/// From the tag that begins an element to its end.
fn whole(xml: &str, tag: Span, is_whole: bool) -> Result<Span, DomainError> {
    if is_whole {
        return Ok(tag);
    }
    let bad = |error: &dyn std::fmt::Display| DomainError::Unreadable(error.to_string());
    let mut reader = Reader::from_str(&xml[tag.start..]);
    if let Event::Start(start) = reader.read_event().map_err(|error| bad(&error))? {
        reader.read_to_end(start.name()).map_err(|error| bad(&error))?;
    }
    let length = usize::try_from(reader.buffer_position()).map_err(|error| bad(&error))?;
    Ok(tag.start..tag.start + length)
}

/// Calls `seen` for each tag that begins an element: with the names of the elements from the
/// document's own to it, the tag, the part of the text that it is, and whether it is the whole
/// element.
fn walk(
    xml: &str,
    mut seen: impl FnMut(&[&str], &BytesStart<'_>, Span, bool) -> Result<(), DomainError>,
) -> Result<(), DomainError> {
    let bad = |error: &dyn std::fmt::Display| DomainError::Unreadable(error.to_string());
    let mut reader = Reader::from_str(xml);
    let mut names: Vec<String> = Vec::new();
    let at = |reader: &Reader<&[u8]>| usize::try_from(reader.buffer_position());
    loop {
        let began = at(&reader).map_err(|error| bad(&error))?;
        let event = reader.read_event().map_err(|error| bad(&error))?;
        let span = began..at(&reader).map_err(|error| bad(&error))?;
        let (tag, is_whole) = match event {
            Event::Start(tag) => (tag, false),
            Event::Empty(tag) => (tag, true),
            Event::End(_) => {
                names.pop();
                continue;
            }
            Event::Eof => return Ok(()),
            _ => continue,
        };
        names.push(String::from_utf8_lossy(tag.name().as_ref()).into_owned());
        // what we look for is at depth three at most
        if names.len() <= 3 {
            let path: Vec<&str> = names.iter().map(String::as_str).collect();
            seen(&path, &tag, span, is_whole)?;
        }
        if is_whole {
            names.pop();
        }
    }
}

/// The text with its cuts, which are in the order of the text.
fn apply(xml: &str, cuts: Vec<(Span, Cut)>) -> String {
    let mut text = String::with_capacity(xml.len());
    let mut at = 0;
    for (span, cut) in cuts {
        text.push_str(&xml[at..span.start]);
        if let Cut::Put(fresh) = cut {
            text.push_str(&fresh);
        }
        at = span.end;
    }
    text.push_str(&xml[at..]);
    text
}

#[cfg(test)]
#[path = "tests/landing.rs"]
mod tests;
