#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Builds all programs of the workspace and libvirt's hook into $BUILD/bin, mintctl's man
# pages and completions into $BUILD/share. Dynamically linked against this machine's C library: the node
# image's (Debian 13) is as new or newer than that of every machine we build on.
#
# Environment: BUILD, MINT_CACHE (absolute paths). Exit: 0 done, 1 failed.

set -eu
unset MAKEFLAGS MFLAGS MAKELEVEL	# cargo must not inherit ours
cd "$(dirname "$0")/.."
: "${BUILD:?is set by the Makefile: run make rust}"

CARGO_MIN=1.85	# rust-version of Cargo.toml

die() { echo "rust: $*" >&2; exit 1; }

command -v cargo >/dev/null || die "no cargo here: run make setup"
have=$(cargo --version | awk '{ print $2 }')
[ "$(printf '%s\n%s\n' "$CARGO_MIN" "$have" | sort -V | head -n 1)" = "$CARGO_MIN" ] ||
	die "cargo $have found, $CARGO_MIN or later needed: run make setup"

# shellcheck source-path=SCRIPTDIR/..
. scripts/mirror.sh
mirror
cargo build --release --locked --quiet --bin mintd --bin mint-guestd --bin mintctl --bin mint-kvm-config --bin mint-guest \
	--bin mint-libvirt-hook --bin mint-store --bin mint-pager --bin mint-keeper

mkdir -p "$BUILD/bin" "$BUILD/share/man" "$BUILD/share/completions"
for name in mintd mint-guestd mintctl mint-kvm-config mint-guest mint-libvirt-hook mint-store mint-pager mint-keeper; do
	# the same bytes keep their time: images are not rebuilt for nothing
	cmp -s "$CARGO_TARGET_DIR/release/$name" "$BUILD/bin/$name" ||
		install -m 755 "$CARGO_TARGET_DIR/release/$name" "$BUILD/bin/$name"
done
if [ -z "$(find "$BUILD/share/man" -name mintctl.1 -newer "$BUILD/bin/mintctl")" ]; then
	"$BUILD/bin/mintctl" man "$BUILD/share/man"
	for shell in bash zsh fish; do
		"$BUILD/bin/mintctl" completions $shell >"$BUILD/share/completions/mintctl.$shell"
	done
fi
