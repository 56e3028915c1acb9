# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts: where things are and what identifies them.
# shellcheck shell=bash
set -euo pipefail

KERNEL_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TOP=$(dirname "$KERNEL_DIR")
PATCHES=$KERNEL_DIR/mint-patches
BUILD=${BUILD:-build}
case $BUILD in /*) ;; *) BUILD=$TOP/$BUILD ;; esac
MINT_CACHE=${MINT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/mint}
CACHE=$MINT_CACHE/kernel
REPO=$CACHE/tree			# git repository and build tree in one
PACKAGE=linux-source-6.12
JOBS=${JOBS:-$(nproc)}
unset MAKEFLAGS MFLAGS MAKELEVEL	# the kernel's make must not inherit ours

# Same person and date for everything that scripts commit: equal content must
# give equal commit ids on every machine.
export GIT_COMMITTER_NAME=Mint GIT_COMMITTER_EMAIL=mint@localhost
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=advice.detachedHead GIT_CONFIG_VALUE_0=false

say() { echo "kernel: $*" >&2; }
die() { say "$*"; exit 1; }
sha() { sha256sum | cut -c1-40; }

# Runs a command as root; asks sudo only when needed.
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# Debian version of the base: MINT_KERNEL_BASE (a version cached earlier), else
# what is installed, else what apt offers.
base_version() {
	local v=${MINT_KERNEL_BASE:-}
	[ -n "$v" ] || v=$(dpkg-query -W -f='${Version}' $PACKAGE 2>/dev/null || true)
	[ -n "$v" ] || v=$(apt-cache policy $PACKAGE 2>/dev/null | awk '/Candidate:/ && $2 != "(none)" {print $2}')
	[ -n "$v" ] || die "no $PACKAGE: neither installed nor offered by apt. Run 'apt-get update', or check that the machine is Debian 12 or 13."
	echo "$v"
}

# Tag of a base. Git allows neither ~ nor : in a name; mapping as in DEP-14.
base_tag() { echo "base/$(echo "$1" | tr '~:' '_%')"; }

# Patch file names of the series, in order.
series() { [ ! -f "$PATCHES/series" ] || sed -e 's/[[:space:]]*#.*//' -e '/^$/d' "$PATCHES/series"; }

# Identity of the series: order and content.
series_id() { (cd "$PATCHES" 2>/dev/null || exit 0; series | while read -r p; do cat -- "$p"; done) | sha; }

# Requests of fragments kernel/config/{$@}.config: comments gone, later fragments win.
fragments() {
	local f files=()
	for f; do files+=("$KERNEL_DIR/config/$f.config"); done
	awk '/^#/ || /^[ \t]*$/ {next}
	     {sub(/[ \t]+#.*$/, ""); k = $0; sub(/=.*/, "", k); if (!(k in v)) n[++c] = k; v[k] = $0}
	     END {for (i = 1; i <= c; i++) print v[n[i]]}' "${files[@]}"
}

# Merged request of a flavour. Flavour server stands on Debian's configuration, not on
# base; the rig tells flavours apart by uname -r.
merged_config() {
	[ -f "$KERNEL_DIR/config/$1.config" ] || die "no flavour '$1': kernel/config/$1.config does not exist"
	case $1 in
	server) fragments kvm-host rig server | sed 's/^\(CONFIG_LOCALVERSION=\).*/\1"-mint-server"/' ;;
	kunit) fragments kunit ;;
	*) fragments base kvm-host rig "$1" ;;
	esac
}

# Debian's own configuration, from its package beside the source.
debian_config() {
	xz -dc "/usr/src/${PACKAGE/source/config}/config.amd64_none_amd64.xz" ||
		die "no configuration of Debian's: install ${PACKAGE/source/config}"
}

# Fails unless every line of request $1 is in .config $2. MINT* may be missing
# when MINT_LENIENT=1 (a prefix of the series that has no CONFIG_MINT yet).
check_config() {
	awk -v lenient="${MINT_LENIENT:-0}" -v made="$2" '
		BEGIN { while ((getline l < made) > 0) if (l ~ /^CONFIG_/) { k = l; sub(/=.*/, "", k); have[k] = l } }
		{ k = $0; sub(/=.*/, "", k)
		  if ($0 == k "=n" ? !(k in have) : (k in have) && have[k] == $0) next
		  if (lenient == 1 && k ~ /^CONFIG_MINT/) next
		  print "kernel: asked for " $0 ", got " (k in have ? have[k] : k "=n"); bad = 1 }
		END { exit bad }' "$1" >&2 ||
		die "Kconfig dropped what a fragment in kernel/config asks for: look at 'depends on' of each symbol above"
}

# Runs kbuild in source tree $1 with objects in its direct child $2: then all
# paths on the compiler's command line are relative, and ccache hits whatever
# the tree is called. Constant build facts make the image reproducible.
kmake() {
	local src=$1 obj=$2 cc=gcc; shift 2
	! command -v ccache >/dev/null || cc="ccache gcc"
	mkdir -p "$src/$obj" "$MINT_CACHE/ccache"
	CCACHE_DIR=$MINT_CACHE/ccache CCACHE_BASEDIR=$src CCACHE_NOHASHDIR=1 CCACHE_MAXSIZE=${CCACHE_MAXSIZE:-4G} \
	make -s -C "$src" O="$obj" CC="$cc" LOCALVERSION= KBUILD_BUILD_TIMESTAMP='2025-01-01 00:00:00 UTC' \
		KBUILD_BUILD_USER=mint KBUILD_BUILD_HOST=mint KBUILD_BUILD_VERSION=1 -j"$JOBS" "$@"
}

# Configures objects $2 of source tree $1: request $3 over the configuration on standard input.
configure_over() {
	mkdir -p "$1/$2"
	cat - "$3" >"$1/$2/.config"
	kmake "$1" "$2" olddefconfig >/dev/null 2>&1
}
