#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Format, circles of files, other people's crates (deny.toml), lints, unit tests, and some
# seconds of fuzzing (make fuzz takes longer).
#
# Environment: BUILD, MINT_CACHE (absolute paths). Exit: 0 done, else failed.

set -eu
unset MAKEFLAGS MFLAGS MAKELEVEL	# cargo must not inherit ours
cd "$(dirname "$0")/.."
: "${BUILD:?is set by the Makefile: run make rust-check}"
# shellcheck source-path=SCRIPTDIR/..
. scripts/mirror.sh
mirror

cargo fmt --check
(cd scripts && python3 -m unittest -q test_deny test_circles)
python3 scripts/circles.py
python3 scripts/deny.py
cargo clippy --locked --quiet --all-targets -- -D warnings
cargo test --locked --quiet
