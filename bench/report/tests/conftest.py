# SPDX-License-Identifier: Apache-2.0
"""What tests of several files ask for."""

import pytest

from played import play


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine is booted."""
    play(monkeypatch)
