# SPDX-License-Identifier: Apache-2.0
"""A KVM guest that gets a vCPU and memory while it runs, for the group "moves" of make report.

vCPU       virsh setvcpus --live, until the guest runs on it; and out again
memory     virtio-mem, virsh update-memory-device, until the guest has all of it; and out again

The guest boots the kernel of the nodes. It says on its console what it has (measure
hotplug); both stamps of a time are those of its node.
"""

import contextlib
import re
import xml.etree.ElementTree as ElementTree
from types import TracebackType

from figures_programs import TMP, beside, build, guest_initrd
from rig.errors import RigError
from rig.guest import Guest, start_command
from rig.node import Node

NAME = "plug"
MEMORY_MIB = 192
PLUGGED_MIB = 1024
FOLLOWED = f"{TMP}/plug.says".replace("{", "{{").replace("}", "}}")  # what it stands in is formatted
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
    """A domain with the last vCPU not plugged in yet, and a virtio-mem device that has given nothing yet. Raises
    RigError for one without memory in KiB, vCPUs, or a CPU."""
    domain = ElementTree.fromstring(xml)
    memory, vcpu, cpu, devices = (domain.find(name) for name in ("memory", "vcpu", "cpu", "devices"))
    if memory is None or memory.get("unit") != "KiB" or None in (vcpu, cpu, devices):
        raise RigError(f"the domain has no memory in KiB, vcpu, cpu, or devices:\n{xml}")
    more_kib = PLUGGED_MIB << 10
    most = ElementTree.Element("maxMemory", slots="1", unit="KiB")
    most.text = str(int(memory.text) + more_kib)
    domain.insert(list(domain).index(memory), most)
    vcpu.set("current", str(int(vcpu.text) - 1))
    cell = {"id": "0", "cpus": f"0-{int(vcpu.text) - 1}", "memory": memory.text, "unit": "KiB"}
    ElementTree.SubElement(ElementTree.SubElement(cpu, "numa"), "cell", cell)
    target = ElementTree.SubElement(ElementTree.SubElement(devices, "memory", model="virtio-mem"), "target")
    for name, kib in (("size", more_kib), ("block", 2048), ("requested", 0)):
        ElementTree.SubElement(target, name, unit="KiB").text = str(kib)
    ElementTree.SubElement(target, "node").text = "0"
    return ElementTree.tostring(domain, encoding="unicode")


class PlugGuest:
    """Such a guest, with one vCPU on each of two cores of a node; as a context."""

    def __init__(self, node: Node, cpus: tuple[int, int]) -> None:
        self._node, self._cpus = node, cpus
        self._guest = Guest(node, NAME)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "PlugGuest":
        pin = ",".join(map(str, self._cpus))
        options = (
            f"--no-disk --no-network --vcpus 2 --memory {MEMORY_MIB}M --pin {pin}"
            f" --initrd {guest_initrd(self._node, build('measure'))} --append '{APPEND}'"
        )
        self._stack.callback(self._guest.end)
        try:
            xml = self._node.out(start_command(self._node, NAME, f"{options} --print"))
            self._node.run(f"cat >{TMP}/{NAME}.xml", stdin=with_room(xml).encode())
            self._node.run(f"virsh -q define --validate {TMP}/{NAME}.xml && virsh -q start {NAME}")
            self._guest.wait_line("mint-guest: up")
            self._guest.dialogue(f"measure hotplug {PLUGGED_MIB} & echo watch''ing", "watching")
            self._stack.enter_context(beside(self._node, FOLLOW.format(log=self._guest.log_path)))
            self._node.wait("follows the guest", "pidof tail >/dev/null")
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

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
