# SPDX-License-Identifier: Apache-2.0
"""A node dies in the middle of an operation that it coordinates: another one takes it back or finishes it, by the
intent in the control area."""

from rig.mintctl import Mintctl
from rig.node import Node
from rig.server import ONE, TWO, Server
from rig.wait import wait_until

FAULT = "/run/fault"
STATE = "/var/lib/mint"


def arm(server: Server, node: Node, point: str) -> None:
    """The node's next operation ends its kernel by a panic at that step, once."""
    node.run(f"echo {point} panic >{FAULT} && MINT_FAULT={FAULT} mint-service restart mintd")
    server.wait_mintd(node)


def without_a_folder(server: Server, node: Node) -> None:
    """What the node's mintd keeps goes with its kernel."""
    node.run(f"mint-service stop mintd && mount -t tmpfs none {STATE} && mint-service start mintd")
    server.wait_mintd(node)


def die(server: Server, command: str) -> dict:
    """Node 1 is asked for that, and its kernel panics in the middle of it; gives what node 0 makes of it."""
    before = {operation["id"] for operation in operations(server.zero)}
    server.one.start(command, limit_s=120)
    server.wait_state(1, "crashed", limit_s=120)

    def taken() -> dict | None:
        new = [operation for operation in operations(server.zero) if operation["id"] not in before]
        return next((operation for operation in new if operation["state"] not in ("queued", "running")), None)

    return wait_until("node 0 to end what node 1 was at", taken, 120)


def operations(node: Node) -> list[dict]:
    """What mintctl operation list shows on a node."""
    return Mintctl(node)("operation", "list")["operations"]


def test_move_by_a_node_that_died_is_taken_back(pair: Server):
    """A core is on its way from node 1, which coordinates the move and dies when the core is free: node 0 gives it
    back. Node 1, started again with its folder, leaves it at that."""
    before = pair.ledger()
    arm(pair, pair.one, "after-release")
    taken = die(pair, "mintctl node resize node0 --cpus +1 --from one")
    after = pair.ledger()
    assert taken["state"] == "undone", taken
    assert (taken["kind"], taken["subject"], taken["asked_by"]) == ("resize", "node0", "root")
    origin = taken["taken_from"]
    assert (origin["node"], origin["name"]) == (1, ONE.name)
    assert after.owned("cpu", 1) == before.owned("cpu", 1), before.difference(after)
    assert after.owned("cpu", None) == before.owned("cpu", None)
    assert not [operation for operation in operations(pair.two) if operation["taken_from"]], "it was taken once"
    assert "one" in pair.zero.out("mintctl operation list")

    pair.mintctl("node", "start", ONE.name)
    pair.wait_ready(pair.one)
    own = next(operation for operation in operations(pair.one) if operation["id"] == origin["id"])
    assert (own["state"], own["unsettled"]) == ("failed", False), own
    assert "took it over" in own["error"]["message"], own
    assert not (changed := before.difference(pair.ledger())), changed


def test_removal_by_a_node_that_died_with_its_folder_is_finished(worn: Server):
    """Node 1 takes node 2 apart and dies after the first of its resources, with its state folder: node 0 goes on."""
    before = worn.ledger()
    without_a_folder(worn, worn.one)
    arm(worn, worn.one, "after-release")
    taken = die(worn, f"mintctl node remove {TWO.name} --force --to node0")
    assert (taken["kind"], taken["state"], taken["taken_from"]["node"]) == ("remove", "done", 1), taken
    assert worn.state(2) == "absent"
    after = worn.ledger()
    assert not after.moving()
    for kind in ("cpu", "device"):
        assert after.owned(kind, 2) == []
        assert set(after.owned(kind, 0)) == set(before.owned(kind, 0)) | set(before.owned(kind, 2)), kind
        assert after.owned(kind, 1) == before.owned(kind, 1)
    # none of it is lost: memory of a node that is removed is free
    assert len(after.owned("memory", None)) == len(before.owned("memory", None)) + len(before.owned("memory", 2))
