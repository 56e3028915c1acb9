# SPDX-License-Identifier: Apache-2.0
"""The machine is emulated unless KVM is asked for, and KVM is only where the host's can nest."""

import pytest

from rig import accel
from rig.errors import RigError


def test_flags_decide_not_the_device():
    assert accel.host_can_nest("flags\t\t: fpu vme svm sse\n")
    assert accel.host_can_nest("processor: 0\nflags\t\t: fpu vmx\n")
    assert not accel.host_can_nest("flags\t\t: fpu svm_lock hypervisor\n")
    assert not accel.host_can_nest("model name : svm\nflags : fpu\n")


@pytest.mark.parametrize("asked", [None, "", "tcg"])
def test_emulated_unless_asked_otherwise(monkeypatch, asked: str | None):
    """Also on a host whose KVM could do it."""
    monkeypatch.setattr(accel, "host_can_nest", lambda cpuinfo: True)
    monkeypatch.setattr(accel.os, "access", lambda path, mode: True)
    monkeypatch.delenv("MINT_RIG_ACCEL", raising=False)
    if asked is not None:
        monkeypatch.setenv("MINT_RIG_ACCEL", asked)
    assert "tcg,thread=multi" in accel.arguments()
    assert "-icount" not in accel.arguments()


def test_kvm_where_it_is_asked_for_and_can_nest(monkeypatch):
    monkeypatch.setenv("MINT_RIG_ACCEL", "kvm")
    monkeypatch.setattr(accel.os, "access", lambda path, mode: True)
    monkeypatch.setattr(accel, "host_can_nest", lambda cpuinfo: True)
    assert "kvm" in accel.arguments()
    assert "tcg,thread=single" in accel.arguments(counted=True)
    monkeypatch.setattr(accel, "host_can_nest", lambda cpuinfo: False)
    with pytest.raises(RigError, match="cannot nest"):
        accel.arguments()
    monkeypatch.setattr(accel.os, "access", lambda path, mode: False)
    with pytest.raises(RigError, match="/dev/kvm"):
        accel.arguments()


def test_other_words_are_refused(monkeypatch):
    monkeypatch.setenv("MINT_RIG_ACCEL", "xen")
    with pytest.raises(RigError, match="tcg"):
        accel.arguments()
