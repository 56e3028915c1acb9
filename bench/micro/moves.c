// SPDX-License-Identifier: Apache-2.0
/*
 * The kernel's parts of a move, one by one: the calls of docs/kernel-abi.md that mintd
 * makes, made by hand on the node that gives and takes. Static, so that it runs in any image.
 *
 * usage: moves memory SELF STOPPED BLOCK...           free blocks come to node SELF and go again;
 *                                                     STOPPED is a node that does not run
 *        moves core SELF CORE ROUNDS                  a core of its own goes and comes
 *
 * Prints "PART MICROSECONDS" for each part of each: add, online, offline, remove (with
 * zero), zero; release, claim. Exit: 0 done, 1 failed, 2 usage.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { KIND_CPU, KIND_MEM };
enum { NO_ONLINE = 2 };

/* struct mint_move of <linux/mint.h> */
struct move {
	uint32_t size, kind, id, node, flags, timeout_ms, owner, reason;
};

#define CLAIM	_IOWR(0xbc, 8, struct move)
#define RELEASE	_IOWR(0xbc, 9, struct move)

static int mint;
static struct timespec begin;

static void start(void)
{
	clock_gettime(CLOCK_MONOTONIC, &begin);
}

static void took(const char *part)
{
	struct timespec end;

	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("%s %lld\n", part,
	       ((long long)(end.tv_sec - begin.tv_sec) * 1000000000 + end.tv_nsec - begin.tv_nsec) / 1000);
}

static void move(unsigned long call, uint32_t kind, uint32_t id, uint32_t node, uint32_t flags)
{
	struct move m = { .size = sizeof(m), .kind = kind, .id = id, .node = node, .flags = flags };

	if (ioctl(mint, call, &m)) {
		fprintf(stderr, "%s %s %u of node %u: %s, owner %u, reason %u\n", call == CLAIM ? "claim" : "release",
			kind == KIND_CPU ? "core" : "block", id, node, strerror(errno), m.owner, m.reason);
		exit(1);
	}
}

static void tell(const char *path, const char *word)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0 || write(fd, word, strlen(word)) < 0) {
		fprintf(stderr, "%s to %s: %s\n", word, path, strerror(errno));
		exit(1);
	}
	close(fd);
}

static void set_block(uint32_t id, const char *state)
{
	char path[64];

	snprintf(path, sizeof(path), "/sys/devices/system/memory/memory%u/state", id);
	tell(path, state);
}

static void memory(uint32_t self, uint32_t stopped, char **ids, int count)
{
	for (int i = 0; i < count; i++) {
		uint32_t id = strtoul(ids[i], NULL, 10);

		start();
		move(CLAIM, KIND_MEM, id, self, NO_ONLINE);
		took("add");
		start();
		set_block(id, "online_movable");
		took("online");
	}
	for (int i = 0; i < count; i++) {
		uint32_t id = strtoul(ids[i], NULL, 10);

		start();
		set_block(id, "offline");
		took("offline");
		start();
		move(RELEASE, KIND_MEM, id, self, 0);
		took("remove");
		/* Nothing is offlined or removed when a stopped node's block is released: what is left is the zeroing. */
		move(CLAIM, KIND_MEM, id, stopped, 0);
		start();
		move(RELEASE, KIND_MEM, id, stopped, 0);
		took("zero");
	}
}

static void core(uint32_t self, uint32_t id, int rounds)
{
	long online = sysconf(_SC_NPROCESSORS_ONLN);

	while (rounds--) {
		start();
		move(RELEASE, KIND_CPU, id, self, 0);
		took("release");
		start();
		move(CLAIM, KIND_CPU, id, self, 0);
		took("claim");
	}
	if (sysconf(_SC_NPROCESSORS_ONLN) != online) {
		fprintf(stderr, "core %u is not online\n", id);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	mint = open("/dev/mint", O_RDWR);
	if (mint < 0)
		return perror("/dev/mint"), 1;
	if (argc > 4 && !strcmp(argv[1], "memory"))
		memory(atoi(argv[2]), atoi(argv[3]), argv + 4, argc - 4);
	else if (argc == 5 && !strcmp(argv[1], "core"))
		core(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
	else
		return fprintf(stderr, "usage: moves memory|core ...\n"), 2;
	return 0;
}
