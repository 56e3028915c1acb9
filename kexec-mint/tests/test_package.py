# SPDX-License-Identifier: Apache-2.0
"""The .deb: what it holds, and that it installs on Debian 12 and 13 alike."""

import gzip
import subprocess

import pytest
from conftest import BUILD, call


@pytest.fixture(scope="session")
def package():
    """Path of the one package that was built."""
    (path,) = (BUILD / "deb").glob("kexec-tools_*.deb")
    return path


@pytest.fixture(scope="session")
def unpacked(package, tmp_path_factory):
    """Its files."""
    folder = tmp_path_factory.mktemp("package")
    subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    return folder


def field(package, name):
    """A field of its control file."""
    return subprocess.run(["dpkg-deb", "-f", package, name], check=True, capture_output=True, text=True).stdout.strip()


def test_package_is_newer_than_debians(package):
    version = field(package, "Version")
    assert version.endswith("+mint1")
    subprocess.run(["dpkg", "--compare-versions", version, "gt", version.removesuffix("+mint1")], check=True)


def test_package_wants_nothing_of_one_release_only(package):
    names = {word.split()[0] for word in field(package, "Depends").replace("|", ",").split(",")}
    assert names <= {"libc6", "liblzma5", "zlib1g", "debconf", "debconf-2.0", "dpkg"}


def test_packaged_kexec_has_the_option(unpacked):
    result = call(unpacked / "usr/sbin/kexec", "--mint-node=1", "--help")
    assert result.status == 0 and "--mint-node=<id>" in result.out


def test_packaged_man_page_tells_of_nodes(unpacked):
    page = gzip.decompress((unpacked / "usr/share/man/man8/kexec.8.gz").read_bytes()).decode()
    assert "OS NODES" in page and "mint\\-node" in page
