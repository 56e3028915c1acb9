// SPDX-License-Identifier: Apache-2.0
//! Nodes by what users call them.

use mint_api::ErrorBody;
use mint_types::NodeStatus;

use crate::app::App;

/// The node that a path means.
pub(crate) fn resolve(app: &App, reference: &str) -> Result<NodeStatus, ErrorBody> {
    app.inventory()?
        .resolve(reference)
        .cloned()
        .map_err(|refusal| ErrorBody::refused(vec![refusal]))
}
