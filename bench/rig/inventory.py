# SPDX-License-Identifier: Apache-2.0
"""What a server has, and who uses it now: one script asks, and writes nothing; what it prints is read here, purely.

Each line is a word and values between tabs. Cores carry the numbers that node 0's kernel gives
them, which are Mint's.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from rig.bootstrap import LOCK
from rig.errors import RigError

MINT, LINUX = "mint", "linux"  # boots: with Mint in the kernel and mint=on, or without
MIB = 1 << 20

# For any shell: the names of the disks behind a PCI function. Of an NVMe disk that may have several paths, nvme0c1n1 is
# one of them, which no program can open, and nvme0n1 the disk, which is below no function.
DISKS_OF = "readlink -f /sys/block/* | grep -F /{function}/ | sed 's|.*/||; s/^\\(nvme[0-9]*\\)c[0-9]*n/\\1n/' | sort -u"

# Cheap questions only, to files; each that has no answer here prints an empty one.
SCRIPT = f"lock={LOCK}" + r"""
export LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
tell() { w=$1; shift; printf '%s' "$w"; for v; do printf '\t%s' "$v"; done; printf '\n'; }
first() { cat "$@" 2>/dev/null | head -n 1; }
tell user "$(id -u)"
tell boot "$([ -e /sys/kernel/mint/node ] && echo mint || echo linux)" "$(first /sys/kernel/mint/node)"
tell kernel "$(uname -r)" "$(cat /proc/version /sys/kernel/notes 2>/dev/null | sha256sum | cut -c 1-12)"
tell model "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
tell microcode "$(sed -n 's/^microcode[^:]*: //p' /proc/cpuinfo | sort -u | paste -sd, -)"
tell governor "$(cat /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor 2>/dev/null | sort -u | paste -sd, -)"
tell smt "$(first /sys/devices/system/cpu/smt/active)"
tell load "$(cut -d ' ' -f 1 /proc/loadavg)"
for d in /sys/devices/system/cpu/cpu[0-9]*; do
	n=${d##*/cpu}
	numa=$(ls -d "$d"/node[0-9]* 2>/dev/null | head -n 1)
	apic=$(awk -v n="$n" '/^processor/ { on = $3 == n } on && /^apicid/ { print $3 }' /proc/cpuinfo)
	tell cpu "$n" "$apic" "${numa##*/node}" "$([ -e "$d/online" ] && cat "$d/online" || echo 1)"
done
for d in /sys/devices/system/node/node[0-9]*; do
	tell numa "${d##*/node}" "$(awk '/MemTotal/ { print $4 }' "$d/meminfo")"
done
awk 'NR > 1 { print $1 }' /proc/swaps | while read -r f; do
	tell swap "$(readlink -f "$f")"
done
# Of every mount namespace; and which programs have which device open (guests, for one).
mounted=$(cat /proc/[0-9]*/mountinfo 2>/dev/null | sort -u)
opened=$(ls -l /proc/[0-9]*/fd 2>/dev/null |
	awk '/^\/proc/ { split($1, a, "/"); p = a[3] } / -> \/dev\// { print p, $NF }' | sort -u)
for s in /sys/block/*; do
	b=${s##*/}
	case $b in loop* | ram* | zram* | sr* | fd* | dm-* | md*) continue ;; esac
	[ "$(first "$s/hidden")" = 1 ] && continue
	bytes=$(($(first "$s/size") * 512))
	[ "$bytes" -gt 0 ] || continue
	# Of an NVMe disk that may have several paths, by its controllers.
	pci=$(readlink -f "$s" "$(readlink -f "$s")"/../nvme[0-9]* 2>/dev/null |
		grep -oE '[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](/|$)' | tail -n 1)
	numbers=$(cat "$s/dev" "$s"/"$b"*/dev 2>/dev/null | paste -sd' ' -)
	# By number, or by name: some file systems have a number of their own.
	mounts=$(echo "$mounted" | awk -v numbers=" $numbers " -v b="/dev/$b" '{
		for (i = 6; i <= NF && $i != "-"; i++);
		source = $(i + 2)
		if (index(numbers, " " $3 " ") || source == b ||
			(index(source, b) == 1 && substr(source, length(b) + 1) ~ /^p?[0-9]+$/)) print $5
	}' | sort -u | paste -sd, -)
	parts=$(for t in "$s"/"$b"*/partition; do [ -e "$t" ] && t=${t%/*} && echo "${t##*/}"; done | paste -sd, -)
	# A file system may be where no mount table shows it (below the root that an initrd left), or hold several disks.
	holders=$({
		for h in "$s"/holders/* "$s"/"$b"*/holders/*; do [ -e "$h" ] && echo "${h##*/}"; done
		for t in $b $(echo "$parts" | tr , ' '); do
			for f in /sys/fs/*/"$t" /sys/fs/*/*/devices/"$t"; do [ -e "$f" ] && f=${f#/sys/fs/} && echo "${f%%/*}"; done
			command -v perl >/dev/null && {
				perl -MFcntl -e 'exit(!sysopen(my $f, shift, O_RDONLY | O_EXCL) && $!{EBUSY} ? 1 : 0)' "/dev/$t" || echo 'an exclusive user'
			}
		done
	} | sort -u | paste -sd, -)
	open=$(echo "$opened" | awk -v b="/dev/$b" '
		$2 == b || (index($2, b) == 1 && substr($2, length(b) + 1) ~ /^p?[0-9]+$/) { print $1 }' | sort -u |
		while read -r p; do first "/proc/$p/comm"; done | sort -u | paste -sd, -)
	names=$(cat "$s"/"$b"*/uevent 2>/dev/null | sed -n 's/^PARTNAME=//p' | paste -sd, -)
	found=$(for t in $b $(echo "$parts" | tr , ' '); do
		wipefs --no-act --noheadings --output TYPE "/dev/$t" 2>/dev/null || echo unreadable
	done | tr -d ' ' | sort -u | paste -sd, -)
	begin=$(head -c 1048576 "/dev/$b" 2>/dev/null | wc -c)
	nonzero=$(head -c 1048576 "/dev/$b" 2>/dev/null | tr -d '\0' | head -c 1 | wc -c)
	[ "$begin" = 1048576 ] || nonzero=unreadable
	tell disk "$b" "${pci%/}" "$bytes" "$mounts" "$holders" "$open" "$names" "$found" "$nonzero" "$parts"
done
if [ -e /sys/kernel/mint/node ]; then
	for what in node cpu memory device; do
		tell "$what"s "$(mintctl "$what" list --json 2>/dev/null | tr -d '\n')"
	done
fi
command -v virsh >/dev/null && virsh -q -c qemu:///system list --all --name 2>/dev/null | while read -r g; do
	[ -z "$g" ] || tell guest "$g" "$(virsh -q -c qemu:///system domstate "$g" 2>/dev/null | head -n 1)"
done
for t in setsid mktemp taskset flock mintctl virsh mint-guest qemu-system-x86_64 cpio; do
	command -v "$t" >/dev/null && tell tool "$t"
done
kexec --help 2>/dev/null | grep -q -e --mint-node && tell tool 'kexec with --mint-node'
for f in /dev/kvm /dev/vhost-net /boot/vmlinuz-mint /boot/node.initrd; do
	[ -e "$f" ] && tell file "$f"
done
[ ! -e "$lock" ] || ! command -v flock >/dev/null || flock -n -s "$lock" true || tell busy
tell end
"""


@dataclass(frozen=True)
class Core:
    """One core (thread) that node 0's kernel knows, online or not."""

    number: int
    apic: int | None
    numa: int | None
    online: bool


@dataclass(frozen=True)
class Disk:
    """One disk that node 0 has. holders: LVM, RAID and the like; open: programs; nonzero: its first MiB has something,
    or cannot be read."""

    name: str
    function: str
    bytes: int
    mounts: tuple[str, ...]
    holders: tuple[str, ...]
    open: tuple[str, ...]
    partition_names: tuple[str, ...]
    signatures: tuple[str, ...]
    nonzero: bool
    parts: tuple[str, ...] = ()


@dataclass
class Inventory:
    """All of it. nodes, cpus, memory, devices: as mintctl tells them; none on a boot without Mint."""

    user: int = 0
    boot: str = LINUX
    node: int | None = None
    release: str = ""
    kernel: str = ""  # a digest of the running kernel's build
    model: str = ""
    microcode: str = ""
    governor: str = ""
    smt: str = ""
    load: float = 0.0
    cores: dict[int, Core] = field(default_factory=dict)
    numa_mib: dict[int, int] = field(default_factory=dict)
    swaps: tuple[str, ...] = ()
    disks: list[Disk] = field(default_factory=list)
    nodes: list[dict] = field(default_factory=list)
    cpus: list[dict] = field(default_factory=list)
    memory: list[dict] = field(default_factory=list)
    devices: list[dict] = field(default_factory=list)
    guests: dict[str, str] = field(default_factory=dict)
    busy: bool = False  # another run is there
    tools: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()

    def behind(self, function: str) -> list[Disk]:
        """The disks that a PCI function has."""
        return [disk for disk in self.disks if disk.function == function]

    def lacks_in_mint(self, wanted: Iterable[str]) -> str:
        """Which of these tools and files, by their names in SCRIPT, a boot of Mint lacks, in words; "" if none, or in
        another boot, which says nothing of that."""
        lost = [name for name in wanted if name not in self.tools | self.files]
        return f"the server has no {', no '.join(lost)}" if lost and self.boot == MINT else ""

    def free_mib(self, numa: int) -> int:
        """Memory of a NUMA node that is in the pool."""
        return sum(b["bytes"] for b in self.memory if b["state"] == "free" and b["numa"] == numa) // MIB

    @property
    def apics(self) -> dict[int, int]:
        """APIC ids, by which kernels of other nodes are told which core is meant: the core's number by each."""
        return {core.apic: core.number for core in self.cores.values() if core.apic is not None}

    def host(self) -> str:
        """What does not change between boots: for a data set's header."""
        return (
            f"{len(self.cores)} × {self.model}, microcode {self.microcode or '?'}, governor {self.governor or 'none'},"
            f" SMT {'on' if self.smt == '1' else 'off'}"
        )


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _listed(text: str, key: str) -> list[dict]:
    return json.loads(text)[key] if text else []


def read(text: str) -> Inventory:
    """The answers of SCRIPT. Raises RigError if they are not whole."""
    found = Inventory()
    lines = [line.split("\t") for line in text.splitlines()]
    if not lines or lines[-1] != ["end"]:
        raise RigError(f"the server's answers are not whole:\n{text[-2000:]}")
    try:
        for kind, *values in lines[:-1]:
            _take(found, kind, values)
    except (ValueError, KeyError, TypeError) as error:
        raise RigError(f"the server's answer cannot be read: {error}: {kind} {values}") from error
    return found


def _take(found: Inventory, kind: str, values: list[str]) -> None:
    if kind in ("model", "microcode", "governor", "smt"):
        setattr(found, kind, values[0])
    elif kind == "user":
        found.user = int(values[0])
    elif kind == "boot":
        found.boot, found.node = values[0], _number(values[1])
    elif kind == "kernel":
        found.release, found.kernel = values
    elif kind == "load":
        found.load = float(values[0])
    elif kind == "cpu":
        number, apic, numa, online = values
        found.cores[int(number)] = Core(int(number), _number(apic), _number(numa), online == "1")
    elif kind == "numa":
        found.numa_mib[int(values[0])] = int(values[1]) >> 10
    elif kind == "swap":
        found.swaps += (values[0],)
    elif kind == "disk":
        name, function, count, mounts, holders, opened, names, signatures, nonzero, parts = values
        lists: Iterable[tuple[str, ...]] = map(_words, (mounts, holders, opened, names, signatures))
        found.disks.append(Disk(name, function, int(count), *lists, nonzero.strip() != "0", _words(parts)))
    elif kind in ("nodes", "cpus", "devices"):
        setattr(found, kind, _listed(values[0], kind))
    elif kind == "memorys":
        found.memory = _listed(values[0], "memory")
    elif kind == "guest":
        found.guests[values[0]] = values[1]
    elif kind == "busy":
        found.busy = True
    elif kind == "tool":
        found.tools |= {values[0]}
    elif kind == "file":
        found.files |= {values[0]}
    else:
        raise ValueError(f"unknown answer {kind!r}")
