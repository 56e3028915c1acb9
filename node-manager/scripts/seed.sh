# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# Sourced: what cargo built of other people's crates, kept between build folders in
# $MINT_CACHE/cargo, by the versions of the crates and of the compiler. A fresh
# clone then compiles the workspace only.
#
#   seed_take PROFILE     before cargo, for a build folder without that profile
#   seed_keep PROFILE     after it, if that was the folder's first build; others than
#                         this key's are dropped
#
# PROFILE is cargo's folder: debug or release. Environment: BUILD, MINT_CACHE
# (without it nothing is kept). The working folder is the workspace.

seed_key() {
	{
		cargo --version --verbose
		rustc --version --verbose
		echo "${RUSTFLAGS:-}"
		cat Cargo.toml Cargo.lock crates/*/Cargo.toml
	} | sha256sum | cut -c1-16
}

seed_take() {
	seed=${MINT_CACHE:-/nonexistent}/cargo/$(seed_key)/$1
	seed_first=no
	[ -d "$BUILD/cargo/$1" ] || seed_first=yes
	if [ "$seed_first" = yes ] && [ -d "$seed" ]; then
		mkdir -p "$BUILD/cargo"
		# in one step: half a copy would be taken for all of it
		rm -rf "$BUILD/cargo/$1.new"
		# a build with other crates may drop it meanwhile: that only costs time
		if cp -a --reflink=auto "$seed" "$BUILD/cargo/$1.new"; then
			mv "$BUILD/cargo/$1.new" "$BUILD/cargo/$1"
		else
			rm -rf "$BUILD/cargo/$1.new"
		fi
	fi
}

seed_keep() {
	# an old folder has what earlier versions needed, too
	[ -n "${MINT_CACHE:-}" ] && [ "$seed_first" = yes ] || return 0
	seeds=$MINT_CACHE/cargo key=$(seed_key)
	[ ! -d "$seeds/$key/$1" ] || return 0
	mkdir -p "$seeds/$key"
	new=$(mktemp -d "$seeds/$key/new.XXXXXX")
	(
		cd "$BUILD/cargo/$1" || exit
		# of the workspace nothing: another clone has it at another path
		find . \( -name incremental -o -name 'mint*' -o -name 'libmint*' \) -prune -o \
			-mindepth 2 ! -type d -print0 | xargs -0 cp -a --parents -t "$new"
	)
	# another build may have been first
	mv -T "$new" "$seeds/$key/$1" 2>/dev/null || rm -rf "$new"
	find "$seeds" -mindepth 1 -maxdepth 1 ! -name "$key" -exec rm -rf {} +
}
