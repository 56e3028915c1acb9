# SPDX-License-Identifier: Apache-2.0
"""The real binary where no Mint runs: its arguments, and that it does no harm."""

import os

import pytest

REFUSED_WITH_NODE = [
    ["-p", "image"],
    ["-c", "-l", "image"],
    ["-a", "-l", "image"],
    ["-f", "image"],
    ["-t", "bzImage", "-l", "image"],
    ["-i", "-l", "image"],
    ["-x", "-e"],
    ["-y", "-e"],
    ["--reuse-cmdline", "-l", "image"],
    ["--reuseinitrd", "-l", "image"],
    ["--mem-min=0x100000", "-l", "image"],
    ["--entry=0", "-l", "image"],
    ["--hotplug", "-l", "image"],
    ["--load-preserve-context", "image"],
    ["--load-jump-back-helper"],
    ["--noefi", "-l", "image"],
    ["--real-mode", "-l", "image"],
]


@pytest.mark.parametrize("where", ["first", "last"])
@pytest.mark.parametrize("args", REFUSED_WITH_NODE, ids=lambda args: args[0])
def test_option_for_this_kernel_is_a_usage_error(kexec, args, where):
    node = ["--mint-node", "1"]
    result = kexec(*(node + args if where == "first" else args + node))
    assert result.status == 2
    assert "does not go with --mint-node" in result.err
    assert args[0].split("=")[0] in result.err


@pytest.mark.parametrize(
    "args, word",
    [
        ([], "wants one of -l, -e, -u and --status"),
        (["-l"], "no kernel image given"),
        (["-l", "one", "two"], "what is two for"),
        (["-e", "image"], "what is image for"),
        (["-l", "-e", "image"], "only one of"),
        (["-e", "-u"], "only one of"),
        (["-e", "--initrd=file"], "--initrd goes with -l only"),
        (["-u", "--command-line=x"], "goes with -l only"),
        (["-e", "--mint-node=2"], "given twice"),
        (["-e", "--no-such-option"], "bad option"),
    ],
)
def test_bad_combination_is_a_usage_error(kexec, args, word):
    result = kexec("--mint-node=1", *args)
    assert result.status == 2
    assert word in result.err


@pytest.mark.parametrize("node", ["", "x", "-1", "16", "1x", "0x1", "1.5", "9" * 30])
def test_bad_node_is_a_usage_error(kexec, node):
    result = kexec("-e", f"--mint-node={node}")
    assert result.status == 2
    assert "a node is a number from 0 to 15" in result.err


@pytest.mark.skipif(os.path.exists("/dev/mint"), reason="this machine runs Mint")
@pytest.mark.parametrize("action", [["-l", "/etc/hostname"], ["-e"], ["-u"], ["--status"], ["-S"]])
def test_without_mint_everything_is_refused(kexec, action):
    result = kexec("--mint-node=1", "-s", *action)
    assert result.status == 3
    assert "mint=on" in result.err
    assert result.out == ""


def test_help_shows_the_option(kexec):
    for args in (["--help"], ["--mint-node=1", "--help"]):
        result = kexec(*args)
        assert result.status == 0
        assert "--mint-node=<id>" in result.out


def test_without_the_option_an_image_is_judged_as_before(kexec, tmp_path):
    text = tmp_path / "text"
    text.write_text("no kernel\n")
    result = kexec("-s", "-l", str(text))
    assert result.status not in (0, 2, 3)
    assert "Cannot determine the file type" in result.err
