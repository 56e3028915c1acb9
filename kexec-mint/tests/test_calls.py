# SPDX-License-Identifier: Apache-2.0
"""What reaches the kernel, and how its answers read: kexec-mint.c on a played kernel."""

import errno

import pytest

STOPPED, LOADED, STARTING, RUNNING, HALTED, REBOOT, CRASHED, KILLED, LOADING = range(1, 10)
MINT, NO_INITRAMFS, DEBUG, UNLOAD = 0x10, 0x4, 0x8, 0x1


def loads(result):
    return [line for line in result.out.splitlines() if line.startswith("kexec_file_load")]


def test_load_gives_files_command_line_and_node(fake, image, tmp_path):
    initrd = tmp_path / "initrd"
    initrd.write_bytes(b"070701")
    result = fake("-s", "-l", "--mint-node", "2", "--initrd", initrd, "--command-line", "a=b c", image())
    assert (result.status, result.err) == (0, "")
    flags = MINT | 2 << 16
    assert loads(result) == [f"kexec_file_load kernel=1 initrd=1 flags={flags:#x} cmdline_len=6 cmdline=a=b c"]


def test_load_without_initrd_says_so(fake, image):
    result = fake(image(), "--mint-node=3", "-l")
    flags = MINT | 3 << 16 | NO_INITRAMFS
    assert loads(result) == [f"kexec_file_load kernel=1 initrd=0 flags={flags:#x} cmdline_len=1 cmdline="]


def test_debug_reaches_the_kernel(fake, image):
    result = fake("-d", "-l", "--mint-node=1", image())
    assert f"flags={MINT | DEBUG | NO_INITRAMFS | 1 << 16:#x}" in result.out


def test_start_is_one_ioctl_and_no_load(fake):
    result = fake("-e", "--mint-node=1", FAKE_STATE=LOADED)
    assert (result.status, result.out, result.err) == (0, "start node=1\n", "")


def test_unload(fake):
    result = fake("-u", "--mint-node=1", FAKE_STATE=LOADED)
    assert result.status == 0
    flags = MINT | UNLOAD | 1 << 16
    assert loads(result) == [f"kexec_file_load kernel=0 initrd=0 flags={flags:#x} cmdline_len=0 cmdline=-"]


@pytest.mark.parametrize(
    "error, state, status, word",
    [
        ("EINVAL", STOPPED, 0, ""),
        ("EINVAL", CRASHED, 0, ""),
        ("EINVAL", LOADING, 3, "somebody else"),
        ("EBUSY", RUNNING, 3, "is running"),
        ("ENOENT", -1, 3, "no node 1"),
        ("EIO", LOADED, 1, "unloading its kernel: Input/output error"),
    ],
)
def test_unload_of_nothing_is_done_and_other_errors_are_told(fake, error, state, status, word):
    result = fake("-u", "--mint-node=1", FAKE_LOAD=getattr(errno, error), FAKE_STATE=state)
    assert result.status == status
    assert word in result.err
    assert bool(result.err) == bool(word)


@pytest.mark.parametrize(
    "state, status, word",
    [
        (STOPPED, 0, "node 1 (web): stopped: no kernel loaded"),
        (LOADED, 1, "node 1 (web): loaded: a kernel is in its memory, not started"),
        (STARTING, 0, "node 1 (web): starting"),
        (RUNNING, 0, "node 1 (web): running, Linux 6.12.0-mint, 2 cores online, 768 MiB"),
        (HALTED, 0, "halted"),
        (REBOOT, 0, "wants to be started again"),
        (CRASHED, 0, "panicked (sysrq triggered crash)"),
        (KILLED, 0, "killed"),
        (LOADING, 0, "loading"),
        (77, 0, "does not know"),
    ],
)
def test_status_tells_the_state(fake, state, status, word):
    result = fake("--status", "--mint-node=1", FAKE_STATE=state)
    assert result.status == status
    assert word in result.out
    assert result.out.count("\n") == 1


def test_status_of_the_own_node(fake):
    assert "running" in fake("-S", "--mint-node=0", FAKE_STATE=RUNNING).out


@pytest.mark.parametrize("state", [-1, 0])
def test_status_of_no_node_is_refused(fake, state):
    result = fake("--status", "--mint-node=1", FAKE_STATE=state)
    assert result.status == 3
    assert "there is no node 1" in result.err


@pytest.mark.parametrize(
    "error, environment, words",
    [
        ("EPERM", {}, ["node 1 (web)", "CAP_SYS_BOOT"]),
        ("ENODEV", {}, ["mint=on"]),
        ("ENOSYS", {}, ["CONFIG_KEXEC_FILE"]),
        ("ENOENT", {"FAKE_STATE": -1}, ["no node 1", "mintctl node add"]),
        ("EBUSY", {"FAKE_STATE": RUNNING}, ["node 1 (web) is running", "mintctl node stop"]),
        ("EBUSY", {"FAKE_STATE": STARTING}, ["is starting"]),
        ("EBUSY", {"FAKE_STATE": LOADING}, ["somebody else", "try again"]),
        ("EBUSY", {"FAKE_STATE": STOPPED}, ["busy", "try again"]),
        ("ENOMEM", {}, ["owns 768 MiB", "claim more memory"]),
        ("EINVAL", {}, ["command line", "5 bytes of at most 2047"]),
        ("EAGAIN", {"FAKE_STATE": CRASHED}, ["not parked", "mintctl node kill"]),
        ("E2BIG", {}, ["more pieces", "adjacent"]),
    ],
)
def test_refused_load_says_what_and_why(fake, image, error, environment, words):
    result = fake("-l", "--mint-node=1", "--append=a=b c", image(), FAKE_LOAD=getattr(errno, error), **environment)
    assert result.status == 3
    for word in words:
        assert word in result.err
    assert result.err.count("\n") == 1


def test_unknown_error_is_a_failure(fake, image):
    result = fake("-l", "--mint-node=1", image(), FAKE_LOAD=errno.EIO)
    assert result.status == 1
    assert "Input/output error" in result.err


@pytest.mark.parametrize(
    "patch, length, word",
    [
        ({}, 0, "not a bzImage"),
        ({}, 0x200, "not a bzImage"),
        ({0x202: b"XXXX"}, None, "not a bzImage"),
        ({0x206: b"\x0a\x02"}, None, "too old"),
        ({0x234: b"\0"}, None, "CONFIG_RELOCATABLE"),
        ({0x236: b"\0"}, None, "64-bit"),
        ({}, 0x700, "truncated"),
        ({0x700: b"XXXX"}, None, "no kernel_info"),
        ({0x710: b"XXXX"}, None, "CONFIG_MINT=y"),
        ({0x268: b"\xff\xff\xff\xff"}, None, "no kernel_info"),
        ({0x704: b"\xff\xff\xff\xff"}, None, "CONFIG_MINT=y"),
        ({0x718: b"\x07"}, None, "boot facts of version 7"),
    ],
)
def test_image_that_is_no_kernel_for_a_node_says_why(fake, image, patch, length, word):
    path = image(patch, length)
    result = fake("-l", "--mint-node=1", path, FAKE_LOAD=errno.ENOEXEC)
    assert result.status == 3
    assert str(path) in result.err and word in result.err


@pytest.mark.parametrize("option", ["image", "--initrd"])
def test_missing_file_reaches_no_kernel(fake, image, option, tmp_path):
    missing = tmp_path / "missing"
    args = [missing] if option == "image" else [f"--initrd={missing}", image()]
    result = fake("-l", "--mint-node=1", *args)
    assert result.status == 1
    assert str(missing) in result.err and "No such file" in result.err
    assert result.out == ""


@pytest.mark.parametrize(
    "error, state, status, words",
    [
        ("EPERM", LOADED, 3, ["CAP_SYS_ADMIN"]),
        ("ENOENT", -1, 3, ["no node 1"]),
        ("EBUSY", RUNNING, 3, ["is running already"]),
        ("EAGAIN", RUNNING, 3, ["is running already"]),
        ("EAGAIN", STARTING, 3, ["is starting already"]),
        ("EBUSY", STOPPED, 3, ["no kernel to start", "kexec -l --mint-node 1"]),
        ("EBUSY", CRASHED, 3, ["panicked", "load one first"]),
        ("ENOEXEC", STOPPED, 3, ["no kernel to start", "stopped"]),
        ("ENXIO", LOADED, 3, ["owns no core", "claim one"]),
        ("EAGAIN", KILLED, 3, ["not parked", "mintctl node kill"]),
        ("ETIMEDOUT", STOPPED, 1, ["did not start", "timed out", "stopped"]),
    ],
)
def test_refused_start_says_what_and_why(fake, error, state, status, words):
    result = fake("-e", "--mint-node=1", FAKE_START=getattr(errno, error), FAKE_STATE=state)
    assert result.status == status
    for word in words:
        assert word in result.err


@pytest.mark.parametrize("action", [["-l", "image"], ["-e"], ["-u"]])
def test_own_node_is_refused_before_any_call(fake, action):
    result = fake("--mint-node=1", *action, FAKE_SELF=1)
    assert (result.status, result.out) == (3, "")
    assert "only a peer can" in result.err


def test_node_that_the_machine_has_no_room_for(fake):
    result = fake("-e", "--mint-node=4")
    assert (result.status, result.out) == (3, "")
    assert "nodes 0 to 3" in result.err


@pytest.mark.parametrize(
    "error, status, word",
    [("ENOENT", 3, "mint=on"), ("ENXIO", 3, "mint=on"), ("EACCES", 3, "root's"), ("EIO", 1, "Input/output")],
)
def test_device_that_does_not_open(fake, error, status, word):
    number = getattr(errno, error)
    result = fake("-e", "--mint-node=1", FAKE_DEVICE=number)
    assert (result.status, result.out) == (status, "")
    assert word in result.err
    # 1 would mean "loaded" there
    assert fake("--status", "--mint-node=1", FAKE_DEVICE=number).status == (255 if status == 1 else status)


def test_device_that_does_not_answer(fake):
    result = fake("-e", "--mint-node=1", FAKE_INFO=errno.EPERM)
    assert (result.status, result.out) == (3, "")
    assert "CAP_SYS_ADMIN" in result.err
    assert fake("-e", "--mint-node=1", FAKE_INFO=errno.ENOTTY).status == 1


def test_other_abi_is_refused(fake):
    result = fake("-e", "--mint-node=1", FAKE_ABI=9)
    assert (result.status, result.out) == (3, "")
    assert "version 9" in result.err
