# shellcheck shell=sh disable=SC2034,SC2154	# used by, set by who sources it
# SPDX-License-Identifier: Apache-2.0
# What the scripts here share. Sourced with $me set and the current directory
# anywhere; sets $top (the project), $part (kexec-mint/), $cache.

top=$(cd "$(dirname "$0")/../.." && pwd)
part=$top/kexec-mint
patches=$part/patches
cache=${MINT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/mint}/kexec
# shellcheck source=kexec-mint/base.env
. "$part/base.env"

# What make was told (T=, BUILD=) is not for the makefiles of kexec-tools.
unset MAKEFLAGS MFLAGS MAKELEVEL

# The user's git settings (signing, hooks, autocrlf) must not change bytes, and
# commits made here are only a way to hold patches.
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_COMMITTER_NAME=mint GIT_COMMITTER_EMAIL=mint@localhost

die() { echo "$me: $*" >&2; exit 1; }
usage() { sed -n '/^# usage/,/^# Exit/s/^# \{0,1\}//p' "$0" >&2; exit 2; }

# Names of the patches in order.
series() { sed 's/#.*//; s/[[:space:]]*$//; /^$/d' "$patches/series"; }
