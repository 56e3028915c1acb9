# SPDX-License-Identifier: Apache-2.0
"""The plugin counts each CPU's instructions, all of them and nothing else.

A machine of two CPUs and a program of its own (count-test/) does known numbers of them.
"""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from rig import emulator, markers, paths, plugin, qemu_faults
from rig.errors import RigError
from rig.machine import CPUS, Machine, MachineConfig
from rig.markers import Marker, Stretch
from rig.wait import wait_until

LIMIT_S = 120
RUNS = 5
DONE = 33  # of count-test/program.S
# By label: vCPU and instructions, as its program says.
KNOWN = {0: (0, 1 + 2 * 200_000), 1: (0, 10), 2: (0, 5), 3: (1, 1 + 2 * 300_000)}
# Of qemu-faults/start.S: what its guest does between its markers.
GUEST_LABEL, GUEST_INSTRUCTIONS, GUEST_RUNS = 4, 2, 1000


def run(*more: str) -> subprocess.CompletedProcess:
    """The program, on the rig's own QEMU, mended, with a thread for each CPU."""
    qemu = emulator.choose()
    command = [
        *qemu.command, "-no-user-config", "-nodefaults", "-display", "none", "-no-reboot",
        "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "qemu64,+pdpe1gb", "-smp", "2", "-m", "32M",
        "-device", "isa-debug-exit,iobase=0xf4,iosize=4", "-kernel", str(paths.need(paths.COUNT_TEST)), *more,
    ]  # fmt: skip
    return subprocess.run(
        command, env=os.environ | qemu.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip


def counted(file: Path) -> dict[int, tuple[int, int]]:
    """One run: by label, vCPU and instructions."""
    done = run(*markers.plugin_arguments(file))
    assert done.returncode == DONE, done.stderr
    assert emulator.MENDED in done.stderr.splitlines()
    found = markers.pair(markers.parse(file.read_text()))
    assert not found.alone
    assert not found.begun
    return {stretch.label: (stretch.vcpu, stretch.instructions) for stretch in found.stretches}


def test_plugin_counts_each_vcpu(tmp_path: Path):
    """Exactly, while the other CPU is busy, and the same in each run."""
    for number in range(RUNS):
        assert counted(tmp_path / f"{number}") == KNOWN


def test_plugin_counts_in_guests(tmp_path: Path):
    """An SVM guest's markers are no exit, and its instructions are its CPU's; QEMU is mended beside the plugin."""
    file = tmp_path / "out"
    outcome = qemu_faults.look(emulator.choose(), "flag", GUEST_RUNS, LIMIT_S, tuple(markers.plugin_arguments(file)))
    assert outcome.status == qemu_faults.NONE, outcome.text
    assert emulator.MENDED in outcome.text
    found = markers.stretches(file.read_text(), GUEST_LABEL)
    assert found == [Stretch(0, GUEST_LABEL, GUEST_INSTRUCTIONS)] * GUEST_RUNS


def test_machine_with_markers_tells_stretches(tmp_path: Path):
    """The rig's own machine, of six CPUs, with this program for a kernel; without the option there is no plugin."""
    config = MachineConfig(
        "count-test", kernel=paths.need(paths.COUNT_TEST), initrd=paths.COUNT_TEST, disks=False, markers=True
    )
    with Machine(config) as machine:
        # All others run what the second one does.
        wait_until("all CPUs are done", lambda: len(machine.stretches(3)) == CPUS - 1, LIMIT_S)
        assert machine.stretches(0) == [Stretch(0, 0, KNOWN[0][1])]
        assert {(one.vcpu, one.instructions) for one in machine.stretches(3)} == {
            (vcpu, KNOWN[3][1]) for vcpu in range(1, CPUS)
        }
    plain = Machine(replace(config, markers=False))
    assert "-plugin" not in plain.arguments(0, 0)
    plain.stop()


def test_plugin_says_what_it_wants():
    """QEMU does not run with a plugin that cannot write."""
    plugin = paths.need(paths.QEMU_COUNT)
    for argument, why in (("", "one argument: out=FILE"), (",out=/nowhere/out", "/nowhere/out: No such file")):
        done = run("-plugin", f"{plugin}{argument}")
        assert done.returncode == 1
        assert why in done.stderr


def test_plugin_of_another_version_is_refused(tmp_path: Path):
    """By QEMU, which names the versions it knows."""
    source, other = Path(markers.__file__).with_name("count.c"), tmp_path / "other.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-DPLUGIN_VERSION=999", "-o", other, source], check=True)
    done = run("-plugin", f"{other},out={tmp_path / 'out'}")
    assert done.returncode == 1
    assert "requires API version 999" in done.stderr


def test_markers_are_paired_on_their_cpu():
    """By label; what other CPUs and other labels do does not matter."""
    text = "0 0 100\n1 0 7\n0 2 130\n0 1 150\n1 1 9\n0 3 160\n0 0 200\n0 1 201\n0 4 9"
    found = markers.pair(markers.parse(text))
    assert found.stretches == [Stretch(0, 0, 50), Stretch(1, 0, 2), Stretch(0, 1, 30), Stretch(0, 0, 1)]
    assert not found.alone
    assert not found.begun, "the last line is not whole"
    assert markers.stretches(text, 1) == [Stretch(0, 1, 30)]


def test_markers_without_another_are_told():
    """Of a program that changed its core, or was killed; one that has begun may go on."""
    text = "0 0 100\n1 1 50\n1 0 60\n1 0 70\n1 1 75\n"
    found = markers.pair(markers.parse(text))
    assert found.stretches == [Stretch(1, 0, 5)]
    assert found.alone == [Marker(1, 1, 50), Marker(1, 0, 60)]
    assert found.begun == [Marker(0, 0, 100)]
    with pytest.raises(RigError, match="2 markers of label 0 .* pin the program"):
        markers.stretches(text, 0)
    assert markers.stretches("0 0 100\n0 1 107\n0 0 200\n", 0) == [Stretch(0, 0, 7)]


def test_other_lines_are_refused():
    """They would be another program's file."""
    with pytest.raises(RigError, match="'0 1'"):
        markers.parse("0 1 2\n0 1\n")


def test_without_an_emulator_nothing_is_counted(monkeypatch, tmp_path: Path):
    """Said before QEMU starts."""
    monkeypatch.setattr(plugin.accel, "use_kvm", lambda: True)
    with pytest.raises(RigError, match="only the emulator"):
        markers.plugin_arguments(tmp_path / "out")
    monkeypatch.setattr(plugin.accel, "use_kvm", lambda: False)
    with pytest.raises(RigError, match="comma"):
        markers.plugin_arguments(tmp_path / "a,b")
