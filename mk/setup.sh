#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Brings this machine to the state in which every build and test step runs:
# the packages of mk/packages.txt, a Rust toolchain of at least 1.85, and the
# Python environment of the rig. What is there already is left as it is, so
# that a second run only looks (well under a second).
#
# Environment: MINT_CACHE (absolute path). Root, or sudo, is asked for only
# when a package is missing.
# Exit: 0 done, 1 failed.

set -eu
cd "$(dirname "$0")/.."

RUST_MIN=1.85	# edition 2024; what Debian 13 has

say() { echo "setup: $*"; }
die() { echo "setup: $*" >&2; exit 1; }

command -v dpkg-query >/dev/null ||
	die "this is not Debian (no dpkg-query): install by other means what mk/packages.txt lists"
: "${MINT_CACHE:?is set by the Makefile: run make setup}"

# Installed ones of the names given, one a line.
installed() {
	dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' "$@" 2>/dev/null |
		awk '$1 ~ /^.i/ { print $2 }'
}

wanted() { sed 's/#.*//; s/[[:space:]]*$//; /^$/d' mk/packages.txt; }

# Names to install: for a|b nothing if either is there, else b.
missing_packages() {
	# shellcheck disable=SC2046	# names are words
	installed $(wanted | tr '|' ' ') | awk '
		NR == FNR { have[$1] = 1; next }
		{
			n = split($1, names, "|")
			for (i = 1; i <= n; i++) if (names[i] in have) next
			print names[n]
		}' - /dev/fd/3 3<<-END
		$(wanted)
		END
}

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo "$@"
	else
		die "installing packages needs root, and sudo is not here; as root run: apt-get install $missing"
	fi
}

apt_get() {
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq \
		-o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@"
}

# apt waits for dpkg's lock when told to, but never for that of its lists.
apt_update() {
	tries=0 out=
	until out=$(apt_get update 2>&1); do
		tries=$((tries + 1))
		case $out in
		*'Could not get lock'*) [ $tries -lt 60 ] && sleep 5 && continue ;;
		esac
		echo "$out" >&2
		# Another vendor's broken source must not stop us: the install
		# tells whether what we need can be had.
		return 0
	done
}

has_candidate() {
	for p in "$@"; do
		apt-cache policy "$p" 2>/dev/null | grep -q 'Candidate: [^(]' || return 1
	done
}

install() {
	missing=$*
	say "installing: $*"
	log=$(mktemp)
	updated=
	if ! has_candidate "$@"; then
		apt_update
		updated=1
	fi
	if ! apt_get install --no-install-recommends "$@" >"$log" 2>&1; then
		# Old lists name versions that the archive no longer has.
		[ -n "$updated" ] || apt_update
		if ! apt_get install --no-install-recommends "$@" >"$log" 2>&1; then
			tail -n 30 "$log" >&2
			rm -f "$log"
			die "apt-get could not install: $*"
		fi
	fi
	rm -f "$log"
}

# True when version $1 is at least $2.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

cargo_version() { cargo --version 2>/dev/null | awk '{ print $2 }'; }

setup_rust() {
	if have=$(cargo_version) && [ -n "$have" ] && at_least "$have" $RUST_MIN; then
		cargo clippy --version >/dev/null 2>&1 && cargo fmt --version >/dev/null 2>&1 && return
		if command -v rustup >/dev/null; then
			say "adding clippy and rustfmt to the toolchain of rustup"
			rustup -q component add clippy rustfmt
			return
		fi
	fi
	# Beside its own Rust, each Debian carries a current one, for browsers: the
	# same on 12 and 13, so rustfmt and clippy say the same there.
	has_candidate cargo || apt_update
	for suffix in -web ''; do
		candidate=$(apt-cache policy "rustc$suffix" | awk '$1 == "Candidate:" { print $2 }')
		at_least "${candidate:-0}" $RUST_MIN || continue
		if [ -z "$suffix" ]; then
			install cargo rustc rustfmt rust-clippy
		else
			install cargo-web rustc-web rustfmt-web rust-web-clippy
		fi
		have=$(cargo_version)
		[ -n "$have" ] && at_least "$have" $RUST_MIN && return
	done
	die "cargo ${have:-none} found, $RUST_MIN or later needed, and apt offers none: install one with rustup"
}

setup_python() {
	requirements=bench/requirements.txt
	[ -e $requirements ] || return 0
	venv=$MINT_CACHE/venv
	key=$( { /usr/bin/python3 --version; cat $requirements; } | sha256sum | cut -c 1-16)
	[ "$(cat "$venv/mint-key" 2>/dev/null)" = "$key" ] && return
	say "Python environment of the rig"
	rm -rf -- "$venv"
	mkdir -p "$MINT_CACHE"
	/usr/bin/python3 -m venv "$venv"
	"$venv/bin/python" -m pip -q --disable-pip-version-check install -r $requirements
	echo "$key" >"$venv/mint-key"
}

missing=$(missing_packages)
# shellcheck disable=SC2086	# names are words
[ -z "$missing" ] || install $missing
setup_rust
setup_python
