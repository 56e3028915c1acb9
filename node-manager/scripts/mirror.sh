# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# Sourced: makes the shell's folder a copy of the workspace that lies in $MINT_CACHE/cargo,
# the same for all clones, and has cargo build there. Only what has other bytes than the
# clone before is written, so that cargo compiles what changed, in a fresh clone too.
# Other builds wait until this shell ends. Without MINT_CACHE all stays where it is.
#
#   mirror      before cargo; the working folder is the workspace
#
# Environment: BUILD, MINT_CACHE (absolute paths). Sets CARGO_TARGET_DIR.

# Of other people's crates, and of the compiler: what else was built is dropped.
mirror_key() {
	{
		cargo --version --verbose
		rustc --version --verbose
		echo "${RUSTFLAGS:-}"
		cat Cargo.lock
	} | sha256sum | cut -c1-16
}

mirror() {
	[ -n "${MINT_CACHE:-}" ] || {
		export CARGO_TARGET_DIR="$BUILD/cargo"
		return 0
	}
	mirror=$MINT_CACHE/cargo
	mkdir -p "$mirror/source/kernel/mint-patches"
	exec 9>"$mirror/lock"
	flock 9
	CARGO_TARGET_DIR=$mirror/target-$(mirror_key)
	export CARGO_TARGET_DIR
	find "$mirror" -mindepth 1 -maxdepth 1 ! -name lock ! -name source ! -path "$CARGO_TARGET_DIR" -exec rm -rf {} +
	# No times: what is written is new, for cargo too. A test reads the patches.
	rsync -rlp --checksum --delete --exclude /target ./ "$mirror/source/node-manager/"
	rsync -rlp --checksum --delete ../kernel/mint-patches/ "$mirror/source/kernel/mint-patches/"
	cd "$mirror/source/node-manager" || exit
}
