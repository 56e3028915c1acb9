# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the rig's scenarios.

One machine is shared by the tests that leave it as they found it: each of
them is compared, ledger before and after. A test that fails, or that changes
the ledger, costs the next one a fresh machine.

Outcomes: passed, failed, and lost: the machine died (QEMU ended).
Artefacts: build/rig/MACHINE/, and build/rig/failed/TEST/ for each test that
did not pass.
"""

import contextlib
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rig import emulator
from rig import linked as rig_linked
from rig.errors import MachineLost, RigError
from rig.ledger import Ledger
from rig.load import Busy, LoadUntilEnd
from rig.machine import APIC_IDS, MachineConfig, card_arguments
from rig.paths import RIG
from rig.reports import reports_in
from rig.server import Server
from rig.two import TwoMachines

FAILED = RIG / "failed"


class Pool:
    """The shared machine, and machines of their own for tests that need one."""

    def __init__(self) -> None:
        self._shared: Server | None = None
        self._two: TwoMachines | None = None
        self._count = 0
        self.doubtful = False  # a test failed: its machine is not worth checking or keeping
        self.left: Ledger | None = None  # the shared machine's, as the last test left it; None: not known
        self.running: list[Server] = []

    def shared(self) -> Server:
        """The shared machine, with a card that has virtual functions (rig.server.CARD3_IGB); a new one if the last was
        lost or given up."""
        if self._shared is None or self.doubtful or not self._shared.machine.alive():
            self.give_up()
            self.stop_two()
            self._shared = self.start(MachineConfig("shared", extra=tuple(card_arguments(3, 8, "igb"))))
        return self._shared

    def start(self, config: MachineConfig) -> Server:
        """A machine, whose node 0 has a mintd that answers; its name gets a number."""
        self._count += 1
        server = Server(replace(config, name=f"{self._count:02}-{config.name}"))
        self.running.append(server)
        return server.start(libvirt=False)

    def two(self) -> TwoMachines:
        """Two machines on one wire, shared by the tests that want them, which are none that want the one above; new
        ones if the last were lost or given up."""
        if self._two is None or self.doubtful or not all(server.machine.alive() for server in self._two.servers):
            self.give_up()
            self.stop_two()
            self._count += 1
            self._two = TwoMachines(MachineConfig("two"), (f"{self._count:02}-a", f"{self._count:02}-b"))
            self.running += self._two.servers
            self._two.start(libvirt=False)
        return self._two

    def stop_two(self) -> None:
        """End the two machines, if there are any."""
        if self._two is not None:
            self._two.stop()
            self.running = [server for server in self.running if server not in self._two.servers]
            self._two = None

    def stop(self, server: Server) -> None:
        """End one machine."""
        server.stop()
        if server in self.running:
            self.running.remove(server)

    def give_up(self) -> None:
        """End the shared machine: what it is worth is not known any more."""
        self.doubtful, self.left = False, None
        if self._shared is not None:
            self.stop(self._shared)
            self._shared = None

    def stop_all(self) -> None:
        """End every machine."""
        self.stop_two()
        for server in list(self.running):
            self.stop(server)
        self._shared = None


def pytest_sessionstart(session: pytest.Session) -> None:
    """A rig that cannot be trusted does not run at all: one reason rather than a hundred failures."""
    if session.config.option.collectonly:
        return
    try:
        emulator.find()
    except (RigError, FileNotFoundError) as error:
        pytest.exit(str(error), returncode=1)


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """All machines of this run."""
    pool = Pool()
    yield pool
    pool.stop_all()


def reports(server: Server) -> list[str]:
    """Kernel reports on the consoles of a machine, since it was asked last."""
    found = []
    for console in server.machine.console:
        found += [f"{console.path.name}: {line}" for line in reports_in(console.unread())]
    return found


@contextlib.contextmanager
def unchanged(pool: Pool, server: Server) -> Iterator[None]:
    """The ledger is the same at the end as now, and nothing is between owners.

    Not looked at after a test that failed: that has been told.
    """
    before = pool.left or server.ledger()
    assert not before.moving(), f"being moved before the test began: {before.moving()}"
    pool.left = None
    yield
    if not pool.doubtful:
        pool.left = assert_unchanged(before, server)


def assert_unchanged(before: Ledger, server: Server) -> Ledger:
    """The ledger is the same as before, and no kernel complained; gives it."""
    after = server.ledger()
    assert not after.moving(), f"still being moved after the test: {after.moving()}"
    changed = before.difference(after)
    assert not changed, "the ledger changed:\n" + "\n".join(changed)
    assert not (found := reports(server)), "kernels complained:\n" + "\n".join(found)
    return after


@pytest.fixture
def two_machines(pool: Pool) -> Iterator[TwoMachines]:
    """Two machines on one wire, node 0 alone on each, with an address there; left so."""
    two = pool.two()
    before = [server.ledger() for server in two.servers]
    yield two
    if not pool.doubtful:
        for ledger, server in zip(before, two.servers, strict=True):
            assert_unchanged(ledger, server)


@pytest.fixture
def linked(two_machines: TwoMachines) -> Iterator[TwoMachines]:
    """The two, linked (rig.linked)."""
    with rig_linked.linked(two_machines):
        yield two_machines


@pytest.fixture
def bare(pool: Pool) -> Iterator[Server]:
    """The shared machine with node 0 only, owning every core and device; left so."""
    server = pool.shared()
    if server.remove_all():
        pool.left = None
    with unchanged(pool, server):
        yield server


@pytest.fixture
def pair(pool: Pool) -> Iterator[Server]:
    """The shared machine with nodes 1 and 2 running beside node 0; left so."""
    server = pool.shared()
    if server.ensure_pair():
        pool.left = None
    with unchanged(pool, server):
        yield server


@pytest.fixture(scope="session")
def outliving() -> Iterator[LoadUntilEnd]:
    """Guests that outlive whatever happens beside them."""
    outliving = LoadUntilEnd()
    yield outliving
    outliving.end()


@pytest.fixture
def busy_peers(pair: Server, outliving: LoadUntilEnd) -> Iterator[Server]:
    """The pair, guests on nodes 0 and 2, fio in them and beside them, a ping between: whatever is done with node 1,
    all goes on."""
    outliving.on(pair, [pair.zero, pair.two])
    yield pair
    outliving.check()


@pytest.fixture
def worn_peers(pool: Pool, outliving: LoadUntilEnd) -> Iterator[tuple[Server, list[Busy]]]:
    """The busy peers, for tests that do not leave the machine as it was: after all others that want these guests."""
    server = pool.shared()
    server.ensure_pair()
    pool.left = None
    yield server, outliving.on(server, [server.zero, server.two])
    found = [] if pool.doubtful else reports(server)
    assert not found, "kernels complained:\n" + "\n".join(found)


@pytest.fixture
def worn(pool: Pool, outliving: LoadUntilEnd) -> Iterator[Server]:
    """The shared machine with nodes 1 and 2 running, for tests that do not leave it as it was: the last ones."""
    server = pool.shared()
    outliving.end()
    server.ensure_pair()
    pool.left = None
    yield server
    # After a test that failed that has been told, as everywhere here.
    found = [] if pool.doubtful else reports(server)
    assert not found, "kernels complained:\n" + "\n".join(found)


@pytest.fixture
def worn_out(worn: Server) -> Server:
    """The same, for tests after which the machine is of no use to others."""
    return worn


@pytest.fixture
def own_machine(pool: Pool):
    """Start machines for this test alone: call it with a MachineConfig."""
    yield from starting(pool)


@pytest.fixture(scope="module")
def modules_machine(pool: Pool):
    """The same for the tests of a file."""
    yield from starting(pool)


def starting(pool: Pool):
    """Give a function that starts a machine; in the end stop all that it has started, and look at what kernels said."""
    started: list[Server] = []

    def start(config: MachineConfig) -> Server:
        server = pool.start(config)
        started.append(server)
        return server

    yield start
    found = [] if pool.doubtful else [report for server in started for report in reports(server)]
    for server in started:
        if server in pool.running:
            pool.stop(server)
    assert not found, "kernels complained:\n" + "\n".join(found)


# Machines of their own first, then two, then the shared one: with node 0 only, with the pair, with the pair under load.
ORDER = ("own_machine", "modules_machine", "two_machines", "bare", "pair", "busy_peers", "worn_peers", "worn", "worn_out")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that want the shared machine in the same state come together: nodes take long to boot."""

    def place(item: pytest.Item) -> int:
        return max((n for n, fixture in enumerate(ORDER) if fixture in item.fixturenames), default=0)

    items.sort(key=place)
    # What is in no ordinary run.
    if not config.getoption("--soak"):
        long = [item for item in items if "soak_only" in item.keywords]
        items[:] = [item for item in items if item not in long]
        config.hook.pytest_deselected(items=long)


# -- outcomes -----------------------------------------------------------------


def cpu_states(server: Server) -> str:
    """Registers and APIC of every core, as QEMU sees them."""
    monitor = server.machine.monitor
    text = []
    for cpu, apic in enumerate(APIC_IDS):
        registers = monitor.execute("human-monitor-command", **{"command-line": "info registers", "cpu-index": cpu})
        text += [f"== cpu {cpu}", registers, monitor.human(f"info lapic {apic}")]
    return "\n".join(text)


LOGS = "tail -n 100 /var/log/mint/*.log /var/log/libvirt/libvirtd.log /var/log/libvirt/qemu/*.log"
# What node 0 is asked, and what each other node, after a test that failed.
ASKED_NODE0 = {
    "mintctl.txt": "mintctl node list; mintctl device list; mintctl cpu list; mintctl doctor; mintctl events | tail -n 20",
    "dmesg.txt": "dmesg",
    "logs.txt": LOGS,
    "processes.txt": "ps ax",
}
ASKED_OTHERS = {
    "logs.txt": LOGS,
    "processes.txt": "ps -e -o pid,stat,wchan:24,time,args; cat /proc/loadavg /proc/meminfo /proc/interrupts",
}
# Of each console, shown with the test's failure: where only the output is kept, it must do.
SHOWN_LINES = 25


def keep_artefacts(item: pytest.Item, pool: Pool) -> str:
    """Copy the logs of the machines that run now; ask their nodes what they know.

    Gives what is worth reading at once: the end of each console, what node 0 says of the
    machine, and the other nodes' processes.
    """
    folder = FAILED / re.sub(r"[^\w.-]+", "_", item.name)
    shown = []
    for server in pool.running:
        target = folder / server.machine.folder.name
        target.mkdir(parents=True, exist_ok=True)
        for log in server.machine.folder.glob("*.log"):
            shutil.copy(log, target)
        for console in server.machine.console:
            lines = console.text().splitlines()[-SHOWN_LINES:]
            if lines:
                shown += [f"-- {target.name}/{console.path.name}", *lines]
        if not server.machine.alive():
            continue
        with contextlib.suppress(Exception):
            (target / "cpus.txt").write_text(cpu_states(server))
        if not server.machine.channel.boot_id:
            continue
        wanted = [(server.zero, "", ASKED_NODE0)]
        with contextlib.suppress(Exception):
            for number, node in server.extra_nodes().items():
                if node["state"] == "running":
                    # Its agent may be what failed.
                    wanted.append((replace(server.node(number), connect_s=15), f"node{number}-", ASKED_OTHERS))
        for node, prefix, commands in wanted:
            for name, command in commands.items():
                with contextlib.suppress(RigError):
                    result = node.run(command, limit_s=15, check=False)
                    (target / f"{prefix}{name}").write_text(result.out + result.err)
                    if name == "mintctl.txt" or (node.number and name == "processes.txt"):
                        shown += [f"-- {target.name}/{prefix}{name}", result.out + result.err]
    return "\n".join(shown)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """Tell lost from failed, keep artefacts, and give the shared machine up."""
    report = yield
    report.lost = False
    pool = item.session.stash.get(POOL, None) or item.funcargs.get("pool")
    if report.failed and pool:
        dead = any(not server.machine.alive() for server in pool.running)
        report.lost = dead or call.excinfo.errisinstance(MachineLost)
        # What failed comes last, too: where only the end of the output is kept, it must not be cut off.
        shown = f"{keep_artefacts(item, pool)}\n-- what failed: {item.nodeid} ({report.when})\n{call.excinfo.value}"
        report.sections.append(("the machines after the failure", shown))
        tell(item.config, f"{item.nodeid} ({report.when}): {call.excinfo.value}")
        pool.doubtful = True
    return report


TOLD_CHARACTERS = 2000


def tell(config: pytest.Config, text: str) -> None:
    """Says at once why a test failed: a run that is ended before its end prints nothing else of it."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal:
        terminal.ensure_newline()
        terminal.write_line(f"failed: {text[:TOLD_CHARACTERS]}", red=True)


POOL: pytest.StashKey[Pool] = pytest.StashKey()


@pytest.fixture(scope="session", autouse=True)
def remember_pool(request: pytest.FixtureRequest, pool: Pool) -> None:
    """For the hooks, which see it also when a fixture failed."""
    request.session.stash[POOL] = pool
    shutil.rmtree(FAILED, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport):
    """lost is a category of its own."""
    if getattr(report, "lost", False):
        return "lost", "L", "LOST"
    return None


def pytest_terminal_summary(terminalreporter) -> None:
    """pytest prints the reports of failed tests; here are those of lost machines."""
    for report in terminalreporter.stats.get("lost", []):
        terminalreporter.write_sep("_", f"LOST {report.nodeid} ({report.when})", red=True)
        terminalreporter.write_line(str(report.longrepr))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Length of the soak; the defaults are the short one of an ordinary run."""
    parser.addoption("--soak", action="store_true", help="also tests that are only in `make soak`")
    parser.addoption("--soak-boots", type=int, default=10, help="machine boots of test_soak (default 10)")
    parser.addoption("--soak-starts", type=int, default=10, help="node starts in each (default 10)")
    parser.addoption("--node0-rounds", type=int, default=2, help="ends of node 0 alone, in turns by a restart and by a panic (default 2)")
    parser.addoption("--stress-rounds", type=int, default=1, help="kills amid moves that hit (default 1)")
    parser.addoption("--split-kills", type=int, default=1, help="kills at steps of a split guest's moves (default 1; only in `make soak`)")
    parser.addoption("--split-moves", type=int, default=4, help="splits, merges and moves of a guest in random order (default 4; only in `make soak`)")
    parser.addoption("--guest-kills", type=int, default=2, help="kills at steps of a guest's moves (default 2)")
    parser.addoption("--circle-moves", type=int, default=2, help="moves of guests between nodes and machines (default 2)")
    parser.addoption("--rolling-rounds", type=int, default=1, help="restarts of each node under its guests (default 1)")
    parser.addoption("--circle-guests", type=int, default=2, help="how many guests that is, at most 4 (default 2)")
    parser.addoption("--crashes", type=int, default=2, help="crashes of node 1 in a row (default 2)")
    parser.addoption("--moves", type=int, default=10, help="random moves under load that are done (default 10)")
    parser.addoption("--rounds", type=int, default=1, help="stop, restart, remove and add of a node (default 1)")
    parser.addoption("--scribble-s", type=float, default=20, help="seconds of scribbling over the control area (default 20)")
    parser.addoption("--page-moves", type=int, default=40_000, help="pages that go and come by the pager (default 40,000)")
    parser.addoption("--page-kills", type=int, default=15, help="kills of pager and memory server meanwhile, one at each of their steps at least (default 15)")
    parser.addoption("--paging-s", type=int, default=5, help="seconds in which pages of memory go and come (default 5)")
    seed = random.SystemRandom().randrange(1 << 32)
    parser.addoption("--seed", type=int, default=seed, help="of random tests (default: another one each time)")


def pytest_report_header(config: pytest.Config) -> str:
    """The seed, also of a run in which nothing fails: what a random test did can be done again."""
    return f"seed of random tests: {config.getoption('--seed')}"
