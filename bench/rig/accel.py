# SPDX-License-Identifier: Apache-2.0
"""How the emulated server's CPUs run: by the host's KVM, or emulated (TCG)."""

import functools
import os
import re
import subprocess
from pathlib import Path

from rig.errors import RigError

# TCG: SVM with nested paging, so that nodes have a /dev/kvm (VMX is not emulated).
CPU_TCG = "EPYC,+svm,+npt"

# KVM: the host's own model, for its SVM or VMX. invtsc: a node has no clock but
# the TSC, and Linux trusts only an invariant one. migratable=no allows invtsc.
# kvm=off hides KVM's leaf: node 0 must use the hardware as on a real server.
# arch-capabilities: some hosts that are guests themselves refuse that MSR.
CPU_KVM = "host,migratable=no,+invtsc,kvm=off,-arch-capabilities"


def host_can_nest(cpuinfo: str) -> bool:
    """Whether guests of this host can have SVM or VMX, by /proc/cpuinfo's flags.

    /dev/kvm alone says nothing: it may be there without either.
    """
    return bool(re.search(r"^flags\s*:.*\b(svm|vmx)\b", cpuinfo, re.MULTILINE))


def use_kvm() -> bool:
    """Whether the host's KVM runs the machine: only where MINT_RIG_ACCEL=kvm asks for it.

    The tests are known to pass on the emulator alone, so it is what everybody gets. Raises
    RigError where KVM is asked for and the host has it not, or not with nesting.
    """
    wanted = os.environ.get("MINT_RIG_ACCEL") or "tcg"
    if wanted not in ("tcg", "kvm"):
        raise RigError(f"MINT_RIG_ACCEL={wanted}: tcg (default) or kvm")
    if wanted == "tcg":
        return False
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        raise RigError("MINT_RIG_ACCEL=kvm: /dev/kvm is not there, or not yours to open; unset it to emulate")
    if not host_can_nest(Path("/proc/cpuinfo").read_text()):
        raise RigError("MINT_RIG_ACCEL=kvm: this host's KVM cannot nest (no svm, no vmx); unset it to emulate")
    return True


def arguments(counted: bool = False) -> list[str]:
    """QEMU's -accel and -cpu; counted (TCG only): the clock goes on by 4 ns an instruction, of any CPU."""
    if counted:
        return ["-accel", "tcg,thread=single", "-icount", "shift=2", "-cpu", CPU_TCG]
    if use_kvm():
        return ["-accel", "kvm", "-cpu", CPU_KVM]
    # multi: a host thread for each vCPU, so that a node that spins does not
    # stop the others.
    return ["-accel", "tcg,thread=multi", "-cpu", CPU_TCG]


@functools.cache
def kernel_words(counted: bool = False) -> str:
    """What node 0's kernel is told about the emulated CPUs' clock.

    TCG's TSC runs at the host's rate, which node 0 would measure anew at each
    boot: on a busy host, with its vCPU held up, it was seen to be wrong by a
    factor of eight, and with it every timer of every node.
    """
    if counted:
        return "tsc_early_khz=1000000"
    if use_kvm():
        return ""
    # Here, because it fixes the build folder, and the image's maker boots from another.
    from rig import paths

    rate_khz = subprocess.run([paths.AGENT, "--tsc-khz"], capture_output=True, text=True, check=True).stdout.strip()
    return f"tsc_early_khz={rate_khz}"
