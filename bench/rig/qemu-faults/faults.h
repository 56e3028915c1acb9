/* SPDX-License-Identifier: Apache-2.0 */
/* What start.S and faults.c both know. */
#define MAX_CPUS	8
#define TRAMPOLINE	0x8000
#define APIC_EOI	0xfee000b0
#define GUEST_SPINS	2000
/* The host finds its own page here; the guest's tables lead to the one 2 MiB further. */
#define LOOK_AT		0x400000
