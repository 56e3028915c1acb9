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
    guest: dict  # as its pager is told of it
    mirror: Node  # has what its memory server has
    mirror_lease: dict

    def view(self) -> dict:
        """What its pager says; nothing while there is none."""
        said = self.node.run(f"nc -U {self.folder}/pager.sock </dev/null", check=False).out
        return json.loads(said) if said.startswith("{") else {}

    def take_over(self) -> None:
        """The mirror becomes its memory server, as mint-guestd has it do."""
        lease = {**self.mirror_lease, "secret": list(secrets.token_bytes(16)), "stays": True}
        _post(self.mirror, "/v1/leases", lease)
        address = f"{self.node.machine.address(self.mirror.number)}:{STORE_PORT}"
        self.guest["servers"][0] |= {"address": address, "secret": lease["secret"]}
        _tell(self.node, self.folder, self.guest)
        said = self.node.out(f"nc -U {self.folder}/again.sock </dev/null")
        if said != "done":
            raise RigError(f"its pager does not take another memory server: {said}")

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


def _tell(node: Node, folder: str, guest: dict) -> None:
    """Its pager, once it reads that."""
    node.run(f"mkdir -p {folder} && cat >{folder}/new && mv {folder}/new {folder}/guest.json", stdin=json.dumps(guest).encode())


@contextlib.contextmanager
def torture(server: Server, nodes: tuple[int, int, int], pages: int, main_pages: int, words: str) -> Iterator[Torture]:
    """So many pages of a process on the first of these nodes, which has main_pages of them at a time; the second keeps the
    others, and the third the same."""
    boots, address = server.mintctl.nodes()[nodes[0]]["boots"], server.address(nodes[1])
    main, sub, mirror = map(server.node, nodes)
    uuid, secret = list(secrets.token_bytes(16)), list(secrets.token_bytes(16))
    folder = f"{RAM}/torture"
    lease = {"uuid": uuid, "secret": secret, "epoch": 1, "memory_bytes": pages * PAGE, "limit_bytes": 2 * pages * PAGE,
             "main": {"node": main.number, "boots": boots}}  # fmt: skip
    main.run(f"cat >{PROGRAM} && chmod +x {PROGRAM}", stdin=paths.need(paths.TORTURE).read_bytes())
    mirror_lease = {**lease, "secret": list(secrets.token_bytes(16))}
    _post(mirror, "/v1/leases", mirror_lease)
    at = {"address": f"{server.address(mirror.number)}:{STORE_PORT}", "secret": mirror_lease["secret"]}
    _post(sub, "/v1/leases", {**lease, "mirror": at})
    guest: dict = {"servers": [{"secret": secret}]}
    job = main.start(f"{PROGRAM} file={RAM}/tortured pages={pages} disk={DISK} {words}", 3600)
    try:
        main.wait("it has mapped its memory", "pgrep -x torture", 60)
        guest = {
            "name": "torture", "uuid": uuid, "memory_bytes": pages * PAGE, "main_bytes": main_pages * PAGE,
            "chunk_bytes": 16 * PAGE, "epoch": 1, "qemu": int(main.out("pgrep -x torture")),
            "servers": [{"node": "sub", "address": f"{address}:{STORE_PORT}", "secret": secret, "limit_bytes": 2 * pages * PAGE}],
        }  # fmt: skip
        _tell(main, folder, guest)
        main.run(f"MINT_FAULT={FAULT} setsid mint-keeper {folder} </dev/null >/tmp/keeper.log 2>&1 & "
                 "until grep -qx armed /tmp/keeper.log; do kill -0 $! || exit 1; sleep 0.1; done")  # fmt: skip
        yield Torture(main, job, folder, guest, mirror, mirror_lease)
    finally:
        print(main.run("pkill -9 -x torture; sleep 1; pkill -9 -x mint-keeper; tail -n 20 /tmp/keeper.log", check=False).out)
        main.run(f"rm -rf {folder} {RAM}/tortured {DISK} {PROGRAM} /tmp/keeper.log")
        _post(sub, "/v1/leases/end", {"uuid": uuid, "secret": secret})
        for its in (mirror_lease["secret"], guest["servers"][0]["secret"]):
            _post(mirror, "/v1/leases/end", {"uuid": uuid, "secret": its})
