#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Format, lints, unit tests. The layouts of /dev/mint's structures are compared
# with the C header of the series when the kernel's source is in the cache.
#
# Environment: BUILD, MINT_CACHE (absolute paths). Exit: 0 done, else failed.

set -eu
cd "$(dirname "$0")/.."
: "${BUILD:?is set by the Makefile: run make rust-check}"
# shellcheck source-path=SCRIPTDIR/..
. scripts/seed.sh
export CARGO_TARGET_DIR="$BUILD/cargo"
seed_take debug

# Out of git, not out of the build tree: what is checked out there changes with
# each kernel that is built, also by others.
tree=${MINT_CACHE:-/nonexistent}/kernel/tree
if [ -z "${MINT_UAPI_HEADER:-}" ] && [ -d "$tree/.git" ]; then
	commit=$(../kernel/scripts/import --ref)
	MINT_UAPI_HEADER=$BUILD/cargo/mint.h
	mkdir -p "$BUILD/cargo"
	git -C "$tree" show "$commit:include/uapi/linux/mint.h" >"$MINT_UAPI_HEADER"
fi
if [ -n "${MINT_UAPI_HEADER:-}" ]; then
	export MINT_UAPI_HEADER
else
	echo "SKIP layouts_match_the_header: no kernel tree with mint.h yet (make kernel)"
fi

cargo fmt --check
cargo clippy --locked --quiet --all-targets -- -D warnings
cargo test --locked --quiet
seed_keep debug
