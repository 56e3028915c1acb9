# SPDX-License-Identifier: Apache-2.0
"""A group is measured machine by machine: one that fails keeps no other from being measured."""

import traceback
from collections.abc import Callable

from report.recorder import Recorder


def measured(recorder: Recorder, group: str, run: Callable[[], object], say: Callable[[str], None], lost=()) -> bool:
    """Calls run, which does what recorder.to_do() names, again as long as machines fail. Gives whether none did.
    lost: errors after which no other machine can be measured; they are raised."""
    good = True
    while True:
        failed = recorder.failures
        try:
            run()
        except lost:
            raise
        except Exception:  # whatever it is: hours of other machines are not to be lost for it
            good = False
            traceback.print_exc()
            if recorder.failures > failed:
                say(f"a machine of group {group} failed; it is measured when this is called again")
                continue
            say(f"group {group} failed, and goes on when it is called again")
        return good
