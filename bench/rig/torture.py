# SPDX-License-Identifier: Apache-2.0
"""Memory of a process whose pages go to another node and come back (bench/micro/torture.c), with the real pager,
keeper and memory server: as a guest's, and much faster."""

import contextlib
import json
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from rig import paths
from rig.channel import Job
from rig.errors import RigError
from rig.node import Node
from rig.server import Server

PROGRAM, RAM, DISK = "/tmp/torture", "/run/mint/ram", "/var/lib/mint/torture"
STORE, STORE_PORT = "/run/mint/store.sock", 7778
FAULT = "/run/mint/fault-pager"
PAGE = 4096


@dataclass
class Torture:
    """A process that runs."""

    node: Node
    job: Job
    folder: str

    def view(self) -> dict:
        """What its pager says; nothing while there is none."""
        said = self.node.run(f"nc -U {self.folder}/pager.sock </dev/null", check=False).out
        return json.loads(said) if said.startswith("{") else {}

    def end(self) -> dict[str, int]:
        """What it has done and found, at its end."""
        self.node.run("pkill -x torture")
        result = self.job.wait()
        found = re.search(r"torture done (.*)", result.out)
        if not found:
            raise RigError(f"torture ended with status {result.status}:\n{result.out}{result.err}")
        return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", found[1])}


def _post(node: Node, path: str, document: dict) -> str:
    """To a node's memory server."""
    command = f"curl -sS --fail-with-body --unix-socket {STORE} -H 'content-type: application/json' --data-binary @- http://store{path}"
    return node.run(command, stdin=json.dumps(document).encode()).out


@contextlib.contextmanager
def torture(server: Server, main: int, sub: int, pages: int, main_pages: int, words: str) -> Iterator[Torture]:
    """So many pages of a process on node main, which has main_pages of them at a time; node sub keeps the others."""
    boots, address = server.mintctl.nodes()[main]["boots"], server.address(sub)
    main, sub = server.node(main), server.node(sub)
    uuid, secret = list(secrets.token_bytes(16)), list(secrets.token_bytes(16))
    folder = f"{RAM}/torture"
    lease = {"uuid": uuid, "secret": secret, "epoch": 1, "memory_bytes": pages * PAGE, "limit_bytes": 2 * pages * PAGE,
             "main": {"node": main.number, "boots": boots}}  # fmt: skip
    main.run(f"cat >{PROGRAM} && chmod +x {PROGRAM}", stdin=paths.need(paths.TORTURE).read_bytes())
    _post(sub, "/v1/leases", lease)
    job = main.start(f"{PROGRAM} file={RAM}/tortured pages={pages} disk={DISK} {words}", 3600)
    try:
        main.wait("it has mapped its memory", "pgrep -x torture", 60)
        guest = {
            "name": "torture", "uuid": uuid, "memory_bytes": pages * PAGE, "main_bytes": main_pages * PAGE,
            "chunk_bytes": 16 * PAGE, "epoch": 1, "qemu": int(main.out("pgrep -x torture")),
            "servers": [{"node": "sub", "address": f"{address}:{STORE_PORT}", "secret": secret, "limit_bytes": 2 * pages * PAGE}],
        }  # fmt: skip
        main.run(f"mkdir -p {folder} && cat >{folder}/guest.json", stdin=json.dumps(guest).encode())
        main.run(f"MINT_FAULT={FAULT} setsid mint-keeper {folder} </dev/null >/tmp/keeper.log 2>&1 & "
                 "until grep -qx armed /tmp/keeper.log; do kill -0 $! || exit 1; sleep 0.1; done")  # fmt: skip
        yield Torture(main, job, folder)
    finally:
        print(main.run("pkill -9 -x torture; sleep 1; pkill -9 -x mint-keeper; tail -n 20 /tmp/keeper.log", check=False).out)
        main.run(f"rm -rf {folder} {RAM}/tortured {DISK} {PROGRAM} /tmp/keeper.log")
        _post(sub, "/v1/leases/end", {"uuid": uuid, "secret": secret})
