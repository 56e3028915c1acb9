// SPDX-License-Identifier: Apache-2.0
//! Any domain becomes one whose memory can be split (S-memV, 3-1): from its next start it has all
//! of it at its main host, in a file, with a monitor for its pager. Whatever else is in its XML
//! stays as it is.

use mint_types::{Refusal, RefusalCode, parse_bytes};

use crate::domain::{Domain, DomainError, element};
use crate::split::{CHUNK, NAMESPACE, QEMU_NAMESPACE, monitor, monitor_arguments};

/// A domain cannot become such a one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PrepareError {
    /// Its XML is no good.
    #[error(transparent)]
    Domain(#[from] DomainError),
    /// Every reason why not.
    #[error("refused for {} reasons", .0.len())]
    Refused(Vec<Refusal>),
}

/// What is in a domain that does not go with pages that come and go, by its path, in words.
const ODD: [(&[&str], &str); 6] = [
    (&["domain", "memoryBacking", "hugepages"], "huge pages"),
    (&["domain", "memoryBacking", "locked"], "locked memory"),
    (&["domain", "memoryBacking", "allocation"], "a wish when its memory is allocated"),
    (&["domain", "maxMemory"], "memory that is plugged in while it runs"),
    (&["domain", "devices", "memory"], "memory modules"),
    (&["domain", "cpu", "numa"], "several files of memory, one for each of its NUMA nodes"),
];

/// The XML that a domain is to be defined with; none if it is such a one already.
///
/// # Errors
/// With every reason why it cannot be.
pub fn prepare(xml: &str) -> Result<Option<String>, PrepareError> {
    let domain = Domain::parse(xml)?;
    let backing = element(xml, &["domain", "memoryBacking"]);
    let has_file = backing.is_none_or(|backing| {
        let has = |path: &[&str], value: &str| {
            element(backing, path).is_none_or(|text| text.contains(value))
        };
        has(&["memoryBacking", "source"], "file") && has(&["memoryBacking", "access"], "shared")
    });
    if domain.is_split && monitor(xml).is_some() {
        return Ok(None);
    }
    let mut odd: Vec<String> = ODD
        .iter()
        .filter(|(path, _)| element(xml, path).is_some())
        .map(|(_, what)| (*what).into())
        .collect();
    odd.extend(domain.passed.iter().cloned());
    odd.extend(
        domain
            .folders
            .iter()
            .map(|folder| format!("the folder {folder}, whose server maps its memory")),
    );
    if xml.contains("type='vhostuser'") {
        odd.push("a vhost-user device, whose server maps its memory".into());
    }
    if !has_file {
        odd.push("memory that is not a shared file".into());
    }
    if !odd.is_empty() {
        let refusal = |what: &String| {
            let text = format!("vm {} has {what}: its memory cannot be split", domain.name);
            Refusal::new(RefusalCode::VmTied, format_args!("vm {}", domain.name), text)
                .hint("take it from the domain first: virsh edit")
        };
        return Err(PrepareError::Refused(odd.iter().map(refusal).collect()));
    }
    let mut new = xml.to_owned();
    if !domain.is_split {
        let chunk = parse_bytes(CHUNK).unwrap_or(1 << 16);
        let memory = domain.memory_bytes;
        let text =
            format!("<mint:memory xmlns:mint='{NAMESPACE}' main='{memory}' chunk='{chunk}'/>");
        new = put(&new, "metadata", &text)?;
    }
    // libvirt has one of each
    for (name, text) in [("source", "<source type='file'/>"), ("access", "<access mode='shared'/>")]
    {
        if element(&new, &["domain", "memoryBacking", name]).is_none() {
            new = put(&new, "memoryBacking", text)?;
        }
    }
    if monitor(&new).is_none() {
        let arguments = monitor_arguments(&domain.name);
        let text: String =
            arguments.iter().map(|value| format!("<qemu:arg value='{value}'/>")).collect();
        new = put(&with_namespace(&new)?, "qemu:commandline", &text)?;
    }
    Ok(Some(new))
}

fn broken(what: &str) -> DomainError {
    DomainError::Unreadable(format!("its {what}"))
}

/// Adds text at the end of a child of the domain, which is made if it is not there.
pub(crate) fn put(xml: &str, name: &str, text: &str) -> Result<String, DomainError> {
    let whole = |inner: &str| format!("<{name}>{inner}{text}</{name}>");
    match element(xml, &["domain", name]) {
        None => {
            let at = xml.rfind("</domain>").ok_or_else(|| broken("end"))?;
            Ok(format!("{}{}{}", &xml[..at], whole(""), &xml[at..]))
        }
        Some(child) => {
            let at = child.as_ptr().addr() - xml.as_ptr().addr();
            let end = format!("</{name}>");
            let new = match child.strip_suffix(end.as_str()) {
                Some(open) => format!("{open}{text}{end}"),
                // an empty one
                None => whole(""),
            };
            Ok(format!("{}{new}{}", &xml[..at], &xml[at + child.len()..]))
        }
    }
}

fn with_namespace(xml: &str) -> Result<String, DomainError> {
    let at = xml.find("<domain").ok_or_else(|| broken("beginning"))?;
    let end = xml[at..].find('>').ok_or_else(|| broken("beginning"))? + at;
    if xml[at..end].contains("xmlns:qemu") {
        return Ok(xml.to_owned());
    }
    let after = at + "<domain".len();
    Ok(format!("{} xmlns:qemu='{QEMU_NAMESPACE}'{}", &xml[..after], &xml[after..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::tests::WEB;
    use crate::split::Split;

    #[test]
    fn domain_gets_what_it_needs_and_keeps_all_else() {
        let plain = WEB.replace("memoryBacking", "other");
        let new = prepare(&plain).unwrap().unwrap();
        let domain = Domain::parse(&new).unwrap();
        let split = Split::of_domain(&new).unwrap().unwrap();
        assert_eq!((split.main_bytes, split.chunk_bytes), (domain.memory_bytes, 64 << 10));
        assert_eq!(split.shares, []);
        assert_eq!(monitor(&new).as_deref(), Some("/run/mint/qmp/web"));
        assert_eq!(
            element(&new, &["domain", "memoryBacking"]).unwrap().matches("<source").count(),
            1
        );
        let before = Domain::parse(&plain).unwrap();
        assert_eq!(Domain { is_split: false, ..domain }, before);
        // again, nothing is to be done
        assert_eq!(prepare(&new).unwrap(), None);
        // what is there already is kept
        let half = plain.replacen(
            "<name>",
            "<metadata><a:b xmlns:a='urn:a'/></metadata><memoryBacking><nosharepages/></memoryBacking><name>",
            1,
        );
        let new = prepare(&half).unwrap().unwrap();
        assert!(new.contains("<a:b xmlns:a='urn:a'/><mint:memory"), "{new}");
        assert!(
            new.contains("<nosharepages/><source type='file'/><access mode='shared'/>"),
            "{new}"
        );
    }

    #[test]
    fn domain_whose_memory_others_hold_is_refused() {
        let plain = WEB.replace("memoryBacking", "other");
        let with = |text: &str| {
            let xml = plain.replacen("<name>", &format!("{text}<name>"), 1);
            match prepare(&xml) {
                Err(PrepareError::Refused(refusals)) => refusals.len(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(with("<memoryBacking><hugepages/><locked/></memoryBacking>"), 2);
        assert_eq!(with("<memoryBacking><source type='memfd'/></memoryBacking>"), 1);
        assert_eq!(with("<maxMemory slots='2' unit='KiB'>9</maxMemory>"), 1);
        assert!(matches!(prepare("<domain"), Err(PrepareError::Domain(_))));
    }
}
