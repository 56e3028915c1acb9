# SPDX-License-Identifier: Apache-2.0
"""A server that is this host: an `ssh` on the path that runs its command here, as a process apart."""

import os
import stat
import sys
from pathlib import Path

import pytest

# Relays, as ssh does: when it is killed, what it ran sees the end of its input.
SSH = """
import os, subprocess, sys, threading
at, command = sys.argv[sys.argv.index("--") + 1 :]
if at != "root@server":
    print("ssh: no such host: " + at, file=sys.stderr)
    os._exit(255)
far = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
def there():
    while data := os.read(0, 65536):
        far.stdin.write(data)
        far.stdin.flush()
    far.stdin.close()
threading.Thread(target=there, daemon=True).start()
while data := os.read(far.stdout.fileno(), 65536):
    os.write(1, data)
os._exit(far.wait())
"""
# Node N is this host, too, while N is in the file `nodes`.
MINTCTL = """
here = os.path.dirname(os.path.abspath(__file__))
words = sys.argv[1:]
if words[:2] == ["node", "list"]:
    print(open(here + "/nodes.json").read())
elif words[:3] == ["node", "exec", "--stdin"]:
    os.execvp(words[5], words[5:])
elif "--dry-run" in words:
    refused = here + "/refused"
    sys.exit(open(refused).read() if os.path.exists(refused) and words[2] == "two" else 0)
else:
    with open(here + "/asked", "a") as file:
        print(*words, file=file)
    print("{}")
"""
AT = "root@server"


def program(path: Path, text: str) -> None:
    """A Python program on the path."""
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of its programs."""
    folder = tmp_path / "far"
    folder.mkdir()
    program(folder / "ssh", SSH)
    program(folder / "mintctl", f"import os, sys\n{MINTCTL}")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder
