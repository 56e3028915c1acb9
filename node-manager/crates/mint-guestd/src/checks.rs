// SPDX-License-Identifier: Apache-2.0
//! What can be asked of a migration, and what not.

use mint_api::{ErrorBody, ErrorCode, MigrateRequest};
use mint_guests::split::COPIES_MAX;
use mint_types::{LayoutWhen, Refusal, RefusalCode};

/// Of a request, whatever guest it is about.
///
/// # Errors
/// When it says what cannot be.
pub(crate) fn check(request: &MigrateRequest) -> Result<(), ErrorBody> {
    let zero = [
        ("bandwidth_bytes_s", request.bandwidth_bytes_s == Some(0)),
        ("downtime_ms", request.downtime_ms == Some(0)),
        ("parallel", request.parallel == Some(0)),
    ];
    let ways = [request.merge, request.split.is_some(), request.main_only];
    if ways.into_iter().filter(|is_asked| *is_asked).count() > 1 {
        let text = "bad request: a guest is merged, or split, or moves without what others keep";
        return Err(ErrorBody::new(ErrorCode::BadRequest, text));
    }
    let besides =
        [request.policy.is_some(), request.copies.is_some(), request.chunk_bytes.is_some()];
    let is_of_split = besides.contains(&true);
    if is_of_split && request.split.is_none() {
        let text = "bad request: policy, copies and chunk_bytes are of a split: say how memory is to be split, too";
        return Err(ErrorBody::new(ErrorCode::BadRequest, text));
    }
    if request.copies.is_some_and(|copies| !(1..=COPIES_MAX).contains(&copies)) {
        let text = format!("bad request: copies: want 1 to {COPIES_MAX}");
        return Err(ErrorBody::new(ErrorCode::BadRequest, text));
    }
    if request.layout_policy.is_some() && request.layout == Some(LayoutWhen::None) {
        let text = "bad request: layout_policy is of a layout, and there is to be none: leave one of them out";
        return Err(ErrorBody::new(ErrorCode::BadRequest, text));
    }
    let has_streams = request.parallel.is_some() || request.compress;
    if has_streams && request.post_copy_after_s.is_some() {
        let text = "bad request: post-copy has one stream: leave parallel and compress out";
        return Err(ErrorBody::new(ErrorCode::BadRequest, text));
    }
    match zero.iter().find(|(_, is_zero)| *is_zero) {
        Some((name, _)) => {
            let text = format!("bad request: {name} is 0; leave it out for libvirt's default");
            Err(ErrorBody::new(ErrorCode::BadRequest, text))
        }
        None => Ok(()),
    }
}

/// Memory that is split does not go by QEMU's stream.
///
/// # Errors
/// When it is asked to.
pub(crate) fn check_split(name: &str, request: &MigrateRequest) -> Result<(), ErrorBody> {
    let asked = [
        ("post-copy", request.post_copy_after_s.is_some()),
        ("parallel streams", request.parallel.is_some()),
        ("compression", request.compress),
    ];
    match asked.iter().find(|(_, is_asked)| *is_asked) {
        Some((what, _)) => {
            let text = format!("the memory of vm {name} is split: it moves without {what}");
            let refusal = Refusal::new(RefusalCode::VmTied, format_args!("vm {name}"), text)
                .hint("leave that out");
            Err(ErrorBody::refused(vec![refusal]))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use mint_types::LayoutPolicy;

    use super::*;

    #[test]
    fn limits_of_nothing_are_refused() {
        let plain = MigrateRequest {
            to: "node2".into(),
            dry_run: false,
            bandwidth_bytes_s: None,
            downtime_ms: Some(100),
            parallel: Some(2),
            compress: false,
            post_copy_after_s: None,
            merge: false,
            main_only: false,
            split: None,
            policy: None,
            copies: None,
            chunk_bytes: None,
            layout: None,
            layout_policy: None,
        };
        check(&plain).unwrap();
        let policy = MigrateRequest { layout_policy: Some(LayoutPolicy::Dino), ..plain.clone() };
        for layout in [None, Some(LayoutWhen::Before), Some(LayoutWhen::After)] {
            check(&MigrateRequest { layout, ..policy.clone() }).unwrap();
        }
        let none = MigrateRequest { layout: Some(LayoutWhen::None), ..policy };
        assert_eq!(check(&none).unwrap_err().code, ErrorCode::BadRequest);
        let none = MigrateRequest { parallel: Some(0), ..plain.clone() };
        assert_eq!(check(&none).unwrap_err().code, ErrorCode::BadRequest);
        // libvirt has not both
        let both = MigrateRequest { post_copy_after_s: Some(0), ..plain.clone() };
        assert_eq!(check(&both).unwrap_err().code, ErrorCode::BadRequest);
        let both = MigrateRequest { parallel: None, compress: true, ..both };
        assert_eq!(check(&both).unwrap_err().code, ErrorCode::BadRequest);
        check(&MigrateRequest { parallel: None, compress: true, ..plain }).unwrap();
    }
}
