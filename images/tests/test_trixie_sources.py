# SPDX-License-Identifier: Apache-2.0
"""trixie-sources: what it makes of a machine's apt sources, without a network."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "trixie-sources"

ONE_LINE = """\
deb http://mirror.example/debian bookworm main contrib
deb-src http://mirror.example/debian bookworm main
deb [arch=amd64] http://mirror.example/debian bookworm-updates main
deb http://mirror.example/security bookworm-security main
deb http://mirror.example/debian bookworm-backports main
deb https://vendor.example/apt cloud-sdk-bookworm main
deb https://vendor.example/docker bookworm stable
"""

DEB822 = """\
Types: deb
URIs: http://mirror.example/debian
Suites: trixie trixie-updates
Components: main non-free-firmware

Types: deb
URIs: http://mirror.example/security
Suites: trixie-security
Components: main
"""


@pytest.fixture
def machine(tmp_path):
    """Call the script on a made-up machine with these sources; gives the process."""

    def call(name, text, *options):
        etc = tmp_path / "etc"
        parts = etc / "sources.list.d"
        parts.mkdir(parents=True, exist_ok=True)
        (parts / name).write_text(text)
        (tmp_path / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        conf = tmp_path / "apt.conf"
        conf.write_text(
            f'Dir::Etc::sourcelist "/dev/null";\nDir::Etc::sourceparts "{parts}";\n'
            f'Dir::State::lists "{tmp_path}/lists";\nDir::Cache "{tmp_path}";\nAPT::Architecture "amd64";\n')
        env = {**os.environ, "APT_CONFIG": str(conf), "MINT_CACHE": str(tmp_path / "cache")}
        return subprocess.run([SCRIPT, *options], env=env, capture_output=True, text=True, check=False, timeout=60)

    return call


def stanzas(path):
    """{(URI, suite): {field: value}} of a deb822 file."""
    found = {}
    for block in Path(path.strip()).read_text().strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        found[fields["URIs"], fields["Suites"]] = fields
    return found


WANTED = {
    ("http://mirror.example/debian/", "trixie"),
    ("http://mirror.example/debian/", "trixie-updates"),
    ("http://mirror.example/security/", "trixie-security"),
}


@pytest.mark.parametrize("name, text", [("a.list", ONE_LINE), ("a.sources", DEB822)])
def test_both_formats_give_the_release_its_updates_and_security(machine, name, text):
    done = machine(name, text)
    assert done.returncode == 0, done.stderr
    assert set(stanzas(done.stdout)) == WANTED


def test_only_debians_keys_are_trusted(machine):
    for fields in stanzas(machine("a.list", ONE_LINE).stdout).values():
        assert fields["Signed-By"].startswith("/usr/share/keyrings/debian-archive-keyring.")
        assert fields["Components"] == "main"
        assert "Trusted" not in fields


def test_source_packages_have_a_root_of_their_own(machine):
    binary = machine("a.list", ONE_LINE).stdout
    source = machine("a.list", ONE_LINE, "--types", "deb-src").stdout
    assert binary != source
    assert {f["Types"] for f in stanzas(source).values()} == {"deb-src"}


def test_another_suite_may_be_asked_for(machine):
    found = stanzas(machine("a.list", ONE_LINE, "--suite", "bookworm").stdout)
    assert {suite for _, suite in found} == {"bookworm", "bookworm-updates", "bookworm-security"}


def test_apt_uses_the_private_root_only(machine):
    done = machine("a.list", ONE_LINE, "--apt-config")
    config = done.stdout.strip()
    dump = subprocess.run(["apt-config", "dump"], env={**os.environ, "APT_CONFIG": config},
                          capture_output=True, text=True, check=True).stdout
    root = str(Path(config).parents[1])
    for key in ("Dir::State::lists", "Dir::State::status", "Dir::Cache::archives", "Dir::Etc::sourceparts"):
        assert f'{key} "{root}' in dump, key


def test_machine_without_debian_sources_is_told_so(machine):
    done = machine("a.list", "deb https://vendor.example/docker bookworm stable\n")
    assert done.returncode == 1
    assert "name no Debian release" in done.stderr


def test_bad_option_is_a_usage_error(machine):
    for options in (["--colour"], ["--types", "udeb"], ["--suite", "tri/xie"]):
        assert machine("a.list", ONE_LINE, *options).returncode == 2


def test_no_host_is_named_in_the_project():
    text = SCRIPT.read_text()
    assert "http" not in text
