// SPDX-License-Identifier: Apache-2.0
//! The words of Mint as types. No I/O, no threads, no clocks: what is here can
//! be tested anywhere, and every other crate speaks in it.

mod bdf;
mod cpuset;
mod layout;
mod limit;
mod load;
mod machine_id;
mod memory;
mod node;
mod operation;
mod pages;
mod paging;
mod pin;
mod plan;
mod refusal;
mod resize;
mod resource;
mod route;
mod taken;
mod wire;

pub use bdf::{Bdf, ParseBdfError};
pub use cpuset::{CpuSet, ParseCpuSetError};
pub use layout::{LayoutPolicy, LayoutWhen, ParseLayoutError, ParseLayoutPolicyError};
pub use limit::{LIMIT_S_MAX, limit_s, limit_s_or_none};
pub use load::{GuestLoad, Load};
pub use machine_id::{MachineId, ParseMachineIdError, PeerId};
pub use memory::{
    MemoryRequest, ParseMemoryError, format_bytes, parse_bound, parse_bytes, parse_memory_list,
};
pub use node::{NODE_MAX, NodeId, NodeName, NodeState, NodeStatus, ParseNodeError};
pub use operation::{Asker, OperationId, OperationKind, OperationState};
pub use pages::{BlockPages, HolderKind, PageHolder, PageKind, PagesOfKind};
pub use paging::{PagingPolicy, ParsePolicyError};
pub use pin::{GuestThread, PinChange};
pub use plan::{NodeSpec, Plan, RestartPolicy, Step};
pub use refusal::{Refusal, RefusalCode};
pub use resize::{CpuChange, MemoryChange, ParseChangeError, ResizeSpec};
pub use resource::{
    Gift, Kind, MachineInfo, ResState, Resource, ResourceFlags, ResourceKey, is_driver_name,
};
pub use route::default_route_interfaces;
pub use taken::Taken;
pub use wire::{SOCKET_PATH, UPGRADE};
