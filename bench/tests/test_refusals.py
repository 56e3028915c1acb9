# SPDX-License-Identifier: Apache-2.0
"""Bad input: each has its clear error, its exit code, and changes nothing (the
fixture compares the ledger)."""

import pytest

from rig import paths
from rig.functions import driver_of, interface_of
from rig.mintctl import FAILED, REFUSED, USAGE, Mintctl, MintctlError
from rig.node import Node
from rig.server import CARD2_E1000E, DISK0, DISK2_NVME, ONE, TWO, Server

# Right in everything; each test makes one thing wrong.
GOOD = {"--cpus": "5", "--memory": "256M@numa1"}
ROOT_PORT = "0000:00:02.0"


def wanted(**wrong: str) -> list[str]:
    """Options of mintctl node add, with something wrong."""
    return [word for option in (GOOD | {f"--{key}": value for key, value in wrong.items()}).items() for word in option]


def refused(node: Node, code: str, name: str = "third", status: int = REFUSED, **wrong: str) -> dict:
    """mintctl node add on a node with one thing wrong: checks the error, gives it."""
    with pytest.raises(MintctlError) as caught:
        Mintctl(node)("node", "add", name, *wanted(**wrong))
    error = caught.value
    assert error.status == status, error
    assert code in error.codes, error
    for refusal in error.refusals:
        if refusal["code"] == code:
            assert refusal["message"], "the refusal does not say what failed"
            assert refusal["hint"], "the refusal does not say what to do"
            return refusal
    return error.error


def would_do(server: Server, device: str) -> None:
    """Nothing is in the way of the plan any more."""
    assert server.mintctl("node", "add", "third", *wanted(device=device), "--dry-run")["dry_run"]


def test_core_of_another_node(pair: Server):
    refusal = refused(pair.zero, "cpu_owned", cpus="3")
    assert "cpu 3" in refusal["message"] and ONE.name in refusal["message"]
    assert "node 1" in refusal["owner"]


def test_core_that_does_not_exist(pair: Server):
    assert "17" in refused(pair.zero, "cpu_absent", cpus="17")["message"]


def test_last_core_of_a_node(pair: Server):
    """Node 2 has one core, and that is the one it was booted on."""
    with pytest.raises(MintctlError) as caught:
        Mintctl(pair.two)("node", "add", "third", "--cpus", str(TWO.cpus[0]), "--memory", "256M@numa1")
    assert caught.value.status == REFUSED
    assert caught.value.codes & {"cpu_last", "cpu_boot"}, caught.value


def test_boot_core_of_node0(pair: Server):
    assert "cpu 0" in refused(pair.zero, "cpu_boot", cpus="0")["message"]


def test_memory_that_is_not_there(pair: Server):
    refused(pair.zero, "memory_short", memory="64G@numa1")


def test_memory_of_a_numa_node_that_does_not_exist(pair: Server):
    with pytest.raises(MintctlError) as caught:
        pair.mintctl("node", "add", "third", "--cpus", "5", "--memory", "256M@numa7")
    assert caught.value.status == REFUSED
    assert caught.value.codes & {"memory_absent", "memory_short"}, caught.value


def test_size_that_is_no_size(pair: Server):
    with pytest.raises(MintctlError) as caught:
        pair.mintctl("node", "add", "third", "--cpus", "5", "--memory", "plenty")
    assert caught.value.status == USAGE


def test_image_that_is_no_kernel(pair: Server):
    assert "/etc/passwd" in refused(pair.zero, "image_not_kernel", kernel="/etc/passwd")["message"]


def test_image_that_does_not_exist(pair: Server):
    assert "/nowhere" in refused(pair.zero, "image_missing", kernel="/nowhere")["message"]


def test_truncated_kernel(pair: Server):
    pair.zero.run("head -c 1500000 /boot/vmlinuz-mint >/tmp/short")
    refused(pair.zero, "image_truncated", kernel="/tmp/short")


def test_truncated_initrd(pair: Server):
    pair.zero.run("head -c 500001 /boot/node.initrd >/tmp/short")
    refused(pair.zero, "initrd_truncated", initrd="/tmp/short")


def test_initrd_that_is_no_file(pair: Server):
    """mintd neither reads without an end nor waits: it answers."""
    pair.zero.run("mkfifo /tmp/fifo")
    for path in "/dev/zero", "/tmp/fifo":
        assert path in refused(pair.zero, "initrd_missing", initrd=path)["message"]


def test_kernel_without_mint(pair: Server):
    pair.zero.run("cat >/tmp/vmlinuz-off", stdin=paths.need(paths.kernel("off")).read_bytes())
    refused(pair.zero, "image_no_mint", kernel="/tmp/vmlinuz-off")


def test_device_of_another_node(pair: Server):
    refusal = refused(pair.zero, "device_owned", device=DISK2_NVME)
    assert DISK2_NVME in refusal["message"] and TWO.name in refusal["message"]


def test_device_that_is_a_bridge(pair: Server):
    assert ROOT_PORT in refused(pair.zero, "device_bridge", device=ROOT_PORT)["message"]


def test_device_that_has_the_running_root(pair: Server):
    assert DISK0 in refused(pair.zero, "device_busy", device=DISK0)["message"]


def test_device_that_is_mounted(bare: Server):
    """With the disk and where it is mounted; once it is not, the same plan is good."""
    with bare.zero.undone("mkdir -p /tmp/disk && mount -o ro /dev/nvme0n1p2 /tmp/disk", "umount /tmp/disk"):
        message = refused(bare.zero, "device_busy", device=DISK2_NVME)["message"]
        assert DISK2_NVME in message and "mounted on /tmp/disk" in message
    would_do(bare, DISK2_NVME)


def test_device_that_carries_the_default_route(bare: Server):
    """And one that is a port of a bridge."""
    card = interface_of(bare.zero, CARD2_E1000E)
    # Of little weight: what the node's own route does goes on.
    with bare.zero.undone(
        f"ip link set {card} up; ip address add 192.0.2.1/24 dev {card};"
        f"ip route add default via 192.0.2.2 dev {card} metric 9999",
        f"ip route delete default via 192.0.2.2; ip address flush dev {card}; ip link set {card} down",
    ):
        message = refused(bare.zero, "device_busy", device=CARD2_E1000E)["message"]
        assert f"{card} carries the default route" in message
    # on a machine that has just started
    bare.zero.wait("the guests' bridge is there", "[ -e /sys/class/net/mintbr0 ]", 120)
    with bare.zero.undone(f"ip link set {card} master mintbr0", f"ip link set {card} nomaster"):
        assert f"{card} is a port of mintbr0" in refused(bare.zero, "device_busy", device=CARD2_E1000E)["message"]
    would_do(bare, CARD2_E1000E)


def test_device_that_is_passed_through_to_a_guest(bare: Server):
    """It has vfio-pci for a driver, as libvirt leaves it for as long as the guest runs."""
    device = f"/sys/bus/pci/devices/{CARD2_E1000E}"
    driver = driver_of(bare.zero, CARD2_E1000E)

    def bind(name: str) -> str:
        rebind = f"echo {CARD2_E1000E} >{device}/driver/unbind; echo {CARD2_E1000E} >/sys/bus/pci/drivers_probe"
        return f"echo '{name}' >{device}/driver_override; {rebind}"

    # The emulated server has no IOMMU, without which vfio wants to be told that this is meant.
    bare.zero.run("echo Y >/sys/module/vfio/parameters/enable_unsafe_noiommu_mode")
    with bare.zero.undone(bind("vfio-pci"), bind("")):
        assert driver_of(bare.zero, CARD2_E1000E) == "vfio-pci"
        message = refused(bare.zero, "device_busy", device=CARD2_E1000E)["message"]
        assert "passed through to a guest" in message
    assert driver_of(bare.zero, CARD2_E1000E) == driver
    would_do(bare, CARD2_E1000E)


def test_device_that_does_not_exist(pair: Server):
    assert "0000:0a:00.0" in refused(pair.zero, "device_absent", device="0000:0a:00.0")["message"]


def test_second_node_of_the_same_name(pair: Server):
    assert ONE.name in refused(pair.zero, "name_taken", name=ONE.name)["message"]


def test_node_that_does_not_exist(pair: Server):
    with pytest.raises(MintctlError) as caught:
        pair.mintctl("node", "stop", "nobody")
    assert (caught.value.status, "node_absent" in caught.value.codes) == (REFUSED, True), caught.value


def test_start_of_a_running_node(pair: Server):
    with pytest.raises(MintctlError) as caught:
        pair.mintctl("node", "start", ONE.name)
    assert (caught.value.status, "node_running" in caught.value.codes) == (REFUSED, True), caught.value


def test_all_faults_of_a_plan_are_told_at_once(pair: Server):
    with pytest.raises(MintctlError) as caught:
        pair.mintctl("node", "add", ONE.name, "--cpus", "3,17", "--memory", "64G@numa1", "--device", ROOT_PORT)
    wanted = {"name_taken", "cpu_owned", "cpu_absent", "memory_short", "device_bridge"}
    assert wanted <= caught.value.codes, caught.value


def test_config_file_with_unknown_key(pair: Server):
    """Nothing at all is done: the good file beside it is not applied either."""
    pair.zero.run(
        "rm -rf /tmp/nodes.d; mkdir /tmp/nodes.d; cd /tmp/nodes.d;"
        "printf 'name = \"good\"\\ncpus = \"5\"\\nmemory = \"256M@numa1\"\\n' >good.toml;"
        "{ cat good.toml; echo 'colour = \"green\"'; } | sed s/good/bad/ >bad.toml"
    )
    with pytest.raises(MintctlError) as caught:
        pair.mintctl("apply", "--dir", "/tmp/nodes.d")
    assert caught.value.status == USAGE, caught.value
    text = caught.value.result.err + caught.value.result.out
    assert "colour" in text and "bad.toml" in text, text


def test_mint_toml_with_unknown_key_stops_mintd(pair: Server):
    pair.zero.run("printf '[wait]\\nstart_hours = 3\\n' >/tmp/mint.toml")
    result = pair.zero.run("mintd --config /tmp/mint.toml", limit_s=20, check=False)
    assert result.status == USAGE
    assert "start_hours" in result.err and "/tmp/mint.toml" in result.err


def test_mintctl_while_mintd_is_down(pair: Server):
    pair.zero.run("mint-service stop mintd")
    try:
        with pytest.raises(MintctlError) as caught:
            pair.mintctl("node", "list")
        assert caught.value.status == FAILED
        assert caught.value.code == "mintd_down", caught.value
        assert "mintd" in caught.value.error["message"]
    finally:
        pair.zero.run("mint-service start mintd")
        pair.wait_mintd(pair.zero)
    pair.wait_state(1, "running")


def test_dry_run_says_what_it_would_do_and_does_nothing(pair: Server):
    answer = pair.mintctl("node", "add", "third", "--cpus", "5", "--memory", "256M@numa1", "--dry-run")
    assert answer["dry_run"] is True
    assert any("cpu 5" in step for step in answer["steps"]), answer
    assert pair.mintctl.state(3) == "absent"
