# SPDX-License-Identifier: Apache-2.0
"""The emulated server: QEMU's command line, its start, its end.

2 sockets of 3 cores (APIC ids 0-2, 4-6: with a gap, as real sockets have), two
NUMA nodes of 3 GiB, three disks and three network cards, each behind a root
port of its own:

    0000:01:00.0 virtio-blk   node 0's root     0000:04:00.0 virtio-net
    0000:02:00.0 virtio-blk                     0000:05:00.0 virtio-net
    0000:03:00.0 NVMe                           0000:06:00.0 e1000e
    0000:07:00.0 virtio-serial: exec channel
"""

import fcntl
import itertools
import os
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from rig import accel, emulator, link, markers, paths, physical, plugin, site, wire
from rig.channel import Channel
from rig.console import Console
from rig.delay import Delays, sample
from rig.errors import MachineLost
from rig.link import Links
from rig.qmp import Monitor
from rig.trace import Recorder

CPUS_PER_SOCKET = 3
SOCKETS = 2
CPUS = CPUS_PER_SOCKET * SOCKETS
APIC_IDS = (0, 1, 2, 4, 5, 6)
MEMORY_PER_NUMA_MIB = 3072
NODES_WITH_CONSOLE = 5
FIFO = "trace.fifo"
MARKERS = "markers.log"
LOCK = "lock"

# mint=on: the control area, and a pool for other nodes on each NUMA node; the
# second takes two small nodes at a time.
MINT = "mint=on,mem=1G@0,mem=1792M@1"

# What every kernel of the rig is told. tsc=reliable: vCPUs stall for seconds,
# and the clocksource watchdog would take that for a bad TSC. nowatchdog: the
# same for lockups. oops=panic: an oops must not pass unseen.
COMMON = "tsc=reliable nowatchdog oops=panic"

# Node 0. panic=-1: its panic is an immediate reset, which ends QEMU (-no-reboot)
# and is seen as a lost machine at once rather than by time-outs.
NODE0 = f"console=ttyS0 {COMMON} panic=-1"


# make test-debug runs the scenarios on another kernel than "mint".
DEFAULT_FLAVOUR = os.environ.get("MINT_RIG_FLAVOUR", "mint")


@dataclass(frozen=True)
class MachineConfig:
    """What differs between machines of the rig."""

    name: str
    mint: str = MINT  # "" boots without mint=
    flavour: str = DEFAULT_FLAVOUR  # of node 0's kernel
    append: str = ""  # more of node 0's command line
    kernel: Path | None = None  # instead of the flavour's
    initrd: Path | None = None  # instead of the node's
    disks: bool = True  # False: blank ones, for an initrd that stays
    trace: bool = False  # record every access to devices (rig.trace)
    counted: bool = False  # time is the count of executed instructions: emulated, whatever the host has
    markers: bool = False  # write down each CPU's instructions at markers (rig.markers): emulated, too
    pmu: bool = False  # modelled performance counters (rig/pmu.c): emulated, too
    pmu_speed: int = 1  # these count all that often, as on a CPU that is so much faster than the emulator
    cache_bytes: int = 0  # with these, also what guests miss in a last-level cache so large, of each NUMA node: slow
    extra: tuple[str, ...] = field(default=())  # more of QEMU's command line
    numa_mib: int = MEMORY_PER_NUMA_MIB  # RAM of each NUMA node; the host gives what is used of it
    number: int = 0  # of several machines on one wire: their cards' addresses differ
    wire: socket.socket | None = None  # to another machine: an end of a rig.wire.Wire
    subnet: str = link.SUBNET  # of mint0
    settings: str = ""  # more lines of every node's mint.toml
    keys: str = ""  # lines of authorized_keys: who may log in to every node as root

    def own_lines(self) -> dict[str, str]:
        """Of files of the site layer, beside the rig's; nothing leaves the disks as they are."""
        network = "" if self.subnet == link.SUBNET else f'\n[network]\nsubnet = "{self.subnet}"\n'
        lines = {site.SETTINGS: network + self.settings, site.KEYS: self.keys}
        return {name: more for name, more in lines.items() if more}

    def command_line(self) -> str:
        """Node 0's kernel command line."""
        return " ".join(filter(None, [self.mint, NODE0, accel.kernel_words(self.counted), self.append]))


def port(bus: int) -> list[str]:
    """A root port; the firmware numbers the buses in the order of slots."""
    return ["-device", f"pcie-root-port,id=rp{bus},bus=pcie.0,addr={bus + 1:#x},chassis={bus},slot={bus}"]


def disk_arguments(index: int, bus: int, device: str, image: Path, kind: str) -> list[str]:
    """One disk behind its own root port."""
    return [
        *port(bus),
        # unsafe: the disk lives as long as this QEMU; never wait for the host's disk.
        "-drive", f"if=none,id=disk{index},file={image},format={kind},cache=unsafe,discard=unmap",
        "-device", f"{device},drive=disk{index},bus=rp{bus},serial=mint-disk{index}",
    ]  # fmt: skip


def card_arguments(index: int, bus: int, device: str, machine: int = 0) -> list[str]:
    """One network card behind its own root port; all are on one wire (hub 0)."""
    return [
        *port(bus),
        "-netdev", f"hubport,id=nic{index},hubid=0",
        # No option ROM: the firmware would run its network boot.
        "-device", f"{device},netdev=nic{index},bus=rp{bus},mac=52:54:00:4d:{machine:02x}:{index:02x},romfile=",
    ]  # fmt: skip


def own_folder(name: str) -> tuple[Path, int]:
    """A folder that no running rig uses: build/rig/NAME, NAME.2, ... and its lock.

    Two test runs at a time are fine; each has its own machines.
    """
    for number in itertools.count(1):
        folder = paths.RIG / (name if number == 1 else f"{name}.{number}")
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        return folder, lock
    raise AssertionError


class Machine:
    """One emulated server, from start() to stop().

    console[n] is node n's console (rig.watch writes those of nodes 1 and up), channel runs
    commands on node 0, links on the others, monitor is QEMU's, delays what the host's scheduler did to it. All files are in folder (build/rig/NAME, emptied by start()).
    """

    def __init__(self, config: MachineConfig) -> None:
        self.config = config
        self.folder, self._lock = own_folder(config.name)
        self.console = [
            Console(self.folder / f"console.{n}.log", self.check_alive)
            for n in range(NODES_WITH_CONSOLE + 1)
        ]
        self.channel: Channel | None = None
        self.links = Links(link.over_mint0(config.subnet))
        self.monitor: Monitor | None = None
        self.process: subprocess.Popen | None = None
        self.trace: Recorder | None = None
        self.delays = Delays()
        self._stopping = False
        # Set by stop(): for those who look at the machine from threads of their own.
        self.ended = threading.Event()
        self.started_at = 0.0

    def address(self, node: int) -> str:
        """A node's on mint0, whether it is there now or not."""
        return link.address(node, self.config.subnet)

    def _disks(self) -> list[str]:
        images, kind = [], "qcow2"
        for index in range(3):
            image = self.folder / f"disk{index}.qcow2"
            if self.config.disks:
                base = ["-b", str(paths.need(paths.DISK_BASE)), "-F", "raw", str(image)]
                command = ["qemu-img", "create", "-q", "-f", "qcow2", *base]
            else:
                command = ["qemu-img", "create", "-q", "-f", "qcow2", str(image), "1G"]
            subprocess.run(command, check=True)
            images.append(image)
        if self.config.disks and (more := self.config.own_lines()):
            site.add_lines(images, more, paths.need(paths.DISK_BASE), paths.need(paths.RIG_LAYER))
        return [
            *disk_arguments(0, 1, "virtio-blk-pci", images[0], kind),
            *disk_arguments(1, 2, "virtio-blk-pci", images[1], kind),
            *disk_arguments(2, 3, "nvme", images[2], kind),
        ]

    def _serial(self, channel_fd: int) -> list[str]:
        return [
            *port(7),
            "-device", "virtio-serial-pci,id=serial,bus=rp7",
            "-chardev", f"socket,id=exec,fd={channel_fd}",
            "-device", "virtserialport,bus=serial.0,chardev=exec,name=mint.exec",
        ]  # fmt: skip

    def _caches(self) -> list[str]:
        if not self.config.cache_bytes:
            return []
        return physical.plugin_words(self.config.cache_bytes, self.config.numa_mib << 20, SOCKETS, CPUS_PER_SOCKET)

    def arguments(self, channel_fd: int, monitor_fd: int) -> list[str]:
        """QEMU's whole command line."""
        config = self.config
        numa = []
        for n in range(SOCKETS):
            first = n * CPUS_PER_SOCKET
            numa += [
                # memfd, shared: the rig reads the machine's RAM through
                # /proc/PID/fd (rig.ram), without a file that outlives QEMU.
                "-object", f"memory-backend-memfd,id=ram{n},size={config.numa_mib}M,share=on",
                "-numa", f"node,nodeid={n},memdev=ram{n},cpus={first}-{first + CPUS_PER_SOCKET - 1}",
            ]  # fmt: skip
        trace = []
        if config.trace:
            trace = ["-D", str(self.folder / FIFO), "-trace", "enable=memory_region_ops_*"]
        return [
            *emulator.find().command,
            "-name", f"mint-rig-{config.name},debug-threads=on",
            # Nothing that is not said here: no floppy, no VGA, no default card.
            "-no-user-config", "-nodefaults", "-display", "none",
            "-machine", "q35",
            *accel.arguments(config.counted),
            "-smp", f"{CPUS},sockets={SOCKETS},cores={CPUS_PER_SOCKET},threads=1",
            "-m", f"{config.numa_mib * SOCKETS}M",
            *numa,
            # A reset of the machine ends all nodes: it must end QEMU too, to be seen.
            "-no-reboot",
            "-chardev", f"socket,id=monitor,fd={monitor_fd}",
            "-mon", "chardev=monitor,mode=control",
            "-chardev", f"file,id=console0,path={self.console[0].path}",
            "-serial", "chardev:console0",
            "-kernel", str(paths.need(config.kernel or paths.kernel(config.flavour))),
            "-initrd", str(paths.need(config.initrd or paths.NODE_INITRD)),
            "-append", config.command_line(),
            *self._disks(),
            *card_arguments(0, 4, "virtio-net-pci", config.number),
            *card_arguments(1, 5, "virtio-net-pci", config.number),
            *card_arguments(2, 6, "e1000e", config.number),
            *(wire.arguments(config.wire) if config.wire else []),
            *self._serial(channel_fd),
            *trace,
            *(markers.plugin_arguments(self.folder / MARKERS) if config.markers else []),
            *(plugin.arguments(paths.QEMU_PMU, f"speed={config.pmu_speed}", *self._caches()) if config.pmu else []),
            *config.extra,
        ]  # fmt: skip

    def start(self) -> "Machine":
        """Start QEMU; returns when its monitor answers, before node 0 is up."""
        for old in self.folder.iterdir():
            if old.name != LOCK:
                old.unlink()
        if self.config.trace:
            self.trace = Recorder(self.folder / FIFO)
        # Socket pairs, handed over as descriptors: no paths, which are limited
        # to 107 bytes, and nobody else can connect.
        channel, channel_qemu = socket.socketpair()
        monitor, monitor_qemu = socket.socketpair()
        command = self.arguments(channel_qemu.fileno(), monitor_qemu.fileno())
        (self.folder / "qemu.command").write_text("\n".join(command) + "\n")
        handed_over = [channel_qemu, monitor_qemu]
        if self.config.wire:
            wire.drain(self.config.wire)
            handed_over.append(self.config.wire)
        with (self.folder / "qemu.log").open("wb") as log:
            self.process = subprocess.Popen(
                # QEMU must not outlive the test program, however that ends.
                ["setpriv", "--pdeathsig", "KILL", *command],
                env=os.environ | emulator.find().environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[stream.fileno() for stream in handed_over],
                start_new_session=True,
            )
        self.started_at = time.monotonic()
        sample(self.delays, self.process.pid, self.ended)
        channel_qemu.close()
        monitor_qemu.close()
        self.channel = Channel(channel, self.why_over)
        try:
            self.monitor = Monitor(monitor)
        except Exception as error:
            self.process.kill()
            self.process.wait()
            raise MachineLost(f"QEMU did not start: {self.why_over()}") from error
        return self

    def stretches(self, label: int) -> list[markers.Stretch]:
        """What CPUs have executed between the markers of a label until now; of a machine with config.markers."""
        return markers.stretches((self.folder / MARKERS).read_text(), label)

    def why_over(self) -> str:
        """How QEMU ended, "" while it runs."""
        if self.process is None:
            return f"machine {self.config.name} was never started"
        try:
            # The sockets close a moment before the process is gone.
            status = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return ""
        if self._stopping:
            return f"machine {self.config.name} was stopped by the rig"
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        log = (self.folder / "qemu.log").read_text(errors="replace").strip()
        tail = "\n".join(self.console[0].text().splitlines()[-12:])
        return (
            f"machine {self.config.name} lost: QEMU ended ({how}) after "
            f"{time.monotonic() - self.started_at:.1f} s; artefacts: {self.folder}\n"
            f"{log}\n--- end of node 0's console\n{tail}"
        )

    def alive(self) -> bool:
        """Whether QEMU runs."""
        return self.process is not None and self.process.poll() is None

    def check_alive(self) -> None:
        """Raises MachineLost if QEMU has ended."""
        if not self.alive():
            raise MachineLost(self.why_over())

    def stop(self) -> None:
        """End QEMU, at once; artefacts stay, disks do not."""
        self._stopping = True
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.ended.set()
        if self.channel:
            self.channel.close()
        if self.monitor:
            self.monitor.close()
        if self.trace:
            self.trace.close()
        for disk in self.folder.glob("disk*.qcow2"):
            disk.unlink()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> "Machine":
        return self.start()

    def __exit__(self, *exception) -> None:
        self.stop()


