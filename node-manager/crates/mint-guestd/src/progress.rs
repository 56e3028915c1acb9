// SPDX-License-Identifier: Apache-2.0
//! How far a migration is, in words.

use crate::hypervisor::Progress;

/// E.g. `51 % of 640 MiB sent, 82 MiB/s, 310 MiB left (about 4 s), round 2, 3 MiB/s changed
/// meanwhile`.
pub(crate) fn words(progress: &Progress) -> String {
    let Progress { rest_bytes, total_bytes, rate_bytes_s, dirty_bytes_s, rounds, .. } = *progress;
    let mib = |bytes: u64| bytes >> 20;
    let sent = total_bytes.saturating_sub(rest_bytes);
    let percent = sent.saturating_mul(100).checked_div(total_bytes).unwrap_or(0);
    if progress.is_post_copy {
        let text =
            "it runs there, and fetches memory as it needs it: it is lost if a node ends now";
        return format!("{percent} % of {} MiB sent; {text}", mib(total_bytes));
    }
    let about = match rest_bytes.checked_div(rate_bytes_s) {
        Some(rest_s) => format!(" (about {rest_s} s)"),
        None => String::new(),
    };
    format!(
        "{percent} % of {} MiB sent, {} MiB/s, {} MiB left{about}, round {}, {} MiB/s changed \
         meanwhile",
        mib(total_bytes),
        mib(rate_bytes_s),
        mib(rest_bytes),
        rounds.max(1),
        mib(dirty_bytes_s)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_tells_rate_rest_rounds_and_what_changes_meanwhile() {
        let progress = Progress {
            elapsed_ms: 1_000,
            rest_bytes: 300 << 20,
            total_bytes: 600 << 20,
            disk_sent_bytes: 0,
            rate_bytes_s: 100 << 20,
            dirty_bytes_s: 4 << 20,
            rounds: 2,
            is_post_copy: false,
        };
        assert_eq!(
            words(&progress),
            "50 % of 600 MiB sent, 100 MiB/s, 300 MiB left (about 3 s), round 2, 4 MiB/s changed \
             meanwhile"
        );
        let there = words(&Progress { is_post_copy: true, ..progress });
        assert!(there.starts_with("50 % of 600 MiB sent; it runs there"), "{there}");
        assert!(
            words(&Progress::default())
                .starts_with("0 % of 0 MiB sent, 0 MiB/s, 0 MiB left, round 1")
        );
    }
}
