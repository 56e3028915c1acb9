# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# Sourced: makes the shell's folder a copy of the workspace that lies in $MINT_CACHE/cargo,
# the same for all clones, and has cargo build there. Only what has other bytes than the
# clone before is written, so that cargo compiles what changed, in a fresh clone too.
# Builds of a clone with other sources wait until this shell ends. Without MINT_CACHE all
# stays where it is.
#
#   mirror      before cargo; the working folder is the workspace
#
# Environment: BUILD, MINT_CACHE (absolute paths). Sets CARGO_TARGET_DIR.

# Of other people's crates, and of the compiler: what else was built is dropped. Our own crates have no source in
# Cargo.lock.
mirror_key() {
	{
		cargo --version --verbose
		rustc --version --verbose
		echo "${RUSTFLAGS:-}"
		awk 'BEGIN { RS = "" } /\nsource = /' Cargo.lock
	} | sha256sum | cut -c1-16
}

# Copies what has other bytes; --dry-run: only tells of it. No times: what is written is
# new, for cargo too. A test reads the patches.
mirror_copy() {
	rsync -rlp --checksum --delete --itemize-changes --exclude /target "$@" ./ "$mirror/source/node-manager/" &&
		rsync -rlp --checksum --delete --itemize-changes "$@" ../kernel/mint-patches/ "$mirror/source/kernel/mint-patches/"
}

mirror() {
	[ -n "${MINT_CACHE:-}" ] || {
		export CARGO_TARGET_DIR="$BUILD/cargo"
		return 0
	}
	mirror=$MINT_CACHE/cargo
	mkdir -p "$mirror/source/kernel/mint-patches" "$mirror/source/node-manager"
	CARGO_TARGET_DIR=$mirror/target-$(mirror_key)
	export CARGO_TARGET_DIR
	exec 9>"$mirror/lock"
	# shared: `make rust` and `make rust-check` of one clone run side by side
	while :; do
		flock -s 9
		mirror_changes=$(mirror_copy --dry-run) || exit
		[ -n "$mirror_changes" ] || break
		flock -u 9
		flock -x 9
		mirror_copy >/dev/null || exit
		find "$mirror" -mindepth 1 -maxdepth 1 ! -name lock ! -name source ! -path "$CARGO_TARGET_DIR" -exec rm -rf {} +
		flock -u 9
	done
	cd "$mirror/source/node-manager" || exit
}
