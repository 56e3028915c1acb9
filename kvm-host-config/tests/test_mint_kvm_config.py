# SPDX-License-Identifier: Apache-2.0
"""mint-kvm-config: what it makes of a description, and what it refuses."""

import xml.etree.ElementTree as ElementTree

import pytest

BOOT = ("--kernel", "/boot/vmlinuz-mint", "--initrd", "/boot/guest.initrd")


def domain(run, path, *options, name="demo"):
    """The domain XML's root element for these options; the command must succeed."""
    done = run("domain", name, "--description", path, *BOOT, *options)
    assert done.returncode == 0, done.stderr
    return ElementTree.fromstring(done.stdout)


def test_generated_files_are_what_libvirt_understands(run, describe, libvirt_tools, tmp_path):
    out = tmp_path / "out"
    done = run("generate", "--description", describe(), "--output", out)
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in out.iterdir()) == ["dnsmasq.conf", "domain.xml", "network.xml", "node.toml", "pool.xml"]
    done = run("check", out, path=libvirt_tools)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["pool", "network", "domain"])
def test_check_finds_a_file_that_libvirt_would_not_take(run, describe, libvirt_tools, tmp_path, kind):
    out = tmp_path / "out"
    run("generate", "--description", describe(), "--output", out)
    broken = out / f"{kind}.xml"
    broken.write_text(broken.read_text().replace("</name>", "</name>\n<nonsense/>", 1))
    done = run("check", out, path=libvirt_tools)
    assert done.returncode == 1
    assert f"{kind}.xml" in done.stderr


def test_check_finds_what_dnsmasq_would_not_take(run, describe, libvirt_tools, tmp_path):
    out = tmp_path / "out"
    run("generate", "--description", describe(), "--output", out)
    broken = out / "dnsmasq.conf"
    broken.write_text(broken.read_text().replace("dhcp-range=10.78.128.0", "dhcp-range=10.78.128"))
    done = run("check", out, path=libvirt_tools)
    assert done.returncode == 1
    assert "dnsmasq.conf is not what dnsmasq understands" in done.stderr


@pytest.mark.parametrize("changes", [{"uplink": '"eth0"'}, {"dhcp": "false"}])
def test_node_that_gives_no_addresses_has_nothing_for_dnsmasq(run, describe, tmp_path, changes):
    out = tmp_path / "out"
    for now in ({}, changes):
        done = run("generate", "--description", describe(**now), "--output", out)
        assert done.returncode == 0, done.stderr
        assert (out / "dnsmasq.conf").exists() == (not now)


@pytest.mark.parametrize("options", [
    ("--disk", "/var/lib/libvirt/images/demo.raw", "--network", "--mac", "02:4d:49:47:01:0a"),
    ("--disk", "/dev/vdb", "--user-network"),
    ("--disk", "/pool/a.qcow2", "--vcpus", "2", "--memory", "256M", "--cmdline", "a=\"b\" <c> & 'd'"),
])
def test_every_kind_of_guest_is_what_libvirt_understands(run, describe, libvirt_tools, tmp_path, options):
    done = run("domain", "demo", "--description", describe(tsc_deadline="0"), *BOOT, *options)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    run("generate", "--description", describe(), "--output", out)
    (out / "domain.xml").write_text(done.stdout)
    checked = run("check", out, path=libvirt_tools)
    assert checked.returncode == 0, checked.stderr


def test_guest_of_uefi_is_what_libvirt_understands(run, describe, libvirt_tools, tmp_path):
    done = run("domain", "demo", "--description", describe(), "--disk", "/pool/a.raw", "--uefi")
    assert done.returncode == 0, done.stderr
    assert ElementTree.fromstring(done.stdout).find("os").get("firmware") == "efi"
    out = tmp_path / "out"
    run("generate", "--description", describe(), "--output", out)
    (out / "domain.xml").write_text(done.stdout)
    checked = run("check", out, path=libvirt_tools)
    assert checked.returncode == 0, checked.stderr


def test_vcpus_are_pinned_one_to_one_inside_the_nodes_cores(run, describe):
    root = domain(run, describe(cpus='"2,4-5"'), "--vcpus", "2")
    pins = [(p.get("vcpu"), p.get("cpuset")) for p in root.iter("vcpupin")]
    assert pins == [("0", "4"), ("1", "5")]
    assert root.find("vcpu").get("cpuset") == "2,4-5"
    assert root.find("cputune/emulatorpin").get("cpuset") == "2,4-5"


@pytest.mark.parametrize(("cpus", "vcpus", "pins"), [
    ("0-2", "3", ["1", "2", "0"]),
    ("0-1", "1", ["1"]),
    ("3", "1", ["3"]),
])
def test_nodes_first_core_is_the_last_that_a_vcpu_gets(run, describe, cpus, vcpus, pins):
    root = domain(run, describe(cpus=f'"{cpus}"'), "--vcpus", vcpus)
    assert [p.get("cpuset") for p in root.iter("vcpupin")] == pins


def test_guest_may_be_pinned_to_chosen_cores(run, describe):
    root = domain(run, describe(cpus='"0-3"'), "--pin", "3")
    assert [p.get("cpuset") for p in root.iter("vcpupin")] == ["3"]


def test_text_of_the_command_line_arrives_as_it_was_given(run, describe):
    text = "console=ttyS0 x=\"1\" <&> 'q' \\1 | & @NAME@ @BOOT@"
    root = domain(run, describe(), "--cmdline", text)
    assert root.findtext("os/cmdline") == text


def test_guest_without_disk_and_card_has_neither(run, describe):
    root = domain(run, describe())
    assert root.find("devices/disk") is None
    assert root.find("devices/interface") is None


def test_disk_says_what_it_is(run, describe):
    for path, kind, fmt in [("/p/a.raw", "file", "raw"), ("/p/a.qcow2", "file", "qcow2"), ("/dev/vdb", "block", "raw")]:
        disk = domain(run, describe(), "--disk", path).find("devices/disk")
        assert disk.get("type") == kind
        assert disk.find("driver").get("type") == fmt


def test_tsc_deadline_timer_is_taken_away_only_where_it_is_wrong(run, describe):
    def features(**changes):
        return [f.get("name") for f in domain(run, describe(**changes)).iter("feature")]

    assert features(tsc_deadline="0") == ["tsc-deadline"]
    assert features(tsc_deadline="1") == []
    assert features() == []


@pytest.mark.parametrize("changes, words", [
    ({"colour": '"red"'}, "unknown field `colour`"),
    ({"name": None}, "missing field `name`"),
    ({"cpus": None}, "missing field `cpus`"),
    ({"name": '"Web 1"'}, "must be made of a-z"),
    ({"name": '"' + "a" * 65 + '"'}, "longer than 64"),
    ({"id": "255"}, "255 is no node id: they are 0 to 254"),
    ({"id": '"one"'}, "expected u32"),
    ({"cpus": '"0-"'}, "cpus must be a list"),
    ({"cpus": '"0,0-1"'}, "names a CPU twice"),
    ({"memory_bytes": '"1G"'}, "expected u64"),
    ({"pool_path": '"images"'}, "must be absolute"),
    ({"bridge": '"mint bridge"'}, "no interface name"),
    ({"guest_network": '"10.78.0.11"'}, "invalid IP address syntax"),
    ({"guest_network": '"10.78.0.256/16"'}, "invalid IP address syntax"),
    ({"guest_network": '"10.78.0.11/30"'}, "prefix of 8 to 24 bits"),
    ({"guest_network6": '"fd00::1/48"'}, "prefix of 64 bits"),
    ({"uplink": '"eth0/1"'}, "no interface name"),
    ({"tsc_deadline": "2"}, "must be 0 or 1"),
    ({"id": "[1]"}, "expected u32"),
    ({"id": "1 2"}, "line 2"),
])
def test_bad_description_is_named_and_nothing_is_written(run, describe, tmp_path, changes, words):
    out = tmp_path / "out"
    done = run("generate", "--description", describe(**changes), "--output", out)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "node.toml" in done.stderr
    assert not out.exists()


@pytest.mark.parametrize("name", ["Web-1", "db.example.org", "A" * 64])
def test_host_name_of_a_server_is_taken(run, describe, tmp_path, name):
    done = run("generate", "--description", describe(name=f'"{name}"'), "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr


def test_unreadable_description_is_named(run, tmp_path):
    done = run("generate", "--description", tmp_path / "none.toml", "--output", tmp_path / "out")
    assert done.returncode == 2
    assert "none.toml" in done.stderr


@pytest.mark.parametrize("options, words", [
    (("--vcpus", "3"), "wants 3 vCPUs, but there are 2 CPUs on node web"),
    (("--pin", "1-2"), "CPU 2 is not node web's (it owns CPUs 0-1)"),
    (("--memory", "1G"), "wants 1024 MiB, but node web has 1024 MiB of which a guest can have 784"),
])
def test_guest_beyond_its_node_is_refused(run, describe, options, words):
    done = run("domain", "demo", "--description", describe(), *BOOT, *options)
    assert done.returncode == 3, done.stderr
    assert words in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("options, words", [
    (("--vcpus", "0"), "--vcpus must be"),
    (("--memory", "lots"), "--memory must be"),
    (("--memory", "8M"), "less than the 32M"),
    (("--disk", "demo.raw"), "absolute path"),
    (("--network", "--mac", "zz"), "no MAC address"),
    (("--colour", "red"), "unknown option --colour"),
    (("--vcpus",), "wants a value"),
])
def test_bad_option_is_a_usage_error(run, describe, options, words):
    done = run("domain", "demo", "--description", describe(), *BOOT, *options)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr


def test_guest_needs_something_to_boot_from(run, describe):
    done = run("domain", "demo", "--description", describe())
    assert done.returncode == 2
    assert "--kernel or --disk" in done.stderr


def test_bad_guest_name_is_a_usage_error(run, describe):
    done = run("domain", "../demo", "--description", describe(), *BOOT)
    assert done.returncode == 2
    assert "a guest's name" in done.stderr


def test_description_of_this_machine_is_one(run, tmp_path):
    """What describe prints, generate takes: whatever this machine's host name is."""
    described = run("describe")
    assert described.returncode == 0, described.stderr
    path = tmp_path / "node.toml"
    path.write_text(described.stdout)
    done = run("generate", "--description", path, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "node.toml").read_text() == described.stdout
