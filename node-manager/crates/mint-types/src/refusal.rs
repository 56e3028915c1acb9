// SPDX-License-Identifier: Apache-2.0
//! Why a plan is not carried out.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::pages::BlockPages;

/// Stable code of a refusal: scripts compare it, so its text never changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each name is its own documentation")]
pub enum RefusalCode {
    NameTaken,
    NameBad,
    NoFreeNode,
    CpuAbsent,
    CpuOwned,
    CpuLast,
    CpuBoot,
    CpuMoving,
    CpuPinned,
    CpuShort,
    MemoryShort,
    MemoryAbsent,
    MemoryBad,
    MemoryBusy,
    MemoryKept,
    DeviceAbsent,
    DeviceOwned,
    DeviceBridge,
    DevicePlatform,
    DeviceNoMsi,
    DeviceBusy,
    DeviceGroup,
    DeviceLent,
    DeviceIommu,
    ImageMissing,
    ImageNotKernel,
    ImageTruncated,
    ImageNoMint,
    ImageTooLarge,
    InitrdMissing,
    InitrdTruncated,
    InitrdUnknown,
    NodeRunning,
    NodeNotRunning,
    NodeAbsent,
    NodeSelf,
    DescriptionMissing,
    PeerUnreachable,
    OperationHolds,
    OperationOver,
    PastNoReturn,
    UndoAbsent,
    IntentRoom,
    MachineAbsent,
    MachineSelf,
    MachineSubnet,
    KernelRefused,
    SignalAbsent,
    NodeEnding,
    VmAbsent,
    VmAmbiguous,
    VmBootFile,
    VmBusy,
    VmCpu,
    VmDiskMissing,
    VmDiskShort,
    VmDiskTaken,
    VmFolder,
    VmHere,
    VmMachine,
    VmNameTaken,
    VmNetwork,
    VmNotRunning,
    VmPassthrough,
    VmTied,
}

/// One reason why a plan is not carried out: what, who owns it, the way out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Refusal {
    /// Stable code.
    pub code: RefusalCode,
    /// On which resource, e.g. `cpu 4`.
    pub resource: String,
    /// Who owns it now; empty when that says nothing.
    #[serde(default)]
    pub owner: String,
    /// One sentence.
    pub message: String,
    /// What to do about it; empty when there is nothing to be done.
    #[serde(default)]
    pub hint: String,
    /// Of a memory block that its kernel could not empty: what is in it; none where the
    /// kernel does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages: Option<Box<BlockPages>>,
}

impl Refusal {
    /// A refusal without owner and hint.
    pub fn new(code: RefusalCode, resource: impl fmt::Display, message: impl fmt::Display) -> Self {
        Self {
            code,
            resource: resource.to_string(),
            owner: String::new(),
            message: message.to_string(),
            hint: String::new(),
            pages: None,
        }
    }

    /// Says who owns the resource.
    #[must_use]
    pub fn owned_by(mut self, owner: impl fmt::Display) -> Self {
        self.owner = owner.to_string();
        self
    }

    /// Says what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = hint.to_string();
        self
    }

    /// Says what is in the memory block.
    #[must_use]
    pub fn with_pages(mut self, pages: BlockPages) -> Self {
        self.message.push_str("; ");
        self.message.push_str(&pages.to_string());
        self.pages = Some(Box::new(pages));
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.hint.is_empty() { Ok(()) } else { write!(f, "; {}", self.hint) }
    }
}
