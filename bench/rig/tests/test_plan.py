# SPDX-License-Identifier: Apache-2.0
"""Bad plans: each is refused with the line, what is wrong, whose it is, and the way out; nothing is tried."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from rig import inventory, paths, plan
from rig.errors import RigError
from rig.plan import BadPlan
from server_facts import BRIDGE, CARD, PLATFORM, answers

EXAMPLE = paths.PROJECT / "docs" / "report-plan.toml"
# Each key has a line of its own; the first is line 1.
GOOD = """[one]
cores = [4, 5]
memory = "4G"
numa = 1
disk = "0000:41:00.0"
[two]
cores = [6]
memory = "2G"
numa = 1
disk = "0000:42:00.0"
[guests]
cores = [1, 2]
[moving]
core = 3
numa = 0
[data0]
disk = "0000:43:00.0"
[data1]
disk = "0000:44:00.0"
overwrite = true
"""


def told(text: str, has: str | None = None) -> tuple[int, list[str]]:
    """The status and the lines of a refusal; 0 if there is none."""
    try:
        found = plan.parse(text, "plan.toml")
        if has is not None:
            plan.check(found, inventory.read(has))
    except BadPlan as error:
        return error.status, str(error).splitlines()
    return 0, []


def test_good_plan_is_taken():
    assert told(GOOD, answers()) == (0, [])
    assert told(GOOD, answers("linux")) == (0, [])
    roles = plan.parse(GOOD, "plan.toml").roles
    assert roles.one.words() == "one --cpus 4,5 --memory 4096M@numa1 --device 0000:41:00.0".split()
    assert (roles.guests, roles.moving, roles.moving_numa, roles.moving_disk) == ((1, 2), 3, 0, None)
    assert roles.data == ("0000:43:00.0", "0000:44:00.0")


def test_example_of_the_documents_is_taken():
    assert told(EXAMPLE.read_text(), answers()) == (0, [])
    own = EXAMPLE.read_text().replace('numa = 0\ndisk = "0000:42:00.0"', 'numa = 0\ndisk = "0000:41:00.0"')
    assert "moving.disk: function 0000:41:00.0 is in one.disk, too" in told(own)[1][0]


FILES = [
    ("cores = [4, 5]", "cores = [4, 5", 3, "no TOML: Unclosed array (at line 3, column 1)"),
    ("[guests]", "[guest]", 11, "there is no [guest]: a plan has one, two, guests, moving, data0, data1"),
    ("[guests]\n", "[[guests]]\n", 11, "guests must be a table: [guests], and its keys below"),
    ("numa = 1\ndisk", "nama = 1\ndisk", 4, "[one] has no key nama: it takes cores, memory, numa, disk, devices"),
    ("core = 3", 'core = "3"', 14, "moving.core = '3': must be the number of a core"),
    ("core = 3", "core = true", 14, "moving.core = True: must be the number of a core"),
    ("cores = [6]", "cores = 6", 7, "two.cores = 6: must be a list of cores' numbers, like [4, 5]"),
    ("cores = [6]", "cores = []", 7, "two.cores = []: must be a list of cores' numbers, like [4, 5]"),
    ('"4G"', '"4 GB"', 3, """one.memory = '4 GB': must be a size like "4G" or "768M\""""),
    ('"4G"', '"4000M"', 3, "one.memory = '4000M': memory comes in blocks of 128 MiB, and 4000M is no number of them"),
    ('"4G"', '"0G"', 3, """one.memory = '0G': must be a size like "4G" or "768M\""""),
    ("numa = 0", "numa = -1", 15, "moving.numa = -1: must be the number of a NUMA node"),
    ('"0000:43:00.0"', '"/dev/sda"', 17,
     'data0.disk = \'/dev/sda\': must be a PCI function like "0000:41:00.0"; `lspci -D` lists them'),
    ("overwrite = true", 'overwrite = "yes"', 20, "data1.overwrite = 'yes': must be true or false"),
    ("cores = [1, 2]", "cores = [0, 2]", 12, "guests.cores: core 0 stays with node 0, which boots on it: name another"),
    ("cores = [1, 2]", "cores = [1, 5]", 12, "guests.cores: core 5 is in one.cores, too: each is for one thing"),
    ("cores = [4, 5]", "cores = [4, 4]", 2, "one.cores: core 4 is in one.cores, too: each is for one thing"),
    ('"0000:44:00.0"', '"0000:41:00.0"', 19, "data1.disk: function 0000:41:00.0 is in one.disk, too: each is for one thing"),
]  # fmt: skip


@pytest.mark.parametrize(("good", "bad", "line", "text"), FILES)
def test_bad_file_is_refused(good: str, bad: str, line: int, text: str):
    assert good in GOOD
    status, lines = told(GOOD.replace(good, bad, 1))
    assert status == 2 and f"plan.toml:{line}: {text}" in lines


def test_missing_keys_and_tables_are_told():
    assert told("") == (2, ["plan.toml:1: there is no [one], the node that all groups start"])
    missing = [f"plan.toml:1: [one] has no {key}" for key in ("memory", "numa", "disk")]
    assert told("[one]\ncores = [4]\n") == (2, missing)


def test_all_faults_of_a_file_are_told_at_once():
    status, lines = told(GOOD.replace("[guests]", "[guest]").replace('"4G"', "4").replace("core = 3", "core = -3"))
    assert status == 2 and [line.split(":")[1] for line in lines] == ["3", "11", "14"]


OVERWRITE = "name another, or set overwrite = true in [data0]"
MOUNTED = "unmount it, or name another"
SERVERS = [
    ({"lines": [("user", "1000")]}, 1, "the user there is not root, and nodes are root's: give root@SERVER"),
    ({"lines": [("busy",)]}, 1, "another run is there, or is about to end: wait for its end"),
    ({"lines": [("boot", "mint", "2")]}, 1, "this is node 2 of a server: give the address of its node 0"),
    ({"lines": [("nodes", "")]}, 1,
     "mintctl does not answer there: `systemctl status mintd` on the server says why (docs/bare-metal.md)"),
    ({"nodes": [{"id": 1, "name": "web", "state": "running"}]}, 1,
     "node web (running) is there, and would be measured with: `mintctl node remove web` on the server, or wait for the"
     " run that has made it"),
    ({"lines": [("guest", "near", "shut off")]}, 1,
     "guest near (shut off) is there, and one of that name is to be made: `virsh undefine near`"),
    ({"lines": [("guest", "shop", "running")]}, 1,
     "guest shop runs, and would be measured with: `virsh shutdown shop` on the server"),
    ({"without": "tool\tsetsid"}, 1, "setsid is not on the server: install it (util-linux, coreutils)"),
    ({"without": "tool\tflock"}, 1, "flock is not on the server: install it (util-linux, coreutils)"),
    ({"without": "cpu\t6"}, 7, "two.cores: there is no core 6: the server has 0 to 7"),
    ({"cpus": {4: {"owner": 1, "owner_name": "web"}}}, 2, "one.cores: core 4 belongs to node web: remove that node first"),
    ({"lines": [("cpu", "3", "6", "0", "0")]}, 14,
     "moving.core: core 3 is offline: `echo 1 >/sys/devices/system/cpu/cpu3/online`, or name another (with `nosmt` each"
     " core's second thread is off)"),
    ({"without": "numa\t1"}, 4, "one.numa: there is no NUMA node 1, but 0"),
    ({"without": "numa\t0"}, 15, "moving.numa: there is no NUMA node 0"),
    ({"lines": [("memorys", '{"memory": [{"state": "free", "owner": null, "numa": 1, "bytes": 5368709120}]}')]}, 8,
     "two.memory: nodes take 6144 MiB of NUMA node 1, which has 5120 MiB free in its pool: ask for less, or boot with a"
     " larger pool (mint=on,mem=6G@1)"),
    ({"lines": [("memorys", '{"memory": [{"state": "free", "owner": null, "numa": 0, "bytes": 1073741824}]}')]}, 15,
     "moving.numa: nodes take 1152 MiB of NUMA node 0, which has 1024 MiB free in its pool: ask for less, or boot with a"
     " larger pool (mint=on,mem=2G@0)"),
    ({"lines": [("devices", '{"devices": []}')]}, 5,
     "one.disk: there is no PCI function 0000:41:00.0: `mintctl device list` on the server lists them"),
    ({"devices": {"0000:42:00.0": {"owner": 1, "owner_name": "web"}}}, 10,
     "two.disk: 0000:42:00.0 belongs to node web: remove that node first"),
    ({"without": "disk\tnvme2n1"}, 17,
     "data0.disk: 0000:43:00.0 is no disk that node 0 has: `ls -l /sys/block` on the server shows which are"),
    ({"disks": {"nvme0n1": {4: "", 5: ""}}}, 5,
     "one.disk: /dev/nvme0n1 (0000:41:00.0) has no node's image: `images/scripts/install-disk /dev/nvme0n1` writes it"),
    ({"disks": {"nvme2n1": {5: "ext4", 6: "1"}}}, 17,
     f"data0.disk: /dev/nvme2n1 (0000:43:00.0) holds ext4, which would be lost: {OVERWRITE}"),
    ({"disks": {"nvme2n1": {6: "1"}}}, 17,
     f"data0.disk: /dev/nvme2n1 (0000:43:00.0) holds something in its first MiB, which would be lost: {OVERWRITE}"),
    ({"disks": {"nvme2n1": {6: "unreadable"}}}, 17,
     f"data0.disk: /dev/nvme2n1 (0000:43:00.0) holds something in its first MiB, which would be lost: {OVERWRITE}"),
    # Whatever the plan says: data1 has overwrite = true.
    ({"disks": {"nvme3n1": {1: "/srv,/srv/more"}}}, 19,
     f"data1.disk: /dev/nvme3n1 (0000:44:00.0) is mounted on /srv, /srv/more: {MOUNTED}"),
    ({"lines": [("swap", "/dev/nvme3n1p2")]}, 19,
     "data1.disk: /dev/nvme3n1 (0000:44:00.0) has swap that is on (/dev/nvme3n1p2): `swapoff` it, or name another"),
    ({"disks": {"nvme3n1": {2: "dm-0,md127"}}}, 19,
     "data1.disk: /dev/nvme3n1 (0000:44:00.0) is held by dm-0, md127 (a file system, LVM, RAID, dm-crypt or multipath):"
     " take that down, or name another"),
    ({"disks": {"nvme3n1": {5: "LVM2_member"}}}, 19,
     "data1.disk: /dev/nvme3n1 (0000:44:00.0) is part of something larger (LVM2_member): take it out of that, or name"
     " another"),
    ({"disks": {"nvme3n1": {3: "qemu-system-x86"}}}, 19,
     "data1.disk: /dev/nvme3n1 (0000:44:00.0) is open by qemu-system-x86: end that, or name another"),
    ({"disks": {"nvme1n1": {1: "/mnt"}}}, 10, f"two.disk: /dev/nvme1n1 (0000:42:00.0) is mounted on /mnt: {MOUNTED}"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "line", "text"), SERVERS)
def test_plan_that_is_none_for_this_server_is_refused(changes: dict, line: int, text: str):
    status, lines = told(GOOD, answers(**changes))
    assert status == 3 and f"plan.toml:{line}: {text}" in lines


@pytest.mark.parametrize(("function", "text"), [
    (BRIDGE, f"one.devices[0]: {BRIDGE} is a bridge, and stays with node 0"),
    (PLATFORM, f"one.devices[0]: {PLATFORM} is the platform's, and stays with node 0"),
])  # fmt: skip
def test_what_stays_with_node_0_is_refused(function: str, text: str):
    with_devices = GOOD.replace('"0000:41:00.0"\n', f'"0000:41:00.0"\ndevices = ["{function}"]\n')
    assert told(with_devices, answers()) == (3, [f"plan.toml:6: {text}"])
    assert told(with_devices.replace(function, CARD), answers()) == (0, [])


def test_overwrite_allows_what_holds_data():
    assert told(GOOD, answers(disks={"nvme3n1": {5: "gpt,ntfs", 6: "1"}})) == (0, [])


def test_data_of_a_second_disk_behind_the_same_function_counts():
    second = ("disk", "nvme2n2", "0000:43:00.0", "1000", "/home", "", "", "", "", "1", "")
    status, (line,) = told(GOOD, answers(lines=[second]))
    assert status == 3 and "/dev/nvme2n2 (0000:43:00.0) is mounted on /home" in line


def test_all_faults_of_a_server_are_told_at_once():
    status, lines = told(GOOD, answers(disks={"nvme3n1": {1: "/srv"}}, without=("cpu\t6", "cpu\t1"), lines=[("user", "5")]))
    assert status == 3 and [line.split(":")[1] for line in lines] == ["1", "7", "12", "19"]


def test_memory_of_a_boot_without_mint_is_the_servers():
    status, lines = told(GOOD.replace('"4G"', '"64G"'), answers("linux"))
    assert status == 3 and "which has 32768 MiB in all" in lines[0]


def test_disks_behind_a_function_are_found_with_one_path_or_several(tmp_path: Path):
    """The real command, on a made /sys/block."""
    devices, block = tmp_path / "devices", tmp_path / "block"
    block.mkdir()
    for place in (
        "pci0000:40/0000:40:01.0/0000:41:00.0/nvme/nvme0/nvme0n1", "pci0000:40/0000:40:02.0/0000:42:00.0/nvme/nvme1/nvme1c1n2",
        "virtual/nvme-subsystem/nvme-subsys1/nvme1n2", "pci0000:40/0000:43:00.0/virtio1/block/vda", "virtual/block/loop0",
    ):  # fmt: skip
        (devices / place).mkdir(parents=True)
        (block / place.rpartition("/")[2]).symlink_to(devices / place)

    def disks(function: str) -> list[str]:
        command = inventory.DISKS_OF.format(function=function).replace("/sys/block", str(block))
        return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout.split()

    assert disks("0000:41:00.0") == ["nvme0n1"] and disks("0000:42:00.0") == ["nvme1n2"]
    assert disks("0000:43:00.0") == ["vda"] and disks("0000:44:00.0") == []


@pytest.mark.parametrize(("error", "status"), [("EBUSY", 1), ("ENOENT", 0), ("ENXIO", 0), ("", 0)])
def test_exclusive_user_is_one_only_if_the_disk_is_busy(error: str, status: int):
    """The script's own expression: other errors are no user's."""
    expression = re.search(r"perl -MFcntl -e '([^']*)'", inventory.SCRIPT)[1]
    opened = "sysopen(my $f, shift, O_RDONLY | O_EXCL)"
    assert opened in expression
    said = f"do {{ $! = Errno::{error}(); 0 }}" if error else "1"
    words = ["perl", "-MFcntl", "-MErrno", "-e", expression.replace(opened, said), "/dev/disk"]
    assert subprocess.run(words, check=False).returncode == status


def test_answers_that_are_cut_are_an_error():
    with pytest.raises(RigError, match="not whole"):
        inventory.read(answers()[:-5])
    with pytest.raises(RigError, match="cannot be read"):
        inventory.read("cpu\tx\t0\t0\t1\nend\n")


def test_header_names_what_moves_figures():
    has = inventory.read(answers())
    assert has.host() == "8 × A processor, microcode 0x7, governor performance, SMT off"
    assert has.host() == inventory.read(answers("linux")).host()
    assert has.apics == {2 * core: core for core in range(8)}
    assert replace(has, smt="1").host().endswith("SMT on")
