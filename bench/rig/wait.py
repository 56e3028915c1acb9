# SPDX-License-Identifier: Apache-2.0
"""Waiting for conditions. Limits are generous, because a vCPU can stall for
seconds on a busy host; waiting ends as soon as the condition holds."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

from rig.errors import RigError

T = TypeVar("T")

# Kernels with lockdep and KASAN are that much slower. All limits of waiting
# are stretched; what a test asserts about times is not.
SLOWNESS = 5 if os.environ.get("MINT_RIG_FLAVOUR") in ("lockdep", "kasan") else 1


def wait_until(
    what: str, condition: Callable[[], T], limit_s: float = 60, every_s: float = 0.1
) -> T:
    """Call condition until it is true, and return what it returned.

    what names the condition in the error; raises RigError after limit_s.
    """
    end = time.monotonic() + limit_s * SLOWNESS
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            raise RigError(f"not within {limit_s:g} s: {what} (last seen: {value!r})")
        time.sleep(every_s)
