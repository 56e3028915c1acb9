// SPDX-License-Identifier: Apache-2.0
/*
 * Last-level caches, as pmu.c models them: which lines come from memory, and from whose.
 *
 *	caches=BYTES			of each NUMA node's cache; a power of two
 *	node=CPUS:START-END[:...]	a NUMA node, the first one 0: its vCPUs (0-2), and where its memory
 *					is in physical addresses, the last byte included
 *
 * Each cache has 16 ways; the line that came first leaves. A vCPU has a small one of its own before that,
 * which spares the shared one most accesses. No cache knows of another's lines, nobody prefetches, and
 * what vCPUs of a cache do at the same moment may be lost: they take no lock.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "caches.h"

#define VCPUS		64
#define NUMAS		8
#define RANGES		4
#define LINE		64
#define WAYS		16
#define OWN_LINES	512	/* 32 KiB, of one way */

struct range {
	uint64_t start, last;
};

static struct numa {
	struct range ranges[RANGES];
	int count;
	_Atomic uint64_t *lines;	/* WAYS of each set; of one: its number and 1, so that 0 is none */
	_Atomic unsigned char *next;	/* of each set: the way that came first */
} numas[NUMAS];

static struct vcpu {
	unsigned int home;	/* its NUMA node and 1, so that 0 is none */
	uint64_t own[OWN_LINES];
	uint64_t near, far;
} vcpus[VCPUS];

static unsigned int numa_count;
static uint64_t bytes, sets;

static bool number(const char **at, uint64_t *value)
{
	char *end;

	if (**at < '0' || **at > '9')
		return false;
	*value = strtoull(*at, &end, 0);
	*at = end;
	return true;
}

/* Two numbers, the second one not before the first. */
static bool range(const char **at, uint64_t *start, uint64_t *last)
{
	if (!number(at, start) || *(*at)++ != '-' || !number(at, last))
		return false;
	return *start <= *last;
}

static bool node(const char *at)
{
	struct numa *me = &numas[numa_count];
	uint64_t first, last;

	if (numa_count == NUMAS || !range(&at, &first, &last) || last >= VCPUS)
		return false;
	while (*at) {
		struct range *one = &me->ranges[me->count];

		if (me->count == RANGES || *at++ != ':' || !range(&at, &one->start, &one->last))
			return false;
		me->count++;
	}
	numa_count++;
	for (; first <= last; first++) {
		if (vcpus[first].home)
			return false;
		vcpus[first].home = numa_count;
	}
	return me->count;
}

bool caches_argument(const char *argument)
{
	static const char size[] = "caches=", of_node[] = "node=";

	if (!strncmp(argument, of_node, sizeof(of_node) - 1))
		return node(argument + sizeof(of_node) - 1);
	if (strncmp(argument, size, sizeof(size) - 1))
		return false;
	argument += sizeof(size) - 1;
	return number(&argument, &bytes) && !*argument;
}

bool caches_are_there(void)
{
	return sets;
}

const char *caches_begin(void)
{
	if (!bytes && !numa_count)
		return NULL;
	if (!bytes || !numa_count)
		return "caches want their bytes and the NUMA nodes";
	if (bytes % (LINE * WAYS) || (bytes & (bytes - 1)))
		return "caches are a power of two of bytes, 1024 at least";
	for (unsigned int i = 0; i < numa_count; i++) {
		numas[i].lines = calloc(bytes / LINE, sizeof(*numas[i].lines));
		numas[i].next = calloc(bytes / LINE / WAYS, sizeof(*numas[i].next));
		if (!numas[i].lines || !numas[i].next)
			return "no memory for the caches";
	}
	sets = bytes / LINE / WAYS;
	return NULL;
}

/* The NUMA node of memory, and 1; 0: of none. */
static unsigned int home_of(uint64_t address)
{
	for (unsigned int i = 0; i < numa_count; i++)
		for (int j = 0; j < numas[i].count; j++)
			if (address >= numas[i].ranges[j].start && address <= numas[i].ranges[j].last)
				return i + 1;
	return 0;
}

/* Whether a line was there; it is from now on. */
static bool look(struct numa *cache, uint64_t line)
{
	uint64_t set = line & (sets - 1);
	_Atomic uint64_t *ways = &cache->lines[set * WAYS];
	unsigned int way;

	for (way = 0; way < WAYS; way++)
		if (atomic_load_explicit(&ways[way], memory_order_relaxed) == line + 1)
			return true;
	way = atomic_load_explicit(&cache->next[set], memory_order_relaxed) % WAYS;
	atomic_store_explicit(&ways[way], line + 1, memory_order_relaxed);
	atomic_store_explicit(&cache->next[set], (way + 1) % WAYS, memory_order_relaxed);
	return false;
}

void caches_access(unsigned int vcpu, uint64_t address)
{
	uint64_t line = address / LINE;
	struct vcpu *me = &vcpus[vcpu];
	uint64_t *own = &me->own[line % OWN_LINES];
	unsigned int from;

	if (*own == line + 1)
		return;
	*own = line + 1;
	if (!me->home || look(&numas[me->home - 1], line))
		return;
	from = home_of(address);
	if (from == me->home)
		me->near++;
	else if (from)
		me->far++;
}

uint64_t caches_fills(unsigned int vcpu, unsigned int mask)
{
	return (mask & CACHES_NEAR ? vcpus[vcpu].near : 0) + (mask & CACHES_FAR ? vcpus[vcpu].far : 0);
}
