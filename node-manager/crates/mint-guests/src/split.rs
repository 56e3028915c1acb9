// SPDX-License-Identifier: Apache-2.0
//! A guest whose memory is split (S-memV, 3-1): what its main host has for it, and which other
//! hosts keep the rest. It stands in the metadata of its domain XML, where libvirt keeps it.

use mint_types::{PagingPolicy, format_bytes, parse_bytes};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use crate::domain::{DomainError, MEMORY_ELEMENT as ELEMENT, element};

/// Folder with QEMU's monitors for pagers: it is QEMU's user's.
pub const MONITORS: &str = "/run/mint/qmp";
/// Namespace of what libvirt passes on to QEMU as it stands.
pub(crate) const QEMU_NAMESPACE: &str = "http://libvirt.org/schemas/domain/qemu/1.0";
/// Chunks that pages go and come by, where nothing else is asked for.
pub const CHUNK: &str = "64K";
/// Namespace of the element in a domain's metadata.
pub(crate) const NAMESPACE: &str = "urn:mint:memory:1";
pub(crate) const HOST: &str = "mint:host";
/// The word for the host that runs the guest.
const MAIN: &str = "main";
/// The word for what is left.
const REST: &str = "rest";
/// A memory server and its mirror.
pub const COPIES_MAX: u32 = 2;
const PAGE_BYTES: u64 = 4096;
const CHUNK_BYTES_MAX: u64 = 2 << 20;
/// What the main host has at least: one chunk comes while another leaves, and something stays.
const MAIN_CHUNKS_MIN: u64 = 4;

/// A host's share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Share {
    /// The node, as its user calls it.
    pub node: String,
    /// How much of the guest's memory it may keep.
    pub bytes: u64,
}

/// How a guest's memory is split.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Split {
    /// What its main host has for it.
    pub main_bytes: u64,
    /// Of a chunk.
    pub chunk_bytes: u64,
    /// How its pager chooses what goes.
    pub policy: PagingPolicy,
    /// Hosts that have each page that main has not: 1 or 2.
    pub copies: u32,
    /// Hosts that keep the rest; none of a guest whose memory can be split, and is not yet.
    pub shares: Vec<Share>,
}

/// Memory cannot be split like this.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SplitError {
    /// Not a list of hosts and sizes.
    #[error("'{0}' is no HOST=SIZE: want main=SIZE and other hosts, like main=256M,node2=rest")]
    Word(String),
    /// A host is there twice, or main is not.
    #[error("'{0}' names no main, or a host twice: want main=SIZE and other hosts, each once")]
    Hosts(String),
    /// No other host has anything.
    #[error("main has room for all of the guest's {}: nothing is split", format_bytes(*.0))]
    Whole(u64),
    /// Less than the guest has.
    #[error("{} of the guest's {} are nobody's: name more, or a host with 'rest'", format_bytes(.0 - .1), format_bytes(*.0))]
    Short(u64, u64),
    /// Not a power of two from a page to 2 MiB.
    #[error("a chunk of '{0}': want a power of two from 4K to 2M")]
    Chunk(String),
    /// Less than pages can go and come in.
    #[error("main has less than {MAIN_CHUNKS_MIN} chunks of {}", format_bytes(*.0))]
    Main(u64),
}

impl Split {
    /// Of words like `main=256M,node2=rest`, for a guest with so much memory.
    ///
    /// # Errors
    /// When it cannot be split so.
    pub fn parse(words: &str, chunk: &str, memory_bytes: u64) -> Result<Self, SplitError> {
        let bad_chunk = || SplitError::Chunk(chunk.to_owned());
        let chunk_bytes = parse_bytes(chunk).map_err(|_| bad_chunk())?;
        let (mut main, mut rest, mut shares) = (None, None, Vec::<Share>::new());
        for word in words.split(',') {
            let bad = || SplitError::Word(word.to_owned());
            let (node, size) = word.split_once('=').ok_or_else(bad)?;
            let is_new = !shares.iter().any(|share| share.node == node);
            if node.is_empty() || !is_new || (node == MAIN && main.is_some()) {
                return Err(SplitError::Hosts(words.to_owned()));
            }
            match size {
                REST if node == MAIN || rest.is_some() => return Err(bad()),
                REST => {
                    rest = Some(shares.len());
                    shares.push(Share { node: node.to_owned(), bytes: 0 });
                }
                size => {
                    let bytes = parse_bytes(size).map_err(|_| bad())? / PAGE_BYTES * PAGE_BYTES;
                    match node {
                        MAIN => main = Some(bytes),
                        node => shares.push(Share { node: node.to_owned(), bytes }),
                    }
                }
            }
        }
        let main_bytes = main.ok_or_else(|| SplitError::Hosts(words.to_owned()))?;
        let sum = |shares: &[Share]| {
            shares.iter().fold(main_bytes, |sum, share| sum.saturating_add(share.bytes))
        };
        if let Some(share) = rest.and_then(|rest| shares.get(rest).map(|_| rest)) {
            shares[share].bytes = memory_bytes.saturating_sub(sum(&shares));
        }
        let policy = PagingPolicy::default();
        let split = Self { main_bytes, chunk_bytes, policy, copies: 1, shares };
        split.check(memory_bytes, sum(&split.shares), bad_chunk)?;
        Ok(split)
    }

    fn check(
        &self,
        memory_bytes: u64,
        sum: u64,
        bad_chunk: impl FnOnce() -> SplitError,
    ) -> Result<(), SplitError> {
        let in_range = (PAGE_BYTES..=CHUNK_BYTES_MAX).contains(&self.chunk_bytes);
        if !in_range || !self.chunk_bytes.is_power_of_two() {
            return Err(bad_chunk());
        }
        if self.main_bytes >= memory_bytes || self.shares.is_empty() {
            return Err(SplitError::Whole(memory_bytes));
        }
        if sum < memory_bytes {
            return Err(SplitError::Short(memory_bytes, sum));
        }
        if self.main_bytes < MAIN_CHUNKS_MIN * self.chunk_bytes {
            return Err(SplitError::Main(self.chunk_bytes));
        }
        Ok(())
    }

    /// What a domain's XML says; none of a guest that is not split.
    ///
    /// # Errors
    /// When it says something that makes no sense.
    pub fn of_domain(xml: &str) -> Result<Option<Self>, DomainError> {
        let Some(text) = element(xml, &["domain", "metadata", ELEMENT]) else { return Ok(None) };
        let bad = || DomainError::Unreadable(format!("its metadata {ELEMENT}"));
        let mut reader = Reader::from_str(text);
        let mut split: Option<Self> = None;
        loop {
            match reader.read_event().map_err(|_| bad())? {
                Event::Start(tag) | Event::Empty(tag) => {
                    let number =
                        |name| attribute(&tag, name).and_then(|value| value.parse::<u64>().ok());
                    if tag.name().as_ref() == ELEMENT.as_bytes() {
                        split = Some(Self {
                            main_bytes: number("main").ok_or_else(bad)?,
                            chunk_bytes: number("chunk").ok_or_else(bad)?,
                            policy: match attribute(&tag, "policy") {
                                Some(policy) => policy.parse().map_err(|_| bad())?,
                                None => PagingPolicy::default(),
                            },
                            copies: match attribute(&tag, "copies") {
                                Some(copies) => copies.parse().map_err(|_| bad())?,
                                None => 1,
                            },
                            shares: Vec::new(),
                        });
                    } else if tag.name().as_ref() == HOST.as_bytes() {
                        let node = attribute(&tag, "node").ok_or_else(bad)?;
                        let bytes = number("bytes").ok_or_else(bad)?;
                        split.as_mut().ok_or_else(bad)?.shares.push(Share { node, bytes });
                    }
                }
                Event::Eof => break,
                _ => {}
            }
        }
        let split = split.ok_or_else(bad)?;
        let good = (1..=COPIES_MAX).contains(&split.copies)
            && split.chunk_bytes.is_power_of_two()
            && (PAGE_BYTES..=CHUNK_BYTES_MAX).contains(&split.chunk_bytes)
            && split.main_bytes >= MAIN_CHUNKS_MIN * split.chunk_bytes;
        good.then_some(Some(split)).ok_or_else(bad)
    }
}

/// Arguments for QEMU: a monitor beside libvirt's, for the guest of that name.
pub(crate) fn monitor_arguments(name: &str) -> [String; 2] {
    ["-qmp".to_owned(), format!("unix:{MONITORS}/{name},server=on,wait=off")]
}

/// Where a domain's QEMU has such a monitor; none: its memory does not move.
pub fn monitor(xml: &str) -> Option<String> {
    let text = element(xml, &["domain", "qemu:commandline"])?;
    let mut reader = Reader::from_str(text);
    loop {
        match reader.read_event().ok()? {
            Event::Start(tag) | Event::Empty(tag) if tag.name().as_ref() == b"qemu:arg" => {
                let value = attribute(&tag, "value")?;
                let path = value.strip_prefix("unix:").and_then(|rest| rest.split(',').next());
                let of_ours = |path: &&str| {
                    let name = path.strip_prefix(MONITORS).and_then(|rest| rest.strip_prefix('/'));
                    name.is_some_and(|name| !name.is_empty() && !name.contains('/'))
                };
                if let Some(path) = path.filter(of_ours) {
                    return Some(path.to_owned());
                }
            }
            Event::Eof => return None,
            _ => {}
        }
    }
}

fn attribute(tag: &BytesStart<'_>, name: &str) -> Option<String> {
    let value = tag.try_get_attribute(name).ok()??;
    Some(value.unescape_value().ok()?.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;

    fn share(node: &str, bytes: u64) -> Share {
        Share { node: node.to_owned(), bytes }
    }

    #[test]
    fn rest_is_what_nobody_else_has() {
        let split = Split::parse("main=256M,node1=128M,b/node0=rest", "64K", GIB).unwrap();
        assert_eq!((split.main_bytes, split.chunk_bytes), (256 * MIB, 64 << 10));
        assert_eq!(split.shares, [share("node1", 128 * MIB), share("b/node0", 640 * MIB)]);
        let all = Split::parse("node1=2G,main=256M", "4K", GIB).unwrap();
        assert_eq!(all.shares, [share("node1", 2 * GIB)]);
    }

    #[test]
    fn what_is_no_split_is_told() {
        let error = |words, chunk| Split::parse(words, chunk, GIB).unwrap_err();
        for words in ["", "main", "main=256M,node2", "main=x,node2=rest", "main=rest,node2=1G"] {
            assert!(matches!(error(words, "64K"), SplitError::Word(_)), "{words}");
        }
        assert!(matches!(error("main=1M,a=rest,b=rest", "64K"), SplitError::Word(_)));
        for words in ["node2=rest", "main=1M,main=2M,a=rest", "main=1M,a=1M,a=rest", "main=1M,=1M"]
        {
            assert!(matches!(error(words, "64K"), SplitError::Hosts(_)), "{words}");
        }
        assert_eq!(error("main=1G,node2=rest", "64K"), SplitError::Whole(GIB));
        assert_eq!(error("main=512M", "64K"), SplitError::Whole(GIB));
        assert_eq!(error("main=256M,node2=256M", "64K"), SplitError::Short(GIB, 512 * MIB));
        assert!(
            error("main=256M,node2=256M", "64K").to_string().starts_with("512M of the guest's 1G")
        );
        for chunk in ["0", "x", "2K", "96K", "4M"] {
            assert!(
                matches!(error("main=256M,node2=rest", chunk), SplitError::Chunk(_)),
                "{chunk}"
            );
        }
        assert_eq!(error("main=4M,node2=rest", "2M"), SplitError::Main(2 * MIB));
    }

    #[test]
    fn monitor_is_one_in_its_folder() {
        let domain = |value: &str| {
            format!(
                "<domain xmlns:qemu='{QEMU_NAMESPACE}'><qemu:commandline><qemu:arg value='-qmp'/>\
                 <qemu:arg value='{value}'/></qemu:commandline></domain>"
            )
        };
        let [_, good] = monitor_arguments("web");
        assert_eq!(monitor(&domain(&good)).as_deref(), Some("/run/mint/qmp/web"));
        for other in
            ["unix:/tmp/web,server=on", "unix:/run/mint/qmp/../x", "unix:/run/mint/qmp/", ""]
        {
            assert_eq!(monitor(&domain(other)), None, "{other}");
        }
        assert_eq!(monitor("<domain/>"), None);
    }

    #[test]
    fn metadata_of_other_programs_is_none() {
        let domain = |metadata: &str| format!("<domain><metadata>{metadata}</metadata></domain>");
        assert_eq!(Split::of_domain("<domain/>"), Ok(None));
        assert_eq!(Split::of_domain(&domain("<a:b xmlns:a='urn:a'><c/></a:b>")), Ok(None));
        for bad in [
            "<mint:memory main='1' chunk='65536'><mint:host node='a' bytes='1'/></mint:memory>",
            "<mint:memory main='1048576' chunk='65535'><mint:host node='a' bytes='1'/></mint:memory>",
            "<mint:memory main='1048576'><mint:host node='a' bytes='1'/></mint:memory>",
            "<mint:memory main='1048576' chunk='65536'><mint:host bytes='1'/></mint:memory>",
        ] {
            assert!(Split::of_domain(&domain(bad)).is_err(), "{bad}");
        }
    }
}
