#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Format, lints, unit tests. The layouts of /dev/mint's structures are compared
# with the C header when a kernel tree with the series is in the cache.
#
# Environment: BUILD, MINT_CACHE (absolute paths). Exit: 0 done, else failed.

set -eu
cd "$(dirname "$0")/.."
: "${BUILD:?is set by the Makefile: run make rust-check}"
export CARGO_TARGET_DIR="$BUILD/cargo"

if [ -z "${MINT_UAPI_HEADER:-}" ]; then
	for header in "${MINT_CACHE:-/nonexistent}"/kernel/*/include/uapi/linux/mint.h; do
		[ -e "$header" ] && MINT_UAPI_HEADER=$header
	done
fi
if [ -n "${MINT_UAPI_HEADER:-}" ]; then
	export MINT_UAPI_HEADER
else
	echo "SKIP layouts_match_the_header: no kernel tree with mint.h yet (make kernel)"
fi

cargo fmt --check
cargo clippy --locked --quiet --all-targets -- -D warnings
cargo test --locked --quiet
