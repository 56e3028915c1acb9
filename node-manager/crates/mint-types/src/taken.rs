// SPDX-License-Identifier: Apache-2.0
//! What a change of what nodes own takes from one that runs.

use serde::{Deserialize, Serialize};

use crate::NodeId;

/// What a running node loses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Taken {
    /// Its id.
    #[cfg_attr(feature = "schema", schema(value_type = u32))]
    pub node: NodeId,
    /// Cores, by their APIC ids: each kernel has CPU numbers of its own.
    #[serde(default)]
    pub apic_ids: Vec<u32>,
    /// Memory, less what it gets at the same time.
    #[serde(default)]
    pub memory_bytes: u64,
}
