// SPDX-License-Identifier: Apache-2.0
//! This node's `mint-guestd`: where it is, and what it means when it does not answer.

use mint_api::{Client, ClientError, ErrorBody, ErrorCode};

use crate::app::App;

/// This node's `mint-guestd`, below the root that tests choose.
pub(crate) fn guestd(app: &App) -> Client {
    Client::unix(app.root.join(mint_api::GUESTD_SOCKET_PATH.trim_start_matches('/')))
}

/// It said no, or nothing.
pub(crate) fn guestd_down(app: &App, error: ClientError) -> ErrorBody {
    if let ClientError::Refused(body) = error {
        return *body;
    }
    let mut body = ErrorBody::from_error(ErrorCode::GuestdDown, &error);
    body.causes.insert(0, body.message.clone());
    body.message = format!("mint-guestd of node {} does not answer", app.here);
    body.hint(
        "its log is /var/log/mint/mint-guestd.log, or: journalctl -u mint-guestd; it starts \
         again by itself",
    )
}
