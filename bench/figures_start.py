# SPDX-License-Identifier: Apache-2.0
"""Group "start" of make report: the call to start a node -> its init.

Beside it the same kernel and initrd as a KVM guest of node 0, also as a lean one, and the emulated server's own
boot. All take turns on one machine; it is stopped while another server boots.
Loading counts on all sides: kexec -l of a node, QEMU's start and its firmware of a guest, the
firmware's of the server.
"""

import re
import time
from collections.abc import Mapping

from figures_programs import TMP, beside
from report.figure import Figure
from report.goals import Goal, equal
from report.passes import WHOLE_GROUP
from report.recorder import Recorder, Taker
from report.turns import turns
from rig.errors import RigError
from rig.inventory import MINT
from rig.machine import MachineConfig
from rig.remote import Remote
from rig.server import EMULATED, NodePlan, Server
from rig.wait import wait_until

GROUP = "start"
MACHINES, QUICK_MACHINES = 5, 1
ROUNDS, QUICK_ROUNDS = 8, 1
# The same words for all ways to boot: what the kernel prints costs time on an emulated
# serial port, which a node does not have.
BOOT_WORDS = "quiet mint.root=initrd tsc=reliable nowatchdog"
LIMIT_S = 600
# Of the node, and of the guest beside it.
CORES, MEMORY_MIB = 2, 1024

NODE, AGAIN, GUEST, LEAN, DIRECT = "node", "node again", "guest", "lean guest", "server"
SIDES = {
    NODE: "OS node, 2 cores, 1 GiB",
    AGAIN: "the same again",
    GUEST: "KVM guest on node 0, the same",
    LEAN: "the same, lean: machine pc, firmware qboot",
    DIRECT: "the emulated server itself",
}
FIGURES = (
    Figure(
        GROUP, "init", "From the call to the init", "s", SIDES,
        note="Loading and firmware are counted. The emulated server has 6 cores and 6 GiB. The guest's KVM is emulated,"
        " too: each of its exits costs more than on a real server.",
    ),
    Figure(GROUP, "loaded", "From the start of a loaded kernel to its init", "s", SIDES, note="Without kexec -l."),
)  # fmt: skip
GOALS = (
    Goal("a node starts in half of a KVM guest's time", GROUP, "init", NODE, GUEST, high=0.5),
    Goal("a node starts no slower than a lean KVM guest", GROUP, "init", NODE, LEAN, high=1.0),
    Goal("a node starts no slower than the server", GROUP, "init", NODE, DIRECT, high=1.0),
    equal("a node's start, and again", GROUP, "init", AGAIN, NODE, within=0.1, null=True),
)

# All stamps are node 0's clock: before the call, and when the first line of the init
# arrives on node 0.
STAMPS = f"{TMP}/stamps"
FOLLOW = f"""
mintctl node console 1 --follow | while read -r line; do
	case $line in *'node 1 init'*) date +%s%N >>{STAMPS} ;; esac
done
"""
START_NODE = f"""
set -e
had=$(wc -l <{STAMPS})
begin=$(date +%s%N)
kexec -s -l --mint-node 1 --initrd /boot/node.initrd --command-line 'console=hvc0 {BOOT_WORDS}' /boot/vmlinuz-mint
loaded=$(date +%s%N)
kexec --mint-node 1 -e
until [ "$(wc -l <{STAMPS})" -gt "$had" ]; do sleep 0.02; done
end=$(tail -n 1 {STAMPS})
echo "init $(( (end - begin) / 1000 ))"
echo "loaded $(( (end - loaded) / 1000 ))"
sleep 2
mintctl node kill 1 >/dev/null
"""

# Node 0's cores beside nodes 1 and 2, without the boot core, on which the
# emulator cannot run guests (docs/testing.md).
GUEST_CPUS = EMULATED.guests


# QEMU's machines: what libvirt takes; and what starts soonest of those on which this kernel has two cores and a
# console (on microvm, only a kernel whose serial driver asks ACPI for its interrupt has both).
MACHINE = {GUEST: "q35", LEAN: "pc,hpet=off,vmport=off,i8042=off -bios qboot.rom"}


def start_guest(cpus: tuple[int, ...], machine: str) -> str:
    """For node 0's shell: a guest on two cores of it, which ends at its init. Other guests are none of our business."""
    return f"""
begin=$(date +%s%N)
taskset -c {cpus[0]},{cpus[1]} qemu-system-x86_64 -accel kvm -machine {machine} -cpu host -smp {CORES} -m {MEMORY_MIB} -nodefaults \\
	-no-user-config -display none -no-reboot -serial stdio -kernel /boot/vmlinuz-mint -initrd /boot/node.initrd \\
	-pidfile {TMP}/guest.pid \\
	-append 'console=ttyS0 {BOOT_WORDS}' </dev/null 2>/dev/null | while read -r line; do
	case $line in *'node 0 init'*)
		echo "init $(( ($(date +%s%N) - begin) / 1000 ))"
		kill -9 "$(cat {TMP}/guest.pid)" ;;
	esac
done
"""


def times(text: str) -> dict[str, float]:
    """Seconds of "WHAT MICROSECONDS" lines. Raises RigError if there is no init."""
    found = {what: int(us) / 1e6 for what, us in re.findall(r"^(init|loaded) (\d+)", text, re.MULTILINE)}
    if "init" not in found:
        raise RigError(f"no init was seen:\n{text}")
    return found


def boot_directly() -> dict[str, float]:
    """Power-on of a server, firmware included -> its init."""
    config = MachineConfig("figures-direct", mint="", append=BOOT_WORDS)
    with Server(config).machine as machine:
        console = machine.console[0]

        def init() -> bool:
            machine.check_alive()
            return b"mint-init: node 0 init" in console.raw()

        wait_until("the server's own init", init, LIMIT_S, every_s=0.005)
        return {"init": time.monotonic() - machine.started_at}


def start(server: Server, side: str) -> dict[str, float]:
    """One start."""
    if side in MACHINE:
        return times(server.zero.out(start_guest(server.roles.guests, MACHINE[side]), LIMIT_S))
    if side != DIRECT:
        return times(server.zero.out(START_NODE, LIMIT_S))
    server.machine.monitor.execute("stop")
    try:
        return boot_directly()
    finally:
        server.machine.monitor.execute("cont")


def starts(taker: Taker, server: Server | Remote, sides: list[str], seed: int, rounds: int) -> None:
    """All starts on a machine."""
    one = server.roles.one
    server.add(NodePlan("figure", one.cpus[:CORES], MEMORY_MIB, one.numa), "--no-start")
    server.zero.run(f": >{STAMPS}")
    with beside(server.zero, FOLLOW):
        # Until it has said what the console held before.
        server.zero.run(f"sleep 1; : >{STAMPS}")
        for number, order in enumerate(turns(seed, f"{GROUP} {taker.name}", sides, rounds)):
            for place, side in enumerate(order):
                for case, value in start(server, side).items():
                    taker.add(case, side, value, "s", round=number, order=place)


def on_machine(taker: Taker, seed: int, rounds: int) -> None:
    """All starts of one machine."""
    with Server(MachineConfig("figures-start")) as server:
        starts(taker, server, list(SIDES), seed, rounds)


AT_BOOTS = (MINT,)
NODE_TAKES = ("kexec with --mint-node", "/boot/vmlinuz-mint", "/boot/node.initrd")
GUEST_TAKES = ("qemu-system-x86_64", "/dev/kvm")


def no_guest(remote: Remote) -> str:
    """Why no guest is started there; "" if one is."""
    if len(remote.roles.guests) < 2:
        return "the plan has no [guests] with two cores"
    return remote.has.lacks_in_mint(GUEST_TAKES)


def absent_at(remote: Remote) -> Mapping[str, str]:
    """What is not measured on a server."""
    one = remote.roles.one
    if len(one.cpus) < CORES or one.memory_mib < MEMORY_MIB:
        return {WHOLE_GROUP: "one.cores of the plan has less than two, or one.memory is less than 1G"}
    if lost := remote.has.lacks_in_mint(NODE_TAKES):
        return {WHOLE_GROUP: lost}
    found = {SIDES[DIRECT]: "a server's own boot takes its firmware's minutes, and ends what runs there"}
    if why := no_guest(remote):
        found |= dict.fromkeys((SIDES[side] for side in MACHINE), why)
    return found


def on_pass(taker: Taker, remote: Remote, recorder: Recorder) -> None:
    """All starts of a pass on a server."""
    sides = [NODE, AGAIN, *([] if no_guest(remote) else MACHINE)]
    starts(taker, remote, sides, recorder.header.seed, recorder.pick(ROUNDS, QUICK_ROUNDS))


def run(recorder: Recorder) -> None:
    """Measure what is missing."""
    rounds = recorder.pick(ROUNDS, QUICK_ROUNDS)
    for name in recorder.to_do(GROUP, "machine", recorder.pick(MACHINES, QUICK_MACHINES)):
        with recorder.machine(GROUP, name) as taker:
            on_machine(taker, recorder.header.seed, rounds)
