# SPDX-License-Identifier: Apache-2.0
"""Reports of a kernel are found in its console's text."""

from rig.reports import BEGIN, STOCK_AT_END, reports_in

END = "[   61.0] reboot: Restarting system"
OFFLINE = f"[   61.1] {STOCK_AT_END}1!"
WARNING = "[   61.1] WARNING: CPU: 2 PID: 0 at native_smp_send_reschedule+0x24/0x30"
BUG = "[   61.2] BUG: KASAN: use-after-free in mint_end"


def test_report_is_found():
    assert reports_in(f"[    0.0] {BEGIN}6.12\n{BUG}\nmint-init: ready\n") == [BUG]


def test_waking_a_stopped_core_is_let_pass_at_a_kernels_end_only():
    assert reports_in(f"{END}\n{OFFLINE}\n{WARNING}\n") == []
    assert reports_in(f"{OFFLINE}\n{WARNING}\n") == [WARNING]
    assert reports_in(f"{END}\n[    0.0] {BEGIN}6.12\n{OFFLINE}\n{WARNING}\n") == [WARNING]


def test_word_about_the_cpu_is_no_report():
    assert reports_in("[    0.5] Speculative Return Stack Overflow: WARNING: See https://kernel.org/doc/\n") == []


def test_other_reports_at_a_kernels_end_are_found():
    assert reports_in(f"{END}\n{WARNING}\n") == [WARNING]
    assert reports_in(f"{END}\n{OFFLINE}\n{WARNING}\n{BUG}\n") == [BUG]


FREEZE = """[  272.4] WARNING: possible circular locking dependency detected
[  272.4] 6.12.117-mint-lockdep #1 Not tainted
[  272.4] ------------------------------------------------------
[  272.4] busybox/709 is trying to acquire lock:
[  272.4] ffffffffa5c50be8 (cpu_add_remove_lock){+.+.}-{4:4}, at: cpu_hotplug_disable+0xe/0x30
[  272.4]
[  272.4] but task is already holding lock:
[  272.4] ffff88b3c0d889c8 (&q->q_usage_counter(io)){++++}-{0:0}, at: nvme_start_freeze+0x72/0xb0
"""


def test_frozen_queues_at_a_kernels_end_are_let_pass():
    assert reports_in(FREEZE) == []
    other = FREEZE.replace("nvme_start_freeze", "mint_move")
    assert reports_in(other) == [other.splitlines()[0]]
    assert reports_in(FREEZE + BUG) == [BUG]
