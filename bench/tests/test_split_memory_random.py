# SPDX-License-Identifier: Apache-2.0
"""A guest's memory is split, merged and moved in random order over the three nodes of a machine, while its pager or a memory
server dies now and then. Random; --seed, --split-moves."""

import random
import time
from collections import Counter

import pytest

from rig.channel import Job
from rig.guest import Guest, counted_versions
from rig.mintctl import MintctlError
from rig.server import Server
from rig.wait import SLOWNESS

NAME, LIMIT_S = "wanderer", 600
MEMORY_MIB, LOAD_KIB = 128, 14 << 10
STORE, FOLDERS = "/run/mint/ram/store", "/run/mint/ram/guests/*/guest.json"
COMPARED = "tick [0-9]* at .*, [1-9][0-9]* versions"
NAMES = ("node0", "one", "two")
POLICIES = ("aging", "clock", "fifo", "random", "address")
# It has a part of the guest, or had one and has not given all of it back.
TIED = {"vm_tied", "vm_busy"}


class Wanderer:
    """The guest, and what is done to it."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server, self.choose = server, random.Random(seed)
        self.guests = [Guest(node, NAME) for node in (server.zero, server.one, server.two)]
        self.at, self.seen = 1, 0
        self.done, self.refused, self.failed, self.hits = Counter(), Counter(), Counter(), Counter()
        self.log: list[str] = []

    def start(self) -> None:
        """It runs on node 1, with all of its memory there."""
        here = self.guests[self.at]
        here.start(f"--no-start --memory {MEMORY_MIB}M --no-network --memory-load {LOAD_KIB} --disk 8M --disk-load 4")
        self.server.mintctl("vm", "prepare", NAME)
        here.node.run(f"virsh -q start {NAME}", LIMIT_S)
        here.wait_line(COMPARED, LIMIT_S)
        self.goes_on()

    def view(self) -> dict:
        """What mintctl says of its memory, once somebody does: who tells it may be starting."""
        end = time.monotonic() + 120 * SLOWNESS
        while True:
            try:
                return self.server.mintctl("vm", "memory", NAME)
            except MintctlError:
                assert time.monotonic() < end
                time.sleep(0.5)

    def goes_on(self) -> None:
        """It is where it should be, has lost nothing, has not begun anew, and compares its memory once more."""
        view = self.view()
        assert view["lost_bytes"] == 0, view
        self.at = view["node"]
        guest = self.guests[self.at]
        guest.wait_line(COMPARED, LIMIT_S)
        now = counted_versions(guest.log())[-1]
        assert now >= self.seen, f"it began anew: {now} versions, {self.seen} before"
        guest.node.wait("it compares its memory", f"! tail -n 1 {guest.log_path} | grep -q ', {now} versions'", LIMIT_S)
        text = guest.log()
        assert "FAIL" not in text, text[-500:]
        self.seen = counted_versions(text)[-1]

    def split_words(self, target: int) -> tuple[list[str], dict]:
        """How it is split when it is on that node, and what is to be seen then."""
        others = [number for number in range(3) if number != target]
        self.choose.shuffle(others)
        main = self.choose.randrange(40, 65)
        words, copies = [f"main={main}M"], []
        if self.choose.random() < 0.5:
            words += [f"{NAMES[others[0]]}={self.choose.randrange(16, 40)}M", f"{NAMES[others[1]]}=rest"]
        else:
            others = others[:1]
            words.append(f"{NAMES[others[0]]}=rest")
            copies = ["--copies", "2"] if self.choose.random() < 0.3 else []
        policy = self.choose.choice(POLICIES)
        seen = {"main_bytes": main << 20, "policy": policy, "hosts": {NAMES[number] for number in others}}
        return ["--split", ",".join(words), "--policy", policy, *copies], seen

    def next(self) -> tuple[str, list[str], dict]:
        """What is done next: its name, the words, and what is to be seen afterwards."""
        kind = self.choose.choice(("move", "merge", "split", "split", "split", "evacuate"))
        target = self.choose.randrange(3)
        if kind == "move":
            target = self.choose.choice([number for number in range(3) if number != self.at])
            return kind, ["vm", "migrate", NAME, "--to", NAMES[target], "--main-only"], {"node": target}
        if kind == "merge":
            return kind, ["vm", "merge", NAME, "--to", NAMES[target]], {"node": target, "hosts": set(), "elsewhere_bytes": 0}
        if kind == "evacuate":
            return kind, ["memory", "evacuate", NAMES[target]], {"without": NAMES[target]}
        words, seen = self.split_words(target)
        return kind, ["vm", "migrate", NAME, "--to", NAMES[target], *words], {"node": target, **seen}

    def kill(self) -> Job | None:
        """Somebody who has its pages dies in a few seconds, or nobody does."""
        victim = self.choose.choice((None, None, "mint-pager", "mint-store"))
        after_s = self.choose.uniform(0, 4) * SLOWNESS
        number = self.at if victim == "mint-pager" else self.choose.randrange(3)
        if victim is None:
            return None
        self.log.append(f"  {victim} of node {number} after {after_s:.1f} s")
        return self.guests[number].node.start(f"sleep {after_s:.1f}; pkill -9 -x {victim} && echo {victim}", LIMIT_S)

    def step(self) -> None:
        """Something is done, and it goes on with all of its memory."""
        kind, words, seen = self.next()
        self.log.append(" ".join(words))
        kill = self.kill()
        error = None
        try:
            self.server.mintctl(*words, limit_s=LIMIT_S)
        except MintctlError as failed:
            error = failed
        hit = kill.wait().out.strip() if kill else ""
        if hit:
            self.hits[hit] += 1
        self.goes_on()
        if error is None:
            self.done[kind] += 1
            self.check(seen)
        elif error.codes & TIED:
            self.refused[kind] += 1
        else:
            # a move may end when somebody does who has its pages: it stays then
            assert hit, error
            self.failed[kind] += 1

    def check(self, seen: dict) -> None:
        """It is as it was asked to be; what keeps nothing any more may still be named for a moment."""
        view = self.view()
        assert view["node"] == seen.get("node", view["node"]), (view, seen)
        assert view["elsewhere_bytes"] <= seen.get("elsewhere_bytes", view["elsewhere_bytes"]), (view, seen)
        assert view["policy"] == seen.get("policy", view["policy"]), (view, seen)
        hosts = {host["node"] for host in view["hosts"]}
        assert hosts >= seen.get("hosts", hosts), (view, seen)
        assert seen.get("without") not in hosts, (view, seen)
        if "main_bytes" in seen:
            assert view["here_bytes"] <= seen["main_bytes"] + (1 << 20), (view, seen)

    def end(self) -> None:
        """It ends, and nothing is left of it anywhere."""
        self.guests[self.at].end()
        for guest in self.guests:
            guest.node.wait("nothing is left of it", f"! ls {FOLDERS} && ! pgrep -x 'mint-pager|mint-keeper' && [ -z \"$(ls {STORE})\" ]", 120)


@pytest.mark.soak
@pytest.mark.soak_only
def test_guest_that_is_split_merged_and_moved_in_random_order_has_all_of_its_memory(pair: Server, request: pytest.FixtureRequest):
    """--split-moves of them that are done: each time it is as it was asked to be, and goes on; at the end nothing is left."""
    count, seed = request.config.getoption("--split-moves"), request.config.getoption("--seed")
    wanderer = Wanderer(pair, seed)
    for node in (pair.zero, pair.one, pair.two):
        node.wait("nobody keeps anything there", f"[ -z \"$(ls {STORE})\" ]", 60)
    try:
        wanderer.start()
        while wanderer.done.total() < count:
            assert wanderer.refused.total() + wanderer.failed.total() < 10 + 3 * count, "hardly anything is done"
            wanderer.step()
        wanderer.end()
    except BaseException as error:
        error.add_note("\n".join(wanderer.log[-12:]))
        raise
    finally:
        for guest in wanderer.guests:
            guest.end()
        print(f"done {dict(wanderer.done)}, refused {dict(wanderer.refused)}, failed {dict(wanderer.failed)}, killed {dict(wanderer.hits)}")
    # of fewer, chance may leave one out
    if count >= 20:
        assert wanderer.done.keys() == {"move", "merge", "split", "evacuate"}, wanderer.done
        assert wanderer.hits.keys() == {"mint-pager", "mint-store"}, wanderer.hits
