// SPDX-License-Identifier: Apache-2.0
//! What `mintd` and `mintctl` say to each other: HTTP/1.1 with JSON, on a Unix
//! socket for this node's users and with mutual TLS on `mint0` for peers.
//!
//! - Plain requests have one JSON document as answer.
//! - Operations answer with lines of JSON, [`Line`]: progress, then exactly one
//!   result or error. One that ends before it has said anything answers with the status
//!   of its error and no lines: 400, 404 (no such node), 409 (refused) and so on; later
//!   errors are lines of an answer that has begun with 200. A client that goes away ends
//!   no operation: `GET /v1/operations/ID/wait` takes its answer up again.
//! - Console and exec switch to [`frame`]s by an HTTP upgrade.
//!
//! Version rule: `/v1` grows by fields and paths only. A field that is not known
//! is ignored by readers of answers and between daemons ([`tolerant`]), and refused in
//! requests of users. Anything else is a new version: daemons whose ranges
//! ([`Versions`]) do not meet refuse each other and say so.

mod client;
mod client_error;
mod error;
pub mod frame;
mod guests;
mod layout;
mod machine;
mod memory;
mod operations;
mod resize;
pub mod tcp;
pub mod tolerant;
mod types;
mod versions;

pub use client::{ByteReader, Client, LineReader};
pub use client_error::ClientError;
pub use error::{ErrorBody, ErrorCode};
pub use guests::{
    DiskCopyView, EvacuateRequest, EvacuateResult, GUESTD_SOCKET_PATH, HostLeaves, ImportRequest,
    KeptGone, LayoutFigures, LayoutView, MigrateFigures, MigrateRequest, MigrateResult, PinRequest,
    SilentNode, UPLOAD_FOLDER, VmList, VmPins, VmVerb, VmView, vm_path,
};
pub use layout::{
    KeptBy, LayoutReason, LayoutRequest, LayoutResult, MeasureRequest, MeasureResult, MemoryGoes,
    NodeLayout, NumaMeasured, NumaMemory, NumaPair, NumaView, VcpuChange, VcpuLayout, VcpuSample,
    VmLayout, VmLayoutChange,
};
pub use machine::{
    Link, LinkRequest, LinkView, LinkedNode, Links, MachineIntroduction, MachineNews, MachineView,
    node_path,
};
pub use memory::{
    KeptMirror, NodeKeeps, VmMemory, VmMemoryCell, VmMemoryHost, VmMemoryMap, VmMemoryShare,
};
pub use operations::{OperationList, OperationView, TakenFrom, UnreadableView};
pub use resize::{ResizePlan, ResizeRequest};
pub use types::*;
pub use versions::{ParseVersionsError, Versions};

pub use mint_types::{SOCKET_PATH, UPGRADE};

/// The newest version of what daemons say to each other.
pub const API_VERSION: u32 = 1;
/// The oldest that this program still understands.
pub const API_OLDEST: u32 = 1;
/// A daemon tells its peers its [`Versions`] with every request.
pub const VERSIONS_HEADER: &str = "mint-versions";
/// Socket of this node's memory server, for its `mint-guestd`.
pub const STORE_SOCKET_PATH: &str = "/run/mint/store.sock";
/// TCP port of memory servers on `mint0`.
pub const STORE_PORT: u16 = 7778;
/// Set on the answer to a request that became an operation: its number.
pub const OPERATION_HEADER: &str = "mint-operation";
/// Set on requests that one mintd passes on to another: they are not passed on
/// once more.
pub const FORWARDED_HEADER: &str = "mint-forwarded";
