#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints the targets of the given makefiles that carry a `## text`, by file.
set -eu
echo 'make demo: see it work.  make test: every test.  Both install what they need.'
awk '
	FNR == 1 { heading = FILENAME }
	/^[a-z][a-z0-9% -]*:.*## / {
		if (heading != "") { printf "\n%s\n", heading; heading = "" }
		target = $0; sub(/:.*/, "", target)
		text = $0; sub(/.*## /, "", text)
		if (length(target) > 20) target = target sprintf("\n%22s", "")
		printf "  %-20s %s\n", target, text
	}' "$@"
cat <<'END'

Variables: BUILD (outputs; build/), MINT_CACHE (caches; ~/.cache/mint), JOBS,
T (rig tests to run), NODE and CMD (make sh, make exec), G, QUICK, SEED, AT and
PLAN (make report).
END
