# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# Sourced: whether anything that goes into an output changed since it was built, told by
# the size and date of every file.
#
#   unchanged OUTPUT FILE-OR-FOLDER...   true when nothing did
#   remember OUTPUT                      after it was built, of what unchanged saw

unchanged() {
	inputs_of=$1
	shift
	mkdir -p "$(dirname "$inputs_of")"
	find "$@" ! -type d -printf '%P %f %m %s %T@\n' 2>/dev/null | LC_ALL=C sort >"$inputs_of.inputs.new" || :
	if [ -e "$inputs_of" ] && cmp -s "$inputs_of.inputs.new" "$inputs_of.inputs"; then
		rm "$inputs_of.inputs.new"
		return 0
	fi
	return 1
}

remember() { mv "$1.inputs.new" "$1.inputs"; }
