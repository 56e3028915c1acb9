# SPDX-License-Identifier: Apache-2.0
"""What of a real server benchmarks may use: a file, read and checked whole before anything is done. Pure.

parse() looks at the file alone, check() at what the server has (rig.inventory). Each finds all
faults, not the first; a fault says the line, what is wrong, whose it is now, and the way out.
docs/report-plan.toml is the example.
"""

import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rig.inventory import MINT, Disk, Inventory
from rig.roles import NodePlan, Roles

# By these names nodes and guests are made: at the end they are ours, and are removed.
NODES = ("one", "two", "stopped", "figure", "left", "right", "both")
GUESTS = ("far", "near", "plug", "eval1", "eval2")

FUNCTION = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
SIZE = re.compile(r"(\d+)([MG])")
BLOCK_MIB = 128
# Of node 0 for a move of 1 GiB, in the pool; and of a node that is stopped meanwhile.
MOVED_MIB, STOPPED_MIB = 1024, 128
# What install-disk calls a node's partition.
NODE_PARTITION = "mint-node"
# Parts of something larger, whatever holds them now.
MEMBERS = re.compile(r".*_member|bcache|ceph_bluestore|drbd")


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong."""

    line: int
    text: str

    def told(self, name: str) -> str:
        """With the file's name."""
        return f"{name}:{self.line}: {self.text}"


class BadPlan(Exception):
    """The file is not a plan, whatever the server has (status 2), or not one for this server (status 3)."""

    def __init__(self, name: str, faults: list[Fault], status: int) -> None:
        self.faults, self.status = sorted(faults, key=lambda fault: fault.line), status
        super().__init__("\n".join(fault.told(name) for fault in self.faults))


@dataclass(frozen=True)
class DataDisk:
    """A disk for what is measured: its content is lost, if it has some."""

    function: str
    overwrite: bool
    key: str


@dataclass(frozen=True)
class Plan:
    """What the file says; lines: of its keys, by their dotted names."""

    name: str
    one: NodePlan
    two: NodePlan | None = None
    guests: tuple[int, ...] = ()
    moving_core: int | None = None
    moving_numa: int | None = None
    moving_disk: str | None = None
    data: tuple[DataDisk | None, DataDisk | None] = (None, None)
    lines: dict[str, int] = field(default_factory=dict)

    @property
    def roles(self) -> Roles:
        """The same, as benchmarks ask for it."""
        data = tuple(disk and disk.function for disk in self.data)
        return Roles(self.one, self.two, self.guests, self.moving_core, self.moving_numa, self.moving_disk, data)

    @property
    def functions(self) -> dict[str, str]:
        """All PCI functions, by the key that names them."""
        found = {}
        for node in filter(None, (self.one, self.two)):
            found |= {f"{node.name}.devices[{at}]": function for at, function in enumerate(node.devices[1:])}
            found |= {f"{node.name}.disk": node.devices[0]} if node.devices else {}
        if self.moving_disk:
            found["moving.disk"] = self.moving_disk
        return found | {disk.key: disk.function for disk in self.data if disk}

    @property
    def cores(self) -> dict[str, tuple[int, ...]]:
        """All cores, by the key that names them."""
        found = {f"{node.name}.cores": node.cpus for node in (self.one, self.two) if node}
        found["guests.cores"] = self.guests
        if self.moving_core is not None:
            found["moving.core"] = (self.moving_core,)
        return found


# -- the file ---------------------------------------------------------------------

TABLE = re.compile(r"\s*\[+\s*([\w.\-]+)\s*\]")
KEY = re.compile(r"\s*([\w\-]+)\s*=")


def lines_of(text: str) -> dict[str, int]:
    """The line of each table and key, by its dotted name. tomllib does not tell; plans have no other forms."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if head := TABLE.match(line):
            table = head[1]
            found.setdefault(table, number)
        elif key := KEY.match(line):
            found.setdefault(f"{table}.{key[1]}" if table else key[1], number)
    return found


def is_core(value: object) -> str:
    """ "", or what is wrong."""
    return "" if type(value) is int and value >= 0 else "must be the number of a core"


def is_cores(value: object) -> str:
    """ "", or what is wrong."""
    good = isinstance(value, list) and value and not any(map(is_core, value))
    return "" if good else "must be a list of cores' numbers, like [4, 5]"


def is_size(value: object) -> str:
    """ "", or what is wrong."""
    if not isinstance(value, str) or not (found := SIZE.fullmatch(value)) or not mib(value):
        return 'must be a size like "4G" or "768M"'
    if mib(value) % BLOCK_MIB:
        return f"memory comes in blocks of {BLOCK_MIB} MiB, and {found[0]} is no number of them"
    return ""


def mib(value: str) -> int:
    """A size."""
    number, unit = SIZE.fullmatch(value).groups()
    return int(number) << (10 if unit == "G" else 0)


def is_numa(value: object) -> str:
    """ "", or what is wrong."""
    return "" if type(value) is int and value >= 0 else "must be the number of a NUMA node"


def is_function(value: object) -> str:
    """ "", or what is wrong."""
    good = isinstance(value, str) and FUNCTION.fullmatch(value)
    return "" if good else 'must be a PCI function like "0000:41:00.0"; `lspci -D` lists them'


def is_functions(value: object) -> str:
    """ "", or what is wrong."""
    return "" if isinstance(value, list) and not any(map(is_function, value)) else 'must be a list like ["0000:41:00.0"]'


def is_bool(value: object) -> str:
    """ "", or what is wrong."""
    return "" if isinstance(value, bool) else "must be true or false"


Rule = Callable[[object], str]
NODE: dict[str, tuple[Rule, bool]] = {
    "cores": (is_cores, True), "memory": (is_size, True), "numa": (is_numa, True), "disk": (is_function, True),
    "devices": (is_functions, False),
}  # fmt: skip
DATA: dict[str, tuple[Rule, bool]] = {"disk": (is_function, True), "overwrite": (is_bool, False)}
# Each table with its keys: what they must be, and whether they must be there.
TABLES: dict[str, dict[str, tuple[Rule, bool]]] = {
    "one": NODE,
    "two": NODE,
    "guests": {"cores": (is_cores, True)},
    "moving": {"core": (is_core, False), "numa": (is_numa, False), "disk": (is_function, False)},
    "data0": DATA,
    "data1": DATA,
}
MUST = ("one",)


def parse(text: str, name: str) -> Plan:
    """The plan of a file. Raises BadPlan with all that is wrong with it."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        raise BadPlan(name, [Fault(int(at[1]) if at else text.count("\n") + 1, f"no TOML: {error}")], 2) from error
    lines = lines_of(text)
    if faults := [*_shape(tables, lines)]:
        raise BadPlan(name, faults, 2)
    plan = _plan(tables, name, lines)
    if faults := [*_twice(plan)]:
        raise BadPlan(name, faults, 2)
    return plan


def _shape(tables: dict, lines: dict[str, int]) -> Iterator[Fault]:
    for table, values in tables.items():
        if table not in TABLES:
            yield Fault(lines.get(table, 1), f"there is no [{table}]: a plan has {', '.join(TABLES)}")
        elif not isinstance(values, dict):
            yield Fault(lines.get(table, 1), f"{table} must be a table: [{table}], and its keys below")
        else:
            yield from _keys(table, values, lines)
    for table in MUST:
        if table not in tables:
            yield Fault(1, f"there is no [{table}], the node that all groups start")


def _keys(table: str, values: dict, lines: dict[str, int]) -> Iterator[Fault]:
    rules = TABLES[table]
    for key, value in values.items():
        line = lines.get(f"{table}.{key}", lines.get(table, 1))
        if key not in rules:
            yield Fault(line, f"[{table}] has no key {key}: it takes {', '.join(rules)}")
        elif wrong := rules[key][0](value):
            yield Fault(line, f"{table}.{key} = {value!r}: {wrong}")
    for key, (_, must) in rules.items():
        if must and key not in values:
            yield Fault(lines.get(table, 1), f"[{table}] has no {key}")


def _plan(tables: dict, name: str, lines: dict[str, int]) -> Plan:
    def node(table: str) -> NodePlan | None:
        if not (values := tables.get(table)):
            return None
        devices = (values["disk"], *values.get("devices", ()))
        return NodePlan(table, tuple(values["cores"]), mib(values["memory"]), values["numa"], devices)

    def data(table: str) -> DataDisk | None:
        values = tables.get(table)
        return DataDisk(values["disk"], values.get("overwrite", False), f"{table}.disk") if values else None

    moving = tables.get("moving", {})
    return Plan(
        name, node("one"), node("two"), tuple(tables.get("guests", {}).get("cores", ())),
        moving.get("core"), moving.get("numa"), moving.get("disk"), (data("data0"), data("data1")), lines,
    )  # fmt: skip


def _twice(plan: Plan) -> Iterator[Fault]:
    """A core or function of two roles, core 0, and what takes two."""
    used: dict[object, str] = {}
    cores = ((key, f"core {core}", core) for key, these in plan.cores.items() for core in these)
    functions = ((key, f"function {function}", function) for key, function in plan.functions.items())
    for key, what, part in (*cores, *functions):
        line = plan.lines.get(re.sub(r"\[\d+\]", "", key), 1)
        if part == 0:
            yield Fault(line, f"{key}: core 0 stays with node 0, which boots on it: name another")
        elif part in used and (key != "moving.disk" or used[part].startswith("one.")):
            # What moves to node one and back is only read there: another group may use it otherwise.
            yield Fault(line, f"{key}: {what} is in {used[part]}, too: each is for one thing")
        used.setdefault(part, key)


# -- the server -------------------------------------------------------------------


def check(plan: Plan, has: Inventory) -> None:
    """Raises BadPlan with all that keeps the plan from being carried out on this server."""
    if faults := [*_server(plan, has), *_cores(plan, has), *_memory(plan, has), *_functions(plan, has)]:
        raise BadPlan(plan.name, faults, 3)


def _server(plan: Plan, has: Inventory) -> Iterator[Fault]:
    """What is no matter of a single key: line 1."""
    if has.user != 0:
        yield Fault(1, "the user there is not root, and nodes are root's: give root@SERVER")
    if has.busy:
        yield Fault(1, "another run is there, or is about to end: wait for its end")
    if has.boot == MINT and has.node != 0:
        yield Fault(1, f"this is node {has.node} of a server: give the address of its node 0")
    if has.boot == MINT and not has.nodes:
        yield Fault(1, "mintctl does not answer there: `systemctl status mintd` on the server says why (docs/bare-metal.md)")
    for node in has.nodes:
        if node["id"] != 0:
            yield Fault(
                1, f"node {node['name']} ({node['state']}) is there, and would be measured with: `mintctl node remove"
                f" {node['name']}` on the server, or wait for the run that has made it",
            )  # fmt: skip
    for guest, state in has.guests.items():
        if guest in GUESTS:
            yield Fault(1, f"guest {guest} ({state}) is there, and one of that name is to be made: `virsh undefine {guest}`")
        elif state == "running":
            yield Fault(1, f"guest {guest} runs, and would be measured with: `virsh shutdown {guest}` on the server")
    for tool in sorted({"setsid", "mktemp", "taskset", "flock"} - has.tools):
        yield Fault(1, f"{tool} is not on the server: install it (util-linux, coreutils)")


def _cores(plan: Plan, has: Inventory) -> Iterator[Fault]:
    owners = {entry["id"]: entry for entry in has.cpus}
    for key, cores in plan.cores.items():
        for core in cores:
            line = plan.lines.get(key, 1)
            if core not in has.cores:
                yield Fault(line, f"{key}: there is no core {core}: the server has 0 to {max(has.cores, default=0)}")
                continue
            entry = owners.get(core, {})
            if entry.get("owner") not in (None, 0):
                yield Fault(line, f"{key}: core {core} belongs to node {entry['owner_name']}: remove that node first")
            elif not has.cores[core].online and entry.get("state") != "free":
                yield Fault(
                    line, f"{key}: core {core} is offline: `echo 1 >/sys/devices/system/cpu/cpu{core}/online`, or name"
                    " another (with `nosmt` each core's second thread is off)",
                )  # fmt: skip


def _memory(plan: Plan, has: Inventory) -> Iterator[Fault]:
    """Each NUMA node must have what nodes get of it: in the pool where Mint runs, at all where it does not yet."""
    wanted: dict[int, int] = {}
    for node in filter(None, (plan.one, plan.two)):
        wanted[node.numa] = wanted.get(node.numa, 0) + node.memory_mib
        line = plan.lines.get(f"{node.name}.memory", 1)
        if node.numa not in has.numa_mib:
            key, numas = f"{node.name}.numa", ", ".join(map(str, sorted(has.numa_mib)))
            yield Fault(plan.lines.get(key, 1), f"{key}: there is no NUMA node {node.numa}, but {numas}")
            continue
        yield from _enough(f"{node.name}.memory", line, node.numa, wanted[node.numa], has)
    if plan.moving_numa is not None:
        line = plan.lines.get("moving.numa", 1)
        if plan.moving_numa not in has.numa_mib:
            yield Fault(line, f"moving.numa: there is no NUMA node {plan.moving_numa}")
        else:
            one = plan.one.memory_mib if plan.one.numa == plan.moving_numa else 0
            yield from _enough("moving.numa", line, plan.moving_numa, one + MOVED_MIB + STOPPED_MIB, has)


def _enough(key: str, line: int, numa: int, wanted_mib: int, has: Inventory) -> Iterator[Fault]:
    free = has.free_mib(numa) if has.boot == MINT else has.numa_mib[numa]
    if wanted_mib > free:
        what = "free in its pool" if has.boot == MINT else "in all"
        yield Fault(
            line, f"{key}: nodes take {wanted_mib} MiB of NUMA node {numa}, which has {free} MiB {what}: ask for less, or"
            f" boot with a larger pool (mint=on,mem={-(-wanted_mib // 1024)}G@{numa})",
        )  # fmt: skip


def _functions(plan: Plan, has: Inventory) -> Iterator[Fault]:
    devices = {device["bdf"]: device for device in has.devices}
    data = {disk.key: disk for disk in plan.data if disk}
    for key, function in plan.functions.items():
        line = plan.lines.get(re.sub(r"\[\d+\]", "", key), 1)
        device, disks = devices.get(function), has.behind(function)
        if has.boot == MINT and device is None:
            yield Fault(line, f"{key}: there is no PCI function {function}: `mintctl device list` on the server lists them")
            continue
        if device and device.get("owner") not in (None, 0):
            yield Fault(line, f"{key}: {function} belongs to node {device['owner_name']}: remove that node first")
            continue
        if device and (device["platform"] or device["bridge"]):
            what = "a bridge" if device["bridge"] else "the platform's"
            yield Fault(line, f"{key}: {function} is {what}, and stays with node 0")
            continue
        if not disks and ".devices" not in key:
            text = f"{function} is no disk that node 0 has: `ls -l /sys/block` on the server shows which are"
            yield Fault(line, f"{key}: {text}")
        for disk in disks:
            if fault := _used(disk, has) or _content(key, disk, data.get(key)):
                yield Fault(line, f"{key}: {fault}")


def _used(disk: Disk, has: Inventory) -> str:
    """Why a disk is nobody's to take, whatever the plan says; "" if it is free."""
    where = f"/dev/{disk.name} ({disk.function})"
    swaps = [swap for swap in has.swaps if re.fullmatch(rf"/dev/{re.escape(disk.name)}(p?\d+)?", swap)]
    if disk.mounts:
        return f"{where} is mounted on {', '.join(disk.mounts)}: unmount it, or name another"
    if swaps:
        return f"{where} has swap that is on ({', '.join(swaps)}): `swapoff` it, or name another"
    if disk.holders:
        holders = f"{', '.join(disk.holders)} (a file system, LVM, RAID, dm-crypt or multipath)"
        return f"{where} is held by {holders}: take that down, or name another"
    if members := [sign for sign in disk.signatures if MEMBERS.fullmatch(sign)]:
        return f"{where} is part of something larger ({', '.join(members)}): take it out of that, or name another"
    if disk.open:
        return f"{where} is open by {', '.join(disk.open)}: end that, or name another"
    return ""


def _content(key: str, disk: Disk, data: DataDisk | None) -> str:
    """Why what a disk holds keeps it from its role; "" if it does not."""
    where = f"/dev/{disk.name} ({disk.function})"
    node = NODE_PARTITION in disk.partition_names
    if key.endswith(("one.disk", "two.disk")):
        return "" if node else f"{where} has no node's image: `images/scripts/install-disk /dev/{disk.name}` writes it"
    if data is None:
        return ""  # nothing is written there: it is read, or a card
    holds = ", ".join(disk.signatures) or ("something in its first MiB" if disk.nonzero else "")
    if not holds or data.overwrite:
        return ""
    table = key.split(".")[0]
    return f"{where} holds {holds}, which would be lost: name another, or set overwrite = true in [{table}]"
