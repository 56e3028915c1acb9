# SPDX-License-Identifier: Apache-2.0
"""What a guest's move stands on whose memory goes another way than QEMU's stream: libvirt lets its hook fill the memory
between the beginning of the guest's new QEMU and the stream, and QEMU leaves out what both sides have."""

import json
import re
import shlex

import pytest

from rig.guest import Guest, counted_versions
from rig.node import Node
from rig.server import Server
from rig.wait import SLOWNESS

NAME, MONITOR = "apart", "/tmp/apart.qmp"
NAMESPACE = "xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'"
BACKING = "<memoryBacking><source type='file'/><access mode='shared'/></memoryBacking>"
COMMANDLINE = f"<qemu:commandline><qemu:arg value='-qmp'/><qemu:arg value='unix:{MONITOR},server=on,wait=off'/></qemu:commandline>"
MEMORY_MIB = 96
RAM = f"/run/mint/ram/libvirt/qemu/*-{NAME}/*"
PORT = 5002
ANSWERS_S = 5 * SLOWNESS  # for QEMU to answer
HOOK, BEGUN, GO = "/etc/libvirt/hooks/qemu.d/apart", "/run/apart-begun", "/run/apart-go"
# libvirt waits for it; what comes for others, it lets pass.
HOLD = f"""#!/bin/sh
[ "$1 $2 $3" = "{NAME} started begin" ] || exec cat
cat >/dev/null
touch {BEGUN}
for _ in $(seq {600 * SLOWNESS}); do [ ! -e {GO} ] || exit 0; sleep 0.2; done
exit 1
"""
EVENTS = "/tmp/apart-events"
CAPABILITY = "x-ignore-shared"


def said(node: Node, *commands: dict) -> list[dict]:
    """What QEMU's second monitor answers, one after the other."""
    lines = "".join(json.dumps(command) + "\n" for command in ({"execute": "qmp_capabilities"}, *commands))
    # nc stays until the other side closes, which QEMU does not
    ask = f"(cat; sleep {ANSWERS_S}) | timeout {ANSWERS_S} nc -U {MONITOR} | head -n {len(commands) + 2}"
    out = node.run(ask, stdin=lines.encode()).out
    return [json.loads(line) for line in out.splitlines()][2:]


def leave_memory_out(node: Node, is_on: bool) -> None:
    """Tell the guest's QEMU."""
    capabilities = [{"capability": CAPABILITY, "state": is_on}]
    (answer,) = said(node, {"execute": "migrate-set-capabilities", "arguments": {"capabilities": capabilities}})
    assert answer == {"return": {}}, answer


@pytest.mark.soak
@pytest.mark.soak_only
def test_guest_moves_by_libvirt_while_its_memory_goes_another_way(pair: Server):
    """The stream brings no memory: a copy of it is there before the stream is, and the guest goes on with that. A second
    monitor tells when the source stands still for the switch-over; libvirt has the first to itself."""
    with Guest(pair.one, NAME) as here, Guest(pair.two, NAME) as there:
        here.start(f"--no-start --no-disk --no-network --memory {MEMORY_MIB}M --memory-load 1024")
        xml = pair.one.out(f"virsh dumpxml --inactive {NAME}")
        xml = xml.replace("<domain type='kvm'", f"<domain type='kvm' {NAMESPACE}", 1)
        xml = xml.replace("<os>", f"{BACKING}<os>", 1).replace("</domain>", f"{COMMANDLINE}</domain>")
        pair.one.run(f"cat >/tmp/{NAME}.xml && virsh -q define /tmp/{NAME}.xml && virsh -q start {NAME}", stdin=xml.encode())
        here.wait_line("tick [0-9]* at .*, [1-9][0-9]* versions")
        pair.one.run(f"virsh -q suspend {NAME}")
        before = counted_versions(here.log())[-1]
        leave_memory_out(pair.one, True)
        begin = json.dumps({"execute": "qmp_capabilities"})
        listen = f"(echo '{begin}'; sleep {600 * SLOWNESS}) | nc -U {MONITOR} >{EVENTS} 2>&1"
        pair.one.run(f"setsid sh -c {shlex.quote(listen)} >/dev/null 2>&1 </dev/null &")
        pair.two.run(f"mkdir -p $(dirname {HOOK}); rm -f {there.log_path} {BEGUN} {GO}")
        pair.two.run(f"cat >{HOOK} && chmod 755 {HOOK}", stdin=HOLD.encode())
        try:
            moving = pair.one.start(f"virsh migrate --live --p2p --tls {NAME} qemu+tls://node2/system", 600)
            pair.two.wait("its new QEMU", f"[ -e {BEGUN} ]", 120)
            # the file is there before the stream is
            size = pair.two.out(f"stat -c %s {RAM}").split()
            assert [int(bytes_) for bytes_ in size] == [MEMORY_MIB << 20], size
            leave_memory_out(pair.two, True)
            comes = pair.two.start(f"nc -d -l {PORT} | dd of=$(echo {RAM}) bs=1M iflag=fullblock conv=notrunc", 300)
            pair.two.wait("who takes it", f"ss -Htln 'sport = :{PORT}' | grep -q .")
            pair.one.run(f"nc -N node2 {PORT} <$(echo {RAM})", 300)
            assert comes.wait().status == 0, comes.result
            assert not moving.done(), moving.result
            pair.two.run(f"touch {GO}")
            result = moving.wait()
            assert result.status == 0, result
        finally:
            pair.two.run(f"rm -f {HOOK} {BEGUN}; touch {GO}")
        leave_memory_out(pair.two, False)
        sent = re.search(r"Memory processed: +([\d.]+) (\S+)", pair.two.out(f"virsh domjobinfo {NAME} --completed"))
        sent_kib = float(sent[1]) * {"B": 1 / 1024, "KiB": 1, "MiB": 1024, "GiB": 1024**2}[sent[2]]
        events = [json.loads(line) for line in pair.one.read(EVENTS).splitlines()]
        states = [event["data"]["status"] for event in events if event.get("event") == "MIGRATION"]
        print(f"{sent[0]}; states: {states}")
        assert sent_kib < MEMORY_MIB * 1024 / 4, sent[0]
        assert states[-3:] == ["pre-switchover", "device", "completed"], states
        assert pair.two.out(f"virsh domstate {NAME}").strip() == "paused"
        pair.two.run(f"virsh -q resume {NAME}")
        there.wait_ticks(3)
        log = there.log()
        assert counted_versions(log)[-1] > before and "FAIL" not in log and "mint-guest: up" not in log, log[-2000:]
        pair.one.run(f"pkill -f 'nc -U {MONITOR}'; rm -f {EVENTS} /tmp/{NAME}.xml", check=False)
