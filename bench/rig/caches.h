/* SPDX-License-Identifier: Apache-2.0 */
/* Modelled last-level caches, one for each NUMA node: for pmu.c, and for a test without QEMU. */
#include <stdbool.h>
#include <stdint.h>

/* Unit masks of AMD's events 0x43 and 0x44: lines from memory of the CPU's own NUMA node, of another */
#define CACHES_NEAR	0x08
#define CACHES_FAR	0x40

/* An argument of the plugin's. False: it is none of the caches', or makes no sense. */
bool caches_argument(const char *argument);
/* After all of these. NULL, or why there can be no caches; without any argument there are none. */
const char *caches_begin(void);
bool caches_are_there(void);

/* A vCPU reads or writes memory at a physical address; in its own thread. */
void caches_access(unsigned int vcpu, uint64_t address);
/* Lines from memory for a vCPU until now, by a unit mask; in its own thread. */
uint64_t caches_fills(unsigned int vcpu, unsigned int mask);
