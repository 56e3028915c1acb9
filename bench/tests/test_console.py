# SPDX-License-Identifier: Apache-2.0
"""Consoles of nodes: what is typed on a peer arrives whole and in order, whatever else the kernels tell each other."""

import shlex
from dataclasses import replace

from rig.server import SPARE, NodePlan, Server

# Two cores: one may read the ring for a doorbell, the other one to go on with what was left in it.
READER = replace(SPARE, name="reader", cpus=(2, 5), devices=())
# It comes and goes meanwhile; each time all kernels are told.
OTHER = NodePlan("other", (4,), 128, 1, (), ("--no-start",))
LINES = 4000
LINE = "%06d abcdefghijklmnopqrstuvwxyz"
END_OF_FILE = r"\004"


def test_numbered_console_input_arrives_while_nodes_come_and_go(bare: Server):
    """Thousands of lines, compared on the node with what was to be typed."""
    zero = bare.zero
    bare.add(READER)
    console = bare.one.console
    console.wait_for("mint-init: node 1 init")
    rounds = f"mintctl node add {' '.join(OTHER.words())} && mintctl node remove {OTHER.name} && echo round"
    changes = zero.start(f"while ! test -e /tmp/enough; do {rounds} || exit; done >/tmp/rounds 2>&1", limit_s=600)
    zero.run("mkfifo /tmp/keys")
    open_end = zero.start("exec sleep 600 >/tmp/keys", limit_s=600)
    typing = zero.start("mintctl node console 1 --write --follow </tmp/keys", limit_s=600)

    def keys(line: str) -> None:
        zero.run(f"echo {shlex.quote(line)} >/tmp/keys")

    lines = f"for i in $(seq 1 {LINES}); do printf '{LINE}\\n' $i; done"
    # Without echo: the node would say it all again.
    keys("stty -echo; echo reads $((40 + 2)); cat >/typed; echo read $(wc -l </typed)")
    console.wait_for("reads 42")
    zero.run(f"({lines}; printf '{END_OF_FILE}') >/tmp/keys", limit_s=300)
    read = int(console.wait_for(r"read (\d+)\r?\n", limit_s=120).group(1))
    keys(f"{lines} >/meant; cmp /meant /typed && echo $((40 + 2)) the same")
    compared = console.wait_for(r"42 the same|cmp: .*|.* differ.*").group()
    zero.run("touch /tmp/enough")
    assert changes.wait().status == 0, zero.read("/tmp/rounds")
    for job in (typing, open_end):
        job.kill()
    done = zero.read("/tmp/rounds").count("round")
    zero.run("rm /tmp/enough /tmp/rounds /tmp/keys")
    assert read == LINES
    assert "the same" in compared, compared
    assert done >= 2
    bare.remove_all()
