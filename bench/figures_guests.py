# SPDX-License-Identifier: Apache-2.0
"""A KVM guest that gets a vCPU and memory while it runs, for the group "moves" of make bench.

vCPU       virsh setvcpus --live, until the guest runs on it; and out again
memory     virtio-mem, virsh update-memory-device, until the guest has all of it; and out again

The guest boots the kernel of the nodes. It says on its console what it has (measure
hotplug); both stamps of a time are those of its node.
"""

import re
from types import TracebackType

from figures_programs import build, guest_initrd
from rig.errors import RigError
from rig.guest import Guest, start_command
from rig.node import Node

NAME = "plug"
MEMORY_MIB = 192
PLUGGED_MIB = 1024
FOLLOWED = "/tmp/plug.says"
LIMIT_S = 120

# What comes while it runs is movable, as on a node: it is to go again.
APPEND = "mint.tick=0 memhp_default_state=online_movable"

# Of an overlay, tail trusts no notification: it looks, by default once a second.
FOLLOW = f"""
tail -n 0 -s 0.01 -f {{log}} | while read -r line; do
	case $line in *'has '[0-9]*) echo "$(date +%s%N) ${{{{line#*has }}}}" >>{FOLLOWED} ;; esac
done
"""

STEP = f"""
set -e
: >{FOLLOWED}
begin=$(date +%s%N)
{{command}} >/dev/null
end=$(date +%s%N)
for look in $(seq {LIMIT_S * 20}); do
	said=$(grep -a -m 1 ' {{state}}' {FOLLOWED}) && break
	sleep 0.05
done
echo "step $begin $end $said"
"""


def with_room(xml: str) -> str:
    """A domain with the last vCPU not plugged in yet, and a virtio-mem device that has given nothing yet."""
    first_kib = int(re.search(r"<memory unit='KiB'>(\d+)<", xml)[1])
    more_kib = PLUGGED_MIB << 10
    vcpus = int(re.search(r"<vcpu [^>]*>(\d+)<", xml)[1])
    cell = f"<numa><cell id='0' cpus='0-{vcpus - 1}' memory='{first_kib}' unit='KiB'/></numa>"
    device = f"""<memory model='virtio-mem'><target>
      <size unit='KiB'>{more_kib}</size><node>0</node><block unit='KiB'>2048</block><requested unit='KiB'>0</requested>
    </target></memory>"""
    for old, new in (
        ("<memory ", f"<maxMemory slots='1' unit='KiB'>{first_kib + more_kib}</maxMemory>\n  <memory "),
        ("<vcpu ", f"<vcpu current='{vcpus - 1}' "),
        ("</cpu>", f"{cell}</cpu>"),
        ("<memballoon", f"{device}\n    <memballoon"),
    ):
        if xml.count(old) != 1:
            raise RigError(f"the domain has {xml.count(old)} of {old!r}:\n{xml}")
        xml = xml.replace(old, new)
    return xml


class PlugGuest:
    """Such a guest, with one vCPU on each of two cores of a node; as a context."""

    def __init__(self, node: Node, cpus: tuple[int, int]) -> None:
        self._node, self._cpus = node, cpus
        self._guest = Guest(node, NAME)

    def __enter__(self) -> "PlugGuest":
        pin = ",".join(map(str, self._cpus))
        options = (
            f"--no-disk --no-network --vcpus 2 --memory {MEMORY_MIB}M --pin {pin}"
            f" --initrd {guest_initrd(self._node, build('measure'))} --append '{APPEND}'"
        )
        try:
            xml = self._node.out(start_command(self._node, NAME, f"{options} --print"))
            self._node.run(f"cat >/tmp/{NAME}.xml", stdin=with_room(xml).encode())
            self._node.run(f"virsh -q define --validate /tmp/{NAME}.xml && virsh -q start {NAME}")
            self._guest.wait_line("mint-guest: up")
            self._guest.dialogue(f"measure hotplug {PLUGGED_MIB} & echo watch''ing", "watching")
            self._node.start(FOLLOW.format(log=self._guest.log_path), limit_s=0)
            self._node.wait("follows the guest", "pidof tail >/dev/null")
        except BaseException:
            self._guest.end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._guest.end()

    def _step(self, command: str, state: str) -> float:
        """Seconds from the command's start to the later of its end and the guest's word."""
        text = self._node.out(STEP.format(command=command, state=state), LIMIT_S * 2)
        found = re.search(r"^step (\d+) (\d+) (\d+) ", text, re.MULTILINE)
        if not found:
            raise RigError(f"{self._guest} does not say {state!r} after {command}: {text}\n{self._guest.log()[-2000:]}")
        begin, end, said = map(int, found.groups())
        return (max(end, said) - begin) / 1e9

    def plug_vcpu(self) -> float:
        """One more; seconds."""
        return self._step(f"virsh -q setvcpus {NAME} 2 --live", "2 none")

    def unplug_vcpu(self) -> float:
        """One less; seconds."""
        return self._step(f"virsh -q setvcpus {NAME} 1 --live", "1 none")

    def plug_memory(self) -> float:
        """All of the device's memory; seconds."""
        return self._step(f"virsh -q update-memory-device {NAME} --live --requested-size {PLUGGED_MIB}MiB", "1 all")

    def unplug_memory(self) -> float:
        """None of it; seconds."""
        return self._step(f"virsh -q update-memory-device {NAME} --live --requested-size 0", "1 none")
