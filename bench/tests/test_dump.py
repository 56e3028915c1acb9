# SPDX-License-Identifier: Apache-2.0
"""The memory of a dead node, taken by a living one and opened."""

import gzip
import shlex
from dataclasses import replace

import pytest

from rig import paths
from rig.errors import CommandFailed
from rig.machine import DEFAULT_FLAVOUR
from rig.server import SPARE, Server
from rig.vmcore import Vmcore

# Two cores: one panics, the other is stopped by it. In its initrd, so that a
# small node will do: its memory has to come out of the emulated server.
DEAD = replace(SPARE, name="dead", cpus=(3, 4), memory_mib=256)
MARK = "the last words of node dead"
LIMIT_S = 600


def refused(server: Server, words: str) -> str:
    """What mintctl node dump says when it is refused (exit status 3)."""
    result = server.zero.run(f"mintctl node dump {words}", check=False)
    assert result.status == 3, result
    return result.err


def crash(server: Server) -> int:
    """End DEAD by a panic, in a process named culprit; gives its id there. Typed on its console."""
    console = server.one.console
    console.wait_for("mint-init: node 1 init")
    steps = ["printf culprit >/proc/self/comm", f"echo {MARK} >/dev/kmsg", "echo it is pid $$", "sleep 1"]
    line = f"sh -c '{'; '.join([*steps, 'echo c >/proc/sysrq-trigger'])}'"
    # A shell that is not there yet reads what was typed before.
    typed = f"(echo {shlex.quote(line)}; sleep 600) | mintctl node console 1 --write --follow"
    job = server.zero.start(typed, limit_s=600)
    server.wait_state(1, "crashed")
    job.kill()
    return int(console.wait_for(r"it is pid (\d+)")[1])


def test_dead_nodes_memory_is_dumped_and_opened(bare: Server, tmp_path):
    """Panic, dump on node 0, opened with drgn: registers of both cores, messages, the panicking task."""
    bare.add(DEAD)
    assert "mintctl node kill" in refused(bare, f"{DEAD.name} -o /tmp/vmcore")
    culprit = crash(bare)
    answer = bare.mintctl("node", "dump", DEAD.name, "--output", "/tmp/vmcore", limit_s=LIMIT_S)
    assert answer["bytes"] > DEAD.memory_bytes > answer["data_bytes"] > 0
    assert bare.zero.out("stat -c %a /tmp/vmcore") == "600"
    with pytest.raises(CommandFailed, match="is there already"):
        bare.zero.run(f"mintctl node dump {DEAD.name} -o /tmp/vmcore")

    local = tmp_path / "vmcore"
    packed = bare.zero.run("gzip -1 </tmp/vmcore && rm /tmp/vmcore", limit_s=LIMIT_S).stdout
    local.write_bytes(gzip.decompress(packed))
    assert local.stat().st_size == answer["bytes"]
    core = Vmcore(local, paths.kernel(DEFAULT_FLAVOUR).parent)
    assert core.threads == len(DEAD.cpus)
    messages = core.messages()
    assert MARK in messages and "sysrq: Trigger a crash" in messages, messages[-2000:]
    assert core.panicking_task() == ("culprit", culprit)

    bare.mintctl("node", "start", DEAD.name, "--wait", "running")
    refused(bare, f"{DEAD.name} -o /tmp/vmcore")
    bare.remove_all()


def test_node_that_never_ran_has_no_dump(bare: Server):
    """No dead kernel, no dump: refused, and no file is left."""
    bare.add(DEAD, "--no-start")
    refused(bare, f"{DEAD.name} -o /tmp/vmcore")
    assert bare.zero.run("test -e /tmp/vmcore", check=False).status == 1
    bare.remove_all()
