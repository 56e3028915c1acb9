# SPDX-License-Identifier: Apache-2.0
"""The rig's agent on a machine that does not have it: brought by the connection that it then serves.

The command made here takes the agent's bytes from its standard input, puts them into a fresh
folder and runs it there (`--stdio`). The folder is in the environment of all that it runs, as
MINT_RIG_FOLDER: whatever is put there goes with it. When the connection ends, in whatever
way, the agent ends with its jobs, `at_end` is done, and the folder is removed.

With a lock, only one is there at a time, until its end is done: a second one ends with status BUSY.
The agent does not have it, so that nothing that is left running keeps it.

It runs in a session of its own: who carries the connection may be killed with all its processes.
"""

import shlex

# Not each lets programs run: /tmp may be mounted noexec.
PLACES = ("/tmp", "/var/tmp", "/root")

# In the agent's folder: lines "DISK MIB" of what has been written to, and is to be zero at the end.
WRITTEN = '"$MINT_RIG_FOLDER/written"'
ZERO_WRITTEN = f"""
if [ -s {WRITTEN} ]; then
	while read -r disk mib; do
		dd if=/dev/zero of="$disk" bs=1M count="$mib" conv=fsync,notrunc
	done <{WRITTEN} && rm {WRITTEN}
fi
"""

# Of a server: one run at a time.
LOCK, BUSY = "/run/mint-rig.lock", 3
TAKE = """
exec 9>{lock}
flock -n 9 || {{ echo "another run is there, or is about to end: wait for its end" >&2; exit {busy}; }}
"""

SCRIPT = """
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$PATH
umask 022
{lock}
for place in {places}; do
	folder=$(mktemp -d "$place/mint-rig.XXXXXX" 2>/dev/null) || continue
	printf '#!/bin/sh\\n' >"$folder/try" && chmod 755 "$folder/try" && "$folder/try" 2>/dev/null && break
	rm -rf "$folder"
	folder=
done
[ -n "$folder" ] || {{ echo "no folder for the rig's agent: {places} let no program run" >&2; exit 1; }}
# The user that guests run as reads their initrd there.
chmod 711 "$folder"
export MINT_RIG_FOLDER="$folder"
{at_begin}
# Caught, not ignored: what the agent runs would inherit that.
trap : HUP INT TERM
head -c {size} >"$folder/mint-rig-agent" && chmod 755 "$folder/mint-rig-agent" && "$folder/mint-rig-agent" --stdio 9>&-
status=$?
{at_end}
rm -rf "$folder"
exit $status
"""


def command(
    size: int, at_begin: str = "", at_end: str = "", places: tuple[str, ...] = PLACES, lock: str = ""
) -> list[str]:
    """What runs an agent of so many bytes: they come first on its standard input, then frames.

    at_begin, at_end: more for its shell, before and after the agent. lock: a file there.
    """
    words = " ".join(map(shlex.quote, places))
    take = TAKE.format(lock=shlex.quote(lock), busy=BUSY) if lock else ":"
    script = SCRIPT.format(places=words, size=size, lock=take, at_begin=at_begin or ":", at_end=at_end or ":")
    return ["setsid", "-w", "sh", "-c", script]
