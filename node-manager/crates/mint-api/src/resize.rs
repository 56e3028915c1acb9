// SPDX-License-Identifier: Apache-2.0
//! What a node owns changes.

use mint_types::{ResizeSpec, Taken};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `POST /v1/nodes/NODE/resize`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeRequest {
    /// What shall change.
    #[schema(value_type = Object)]
    pub spec: ResizeSpec,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// Also take memory from a node that keeps memory of other nodes' guests.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// What a resize would do if guests were in nobody's way.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ResizePlan {
    /// Steps, in words.
    pub steps: Vec<String>,
    /// What the user should know.
    pub notes: Vec<String>,
    /// What nodes that run lose.
    pub taken: Vec<Taken>,
}
