# SPDX-License-Identifier: Apache-2.0
"""The guest that gets a vCPU and memory while it runs: its domain."""

import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest

import figures_guests
from figures_guests import PlugGuest, with_room
from rig.errors import RigError

# As mint-guest --print writes it, shortened; libvirt's own XML has the other kind of quotes.
DOMAIN = """<domain type="kvm">
  <name>plug</name>
  <memory unit="KiB">196608</memory>
  <vcpu placement="static" cpuset="1,2">2</vcpu>
  <cpu mode="host-passthrough" check="none" migratable="on"/>
  <devices>
    <memballoon model="none"/>
  </devices>
</domain>
"""


@pytest.mark.parametrize("xml", [DOMAIN, DOMAIN.replace('"', "'"), DOMAIN.replace("/>\n  <devices", "></cpu>\n  <devices")])
def test_domain_has_room_for_a_vcpu_and_a_gib(xml: str):
    domain = ElementTree.fromstring(with_room(xml))
    assert domain.findtext("memory") == "196608"
    most = domain.find("maxMemory")
    assert (most.get("unit"), most.text) == ("KiB", str(196608 + 1024 * 1024)) and int(most.get("slots")) >= 1
    assert (domain.find("vcpu").get("current"), domain.findtext("vcpu")) == ("1", "2")
    assert domain.find("vcpu").get("cpuset") == "1,2"
    assert domain.find("cpu/numa/cell").attrib == {"id": "0", "cpus": "0-1", "memory": "196608", "unit": "KiB"}
    (device,) = domain.findall("devices/memory")
    assert device.get("model") == "virtio-mem" and device.findtext("target/node") == "0"
    sizes = {child.tag: int(child.text) for child in device.find("target") if child.get("unit") == "KiB"}
    assert sizes["size"] == 1024 * 1024 and sizes["requested"] == 0 and sizes["size"] % sizes["block"] == 0


@pytest.mark.parametrize("part", ['unit="KiB"', '<vcpu placement="static" cpuset="1,2">2</vcpu>'])
def test_domain_of_another_kind_is_refused(part: str):
    with pytest.raises(RigError, match="the domain has no memory in KiB"):
        with_room(DOMAIN.replace(part, ""))


@pytest.mark.parametrize("fault", ["", "follows the guest"])
def test_who_follows_the_guest_ends_with_it(monkeypatch: pytest.MonkeyPatch, fault: str):
    """Another pass's would write of another guest."""
    done: list[str] = []

    def wait(what: str, *_) -> None:
        if what == fault:
            raise RigError("never")

    job = SimpleNamespace(kill=lambda _: done.append("killed"), wait=lambda _: done.append("over"))
    node = SimpleNamespace(
        out=lambda _: DOMAIN, run=lambda *_, **__: None, start=lambda *_, **__: done.append("begun") or job, wait=wait
    )
    guest = SimpleNamespace(log_path="log", wait_line=str, dialogue=lambda *_: None, end=lambda: done.append("guest ended"))
    monkeypatch.setattr(figures_guests, "Guest", lambda *_: guest)
    for name in ("build", "guest_initrd"):
        monkeypatch.setattr(figures_guests, name, lambda *_: b"")
    monkeypatch.setattr(figures_guests, "start_command", lambda *_: "")
    try:
        with PlugGuest(node, (1, 2)):
            done.append("used")
    except RigError:
        done.append("failed")
    assert done == ["begun", *([] if fault else ["used"]), "killed", "over", "guest ended", *(["failed"] if fault else [])]
