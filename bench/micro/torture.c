// SPDX-License-Identifier: Apache-2.0
/*
 * Memory whose pages go and come by a pager of somebody else (mint-keeper), as a guest's do: it
 * maps a file of a tmpfs, and threads write versions to its pages and compare what they find.
 *
 *   torture file=PATH pages=N threads=N reads=N disk=PATH seed=N
 *
 *   file=            in the folder that the keeper looks for guests' memory in; made, and gone when
 *                    this ends
 *   pages=1024       of memory
 *   threads=2        each has pages of its own: it compares what it finds there, a page's number and
 *                    its version in every 512th byte, and mostly writes the next version
 *   reads=1          threads that read a file past the page cache into pages of their own, as disks
 *                    of guests do, and compare those
 *   disk=            the file, made anew: on a file system that can read past the page cache
 *   seed=1           of places
 *
 * Says "torture mapped pid=N bytes=N" when the memory is mapped. Ends at SIGTERM with "torture
 * done" and KEY=VALUE words: writes= looks= reads= what was done, wrong= what had another content
 * than was last written there. The first is told.
 * Exit: 0 done and nothing was wrong, 1 failed, 2 usage.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PROGRAM	"torture"
#define USAGE	"torture file=PATH pages=N threads=N reads=N disk=PATH seed=N"
#include "words.h"

#define PAGE	4096ul
#define STEP	512ul		/* bytes between two words of a page */
#define THREADS	16
#define DISK_PAGES 64ul

static struct {
	uint64_t pages, threads, reads, seed;
	const char *file, *disk;
} ask = { .pages = 1024, .threads = 2, .reads = 1, .seed = 1 };

static const struct number numbers[] = {
	{ "pages", &ask.pages, 64, 1 << 24 }, { "threads", &ask.threads, 1, THREADS }, { "reads", &ask.reads, 0, THREADS },
	{ "seed", &ask.seed, 1, UINT32_MAX }, { }
};

static const struct text texts[] = { { "file", &ask.file }, { "disk", &ask.disk }, { } };

/* Who has pages from first on, so many */
struct worker {
	uint64_t first, count, seed;
	uint32_t *versions;
	uint64_t writes, looks, reads;
	bool is_reader;
	pthread_t thread;
};

static unsigned char *memory;
static struct worker workers[2 * THREADS];
static atomic_bool over;
static atomic_ulong wrong;

static uint64_t next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static uint64_t word(uint64_t page, uint32_t version)
{
	/* a page that was never written is zeros */
	return version ? page << 32 | version : 0;
}

static void compare(uint64_t page, uint32_t version)
{
	for (size_t at = 0; at < PAGE; at += STEP) {
		uint64_t found = *(volatile uint64_t *)(memory + page * PAGE + at);

		if (found == word(page, version))
			continue;
		if (!atomic_fetch_add(&wrong, 1))
			printf("torture wrong page=%" PRIu64 " byte=%zu found=%#" PRIx64 " wanted=%#" PRIx64 "\n", page, at,
			       found, word(page, version));
		return;
	}
}

static void *write_and_look(void *argument)
{
	struct worker *me = argument;

	while (!atomic_load(&over)) {
		uint64_t number = next(&me->seed), index = number % me->count, page = me->first + index;

		compare(page, me->versions[index]);
		/* one in four is only looked at */
		if (number >> 32 & 3) {
			me->versions[index]++;
			for (size_t at = 0; at < PAGE; at += STEP)
				*(volatile uint64_t *)(memory + page * PAGE + at) = word(page, me->versions[index]);
			me->writes++;
		} else {
			me->looks++;
		}
	}
	for (uint64_t index = 0; index < me->count; index++)
		compare(me->first + index, me->versions[index]);
	return NULL;
}

/* A page of the file holds its number: what a read brings is known */
static void *read_past_the_page_cache(void *argument)
{
	struct worker *me = argument;
	int fd = open(ask.disk, O_RDONLY | O_DIRECT | O_CLOEXEC);

	if (fd < 0)
		die("%s: %m", ask.disk);
	while (!atomic_load(&over)) {
		uint64_t page = me->first + next(&me->seed) % me->count, from = next(&me->seed) % DISK_PAGES;
		uint64_t *there = (uint64_t *)(memory + page * PAGE);

		if (pread(fd, there, PAGE, from * PAGE) != (ssize_t)PAGE)
			die("read %s: %m", ask.disk);
		for (size_t at = 0; at < PAGE / sizeof(*there); at++) {
			uint64_t found = ((volatile uint64_t *)there)[at];

			if (found == from + 1)
				continue;
			if (!atomic_fetch_add(&wrong, 1))
				printf("torture wrong read page=%" PRIu64 " word=%zu found=%#" PRIx64 " wanted=%" PRIu64 "\n", page,
				       at, found, from + 1);
			break;
		}
		me->reads++;
	}
	close(fd);
	return NULL;
}

static void make_disk(void)
{
	int fd = open(ask.disk, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	uint64_t bytes[PAGE / sizeof(uint64_t)];

	if (fd < 0)
		die("%s: %m", ask.disk);
	for (uint64_t page = 0; page < DISK_PAGES; page++) {
		for (size_t at = 0; at < PAGE / sizeof(*bytes); at++)
			bytes[at] = page + 1;
		if (write(fd, bytes, PAGE) != (ssize_t)PAGE)
			die("%s: %m", ask.disk);
	}
	if (fsync(fd))
		die("%s: %m", ask.disk);
	close(fd);
}

static void end(int unused)
{
	(void)unused;
	atomic_store(&over, true);
}

int main(int count, char **words)
{
	uint64_t all, each, writes = 0, looks = 0, reads = 0;
	struct sigaction term = { .sa_handler = end };
	int fd;

	for (int i = 1; i < count; i++)
		take(words[i], numbers, texts);
	if (!ask.file || (ask.reads && !ask.disk))
		usage("file=, and with reads= disk=, are wanted");
	all = ask.threads + ask.reads;
	each = ask.pages / all;
	if (each < 8)
		usage("pages=%" PRIu64 ": too few for %" PRIu64 " threads", ask.pages, all);
	if (ask.reads)
		make_disk();
	fd = open(ask.file, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, ask.pages * PAGE))
		die("%s: %m", ask.file);
	memory = mmap(NULL, ask.pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		die("%s: %m", ask.file);
	sigaction(SIGTERM, &term, NULL);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("torture mapped pid=%d bytes=%" PRIu64 "\n", getpid(), ask.pages * PAGE);
	for (uint64_t i = 0; i < all; i++) {
		struct worker *me = &workers[i];

		me->first = i * each;
		me->count = each;
		me->seed = ask.seed * 0x9e3779b97f4a7c15 + i + 1;
		me->is_reader = i >= ask.threads;
		me->versions = calloc(each, sizeof(*me->versions));
		if (!me->versions || pthread_create(&me->thread, NULL, me->is_reader ? read_past_the_page_cache : write_and_look, me))
			die("a thread: %m");
	}
	while (!atomic_load(&over))
		poll(NULL, 0, 1000);
	for (uint64_t i = 0; i < all; i++) {
		pthread_join(workers[i].thread, NULL);
		writes += workers[i].writes;
		looks += workers[i].looks;
		reads += workers[i].reads;
	}
	unlink(ask.file);
	if (ask.reads)
		unlink(ask.disk);
	printf("torture done writes=%" PRIu64 " looks=%" PRIu64 " reads=%" PRIu64 " wrong=%lu\n", writes, looks, reads,
	       atomic_load(&wrong));
	return atomic_load(&wrong) ? 1 : 0;
}
