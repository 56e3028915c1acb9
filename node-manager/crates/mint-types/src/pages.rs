// SPDX-License-Identifier: Apache-2.0
//! What sits in a memory block that its kernel could not empty.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::format_bytes;

/// Holders that are told in words; the others are counted.
const HOLDERS_IN_WORDS: usize = 3;

/// What a page is used for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum PageKind {
    /// Memory of programs, guests' RAM among it.
    Programs,
    /// Content of files, tmpfs among them, that no program maps.
    Files,
    /// Huge pages of hugetlbfs, used or not.
    HugePages,
    /// Page tables.
    PageTables,
    /// Small objects of the kernel.
    Slab,
    /// Other memory of the kernel: stacks, vmalloc, drivers' buffers. Free pages that
    /// a core keeps for itself cannot be told from it.
    Kernel,
    /// Reserved since boot.
    Reserved,
    /// Taken out of use by a driver, such as a balloon.
    Offline,
    /// Memory that failed.
    Poisoned,
}

impl PageKind {
    /// Whether such a page kept the block from being emptied. Programs' and files' pages
    /// did so only if the kernel tried to move them until the time was over.
    pub fn is_in_the_way(self, timed_out: bool) -> bool {
        timed_out || !matches!(self, Self::Programs | Self::Files)
    }

    fn words(self, timed_out: bool) -> &'static str {
        match self {
            Self::Programs if timed_out => "programs' memory (pinned or busy)",
            Self::Programs => "programs' memory",
            Self::Files if timed_out => "files' content (pinned or busy)",
            Self::Files => "files' content",
            Self::HugePages => "huge pages",
            Self::PageTables => "page tables",
            Self::Slab => "the kernel's small objects (slab)",
            Self::Kernel => "other kernel memory (stacks, vmalloc, drivers' buffers)",
            Self::Reserved => "memory reserved since boot",
            Self::Offline => "memory that a driver took out of use",
            Self::Poisoned => "memory that failed",
        }
    }
}

/// How much of a block is of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PagesOfKind {
    /// Which kind.
    pub kind: PageKind,
    /// How much, in KiB.
    pub kib: u64,
}

/// What somebody is who holds pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum HolderKind {
    /// A virtual machine.
    Guest,
    /// Another program.
    Program,
    /// Programs that the kernel counts together, where no single one is known.
    Cgroup,
}

/// Somebody who holds pages of a block.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PageHolder {
    /// What it is.
    pub what: HolderKind,
    /// Name of the guest or program, path of the cgroup.
    pub name: String,
    /// Process on the block's node; none for a cgroup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// How much, in KiB; a page that several share counts for each.
    pub kib: u64,
}

impl fmt::Display for PageHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.what {
            HolderKind::Guest => "guest",
            HolderKind::Program => "program",
            HolderKind::Cgroup => "cgroup",
        };
        write!(f, "{what} {}", self.name)?;
        match self.pid {
            Some(pid) => write!(f, " (process {pid})"),
            None => Ok(()),
        }
    }
}

/// What keeps a memory block where it is, looked at just after the try.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BlockPages {
    /// The kernel tried until the time was over to move what can be moved: what is
    /// left of it is pinned or busy. Else it gave up at once, for the other kinds.
    pub timed_out: bool,
    /// What is there, most first; free pages are not.
    pub kinds: Vec<PagesOfKind>,
    /// Who holds what stands in the way, most first.
    pub holders: Vec<PageHolder>,
    /// Further holders that are not listed.
    #[serde(default)]
    pub more_holders: u32,
    /// Every program and cgroup was looked at; else there may be other holders.
    pub complete: bool,
}

/// `in it: 64M of …, 8K of …; held by guest web (process 71): 64M`.
impl fmt::Display for BlockPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = |kib: u64| format_bytes(kib.saturating_mul(1024));
        for (index, part) in self.kinds.iter().enumerate() {
            f.write_str(if index == 0 { "in it: " } else { ", " })?;
            write!(f, "{} of {}", amount(part.kib), part.kind.words(self.timed_out))?;
        }
        for (index, holder) in self.holders.iter().take(HOLDERS_IN_WORDS).enumerate() {
            f.write_str(if index == 0 { "; held by " } else { ", " })?;
            write!(f, "{holder}: {}", amount(holder.kib))?;
        }
        let listed = self.holders.len().saturating_sub(HOLDERS_IN_WORDS);
        let more = u64::from(self.more_holders).saturating_add(listed as u64);
        if more > 0 {
            write!(f, " and {more} more")?;
        }
        if !self.complete {
            f.write_str("; not all programs could be looked at in time")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> BlockPages {
        BlockPages {
            timed_out: true,
            kinds: vec![
                PagesOfKind { kind: PageKind::Programs, kib: 120 << 10 },
                PagesOfKind { kind: PageKind::Kernel, kib: 12 },
            ],
            holders: vec![
                PageHolder {
                    what: HolderKind::Guest,
                    name: "web".into(),
                    pid: Some(71),
                    kib: 120 << 10,
                },
                PageHolder {
                    what: HolderKind::Cgroup,
                    name: "/db.slice".into(),
                    pid: None,
                    kib: 12,
                },
            ],
            more_holders: 0,
            complete: true,
        }
    }

    #[test]
    fn words_name_kinds_and_holders() {
        assert_eq!(
            pages().to_string(),
            "in it: 120M of programs' memory (pinned or busy), 12K of other kernel memory \
             (stacks, vmalloc, drivers' buffers); held by guest web (process 71): 120M, \
             cgroup /db.slice: 12K"
        );
    }

    #[test]
    fn words_stay_short_and_say_what_is_not_known() {
        let mut pages = pages();
        let one = pages.holders[0].clone();
        pages.holders = vec![one; 5];
        pages.more_holders = 2;
        pages.complete = false;
        let text = pages.to_string();
        assert!(text.ends_with(" and 4 more; not all programs could be looked at in time"));
        assert_eq!(text.matches("guest web").count(), 3);
    }

    #[test]
    fn kinds_and_holders_have_stable_names_on_the_wire() {
        let json = serde_json::to_value(pages()).unwrap();
        assert_eq!(json["kinds"][0], serde_json::json!({ "kind": "programs", "kib": 122_880 }));
        assert_eq!(json["holders"][0]["what"], "guest");
        assert_eq!(json["holders"][0]["pid"], 71);
        assert!(json["holders"][1].get("pid").is_none());
        assert_eq!(serde_json::from_value::<BlockPages>(json).unwrap(), pages());
    }
}
