// SPDX-License-Identifier: Apache-2.0
/*
 * On which NUMA node each page of a process's file is, and what says so: what a
 * layout's plan is compared with.
 *
 * usage: numa where PID FILE                    pages of the mapping of FILE
 *        numa bind PID FILE OFFSET BYTES NUMA   pages that come there from now on, as long
 *                                               as that node has free ones
 *        numa move PID FILE OFFSET BYTES NUMA   pages that are there
 *        numa touch PID FILE OFFSET BYTES       writes a byte of each page anew
 * FILE is a part of its name in /proc/PID/maps; of several mappings the largest
 * counts. Offsets are the file's.
 * "where" prints a line "OFFSET BYTES NUMA" for each run of pages that are alike;
 * NUMA is -1 for those that the process has not mapped. Exit: 1 failed, 2 usage.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE	4096UL
/* Of one call */
#define PAGES	512UL
#define NODES	1024UL

struct mapping {
	unsigned long start, end, offset;
};

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static unsigned long number(const char *text)
{
	return strtoul(text, NULL, 0);
}

static struct mapping find(const char *pid, const char *file)
{
	struct mapping best = { 0 }, one;
	char path[64], line[8192];
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%s/maps", pid);
	maps = fopen(path, "r");
	if (!maps)
		fail(path);
	while (fgets(line, sizeof(line), maps))
		if (strstr(line, file) &&
		    sscanf(line, "%lx-%lx %*s %lx", &one.start, &one.end, &one.offset) == 3 &&
		    one.end - one.start > best.end - best.start)
			best = one;
	fclose(maps);
	if (!best.end) {
		fprintf(stderr, "process %s maps no %s\n", pid, file);
		exit(1);
	}
	return best;
}

/* Gives each page's node, or an error below 0; with "to" it goes there first. */
static void pages(const char *pid, unsigned long address, unsigned long count, const int *to, int *status)
{
	void *all[PAGES];

	for (unsigned long i = 0; i < count; i++)
		all[i] = (void *)(address + i * PAGE);
	if (syscall(SYS_move_pages, atoi(pid), count, all, to, status, to ? MPOL_MF_MOVE_ALL : 0) < 0)
		fail("move_pages");
}

static int where(const char *pid, struct mapping map)
{
	unsigned long run = map.start;
	int status[PAGES], last = 0;

	for (unsigned long at = map.start; at < map.end; at += PAGES * PAGE) {
		unsigned long count = (map.end - at) / PAGE;

		if (count > PAGES)
			count = PAGES;
		pages(pid, at, count, NULL, status);
		for (unsigned long i = 0; i < count; i++) {
			int numa = status[i] < 0 ? -1 : status[i];
			unsigned long here = at + i * PAGE;

			if (here > map.start && numa != last) {
				printf("%lu %lu %d\n", run - map.start + map.offset, here - run, last);
				run = here;
			}
			last = numa;
		}
	}
	printf("%lu %lu %d\n", run - map.start + map.offset, map.end - run, last);
	return 0;
}

static int relocate(const char *pid, unsigned long start, unsigned long bytes, int numa)
{
	int to[PAGES], status[PAGES];
	unsigned long failed = 0;

	for (unsigned long i = 0; i < PAGES; i++)
		to[i] = numa;
	for (unsigned long at = start; at < start + bytes; at += PAGES * PAGE) {
		unsigned long count = (start + bytes - at) / PAGE;

		if (count > PAGES)
			count = PAGES;
		pages(pid, at, count, to, status);
		for (unsigned long i = 0; i < count; i++)
			/* what is not mapped is nowhere */
			failed += status[i] != numa && status[i] != -2;
	}
	printf("%lu pages stayed\n", failed);
	return failed ? 1 : 0;
}

static void *map_file(const char *pid, struct mapping map, unsigned long start, unsigned long bytes)
{
	char path[128];
	void *memory;
	int fd;

	snprintf(path, sizeof(path), "/proc/%s/map_files/%lx-%lx", pid, map.start, map.end);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		fail(path);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, start - map.start + map.offset);
	if (memory == MAP_FAILED)
		fail("mmap");
	return memory;
}

int main(int argc, char **argv)
{
	unsigned long mask[NODES / 64] = { 0 };
	unsigned long start, bytes, numa;
	struct mapping map;

	if (argc == 4 && !strcmp(argv[1], "where"))
		return where(argv[2], find(argv[2], argv[3]));
	if (argc != 7 && !(argc == 6 && !strcmp(argv[1], "touch"))) {
		fprintf(stderr, "usage: numa where|bind|move|touch PID FILE [OFFSET BYTES [NUMA]]\n");
		return 2;
	}
	map = find(argv[2], argv[3]);
	start = map.start + number(argv[4]) - map.offset;
	bytes = number(argv[5]);
	if (start < map.start || start + bytes > map.end || bytes % PAGE || start % PAGE) {
		fprintf(stderr, "%s has no such range\n", argv[3]);
		return 2;
	}
	if (!strcmp(argv[1], "touch")) {
		volatile uint8_t *memory = map_file(argv[2], map, start, bytes);

		for (unsigned long at = 0; at < bytes; at += PAGE)
			memory[at] = memory[at];
		return 0;
	}
	numa = number(argv[6]);
	if (numa >= NODES)
		return 2;
	if (!strcmp(argv[1], "move"))
		return relocate(argv[2], start, bytes, numa);
	mask[numa / 64] = 1UL << (numa % 64);
	if (syscall(SYS_mbind, map_file(argv[2], map, start, bytes), bytes, MPOL_PREFERRED, mask, NODES, 0))
		fail("mbind");
	return 0;
}
