# SPDX-License-Identifier: Apache-2.0
"""KVM is used only where the host's CPU says that its guests can nest."""

from rig import accel


def test_flags_decide_not_the_device():
    assert accel.host_can_nest("flags\t\t: fpu vme svm sse\n")
    assert accel.host_can_nest("processor: 0\nflags\t\t: fpu vmx\n")
    assert not accel.host_can_nest("flags\t\t: fpu svm_lock hypervisor\n")
    assert not accel.host_can_nest("model name : svm\nflags : fpu\n")


def test_environment_overrides(monkeypatch):
    monkeypatch.setenv("MINT_RIG_ACCEL", "tcg")
    assert "tcg,thread=multi" in accel.arguments()
    assert "-icount" not in accel.arguments()
    monkeypatch.setenv("MINT_RIG_ACCEL", "kvm")
    assert "kvm" in accel.arguments()
    assert "tcg,thread=single" in accel.arguments(counted=True)
