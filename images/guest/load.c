// SPDX-License-Identifier: Apache-2.0
/*
 * What a guest does all the time to see whether it is whole, for init.guest.
 *
 *   load memory KIB FILE     versions of that much memory, for ever: each word is
 *                            compared with what the last version wrote before the
 *                            next one writes it; FILE: how many were compared
 *   load echo ADDRESS FILE [PORT]
 *                            numbers to the echo service of that IPv4 address, over
 *                            one connection for ever, each reply compared; FILE: how
 *                            many replies, and the longest time that one took, in
 *                            hundredths of seconds
 *   load disk RATE FILE [DEVICE]
 *                            blocks of /dev/vda or that one, as many a second, at
 *                            random places of its first MiB, each read back and
 *                            compared after a few more; FILE: how many were written
 *
 * A process for each, which sleeps in between: a shell's loop would start some for
 * every turn, and fio wakes up 100 times a second whatever its rate is; an emulated
 * guest has no time for either.
 * Exit: 1 with a line on stdout when something is not as it should be, 2 usage.
 */

#define _GNU_SOURCE /* for O_DIRECT */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ECHO_PORT "7"
#define VERSION_PAUSE_US 500000
#define ECHO_PAUSE_US 100000
#define KIB_MAX (1u << 20)
#define DISK "/dev/vda"
#define BLOCK 4096
#define BLOCK_WORDS (BLOCK / sizeof(uint64_t))
#define BLOCKS 256
#define BACKLOG 8 /* blocks that are written before they are read back */
#define RATE_MAX 10000

static void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *format, ...)
{
	va_list words;

	va_start(words, format);
	vprintf(format, words);
	va_end(words);
	putchar('\n');
	fflush(stdout);
	_exit(1);
}

static void pause_us(uint64_t us)
{
	struct timespec left = { us / 1000000, us % 1000000 * 1000 };

	while (nanosleep(&left, &left) && errno == EINTR)
		;
}

static uint64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Always as many bytes, at the same place: whoever reads the file finds it whole. */
static void tell(int file, unsigned long long first, unsigned long long second)
{
	char line[48];
	int bytes = snprintf(line, sizeof(line), "%-20llu %-20llu\n", first, second);

	if (pwrite(file, line, bytes, 0) != bytes)
		fail("its count cannot be written: %s", strerror(errno));
}

/* Words differ within a version, and from those of every other one. */
static uint64_t word(uint64_t version, size_t at)
{
	return (version << 32 | at) * 0x9e3779b97f4a7c15ull;
}

static void memory(const char *kib_text, int file)
{
	char *end;
	unsigned long kib = strtoul(kib_text, &end, 10);

	if (*end || !kib || kib > KIB_MAX)
		fail("%s is no number of KiB", kib_text);

	size_t count = kib * 1024 / sizeof(uint64_t);
	volatile uint64_t *words = mmap(NULL, kib * 1024, PROT_READ | PROT_WRITE,
					MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (words == MAP_FAILED)
		fail("there are no %lu KiB: %s", kib, strerror(errno));
	for (uint64_t version = 1;; version++) {
		for (size_t at = 0; at < count; at++) {
			uint64_t found = words[at], due = version == 1 ? 0 : word(version - 1, at);

			if (found != due)
				fail("word %zu of version %llu is %016llx, not %016llx", at,
				     (unsigned long long)version - 1, (unsigned long long)found,
				     (unsigned long long)due);
			words[at] = word(version, at);
		}
		tell(file, version - 1, 0);
		pause_us(VERSION_PAUSE_US);
	}
}

static void compare(int disk, uint64_t *words, unsigned int block, uint32_t version)
{
	ssize_t bytes = pread(disk, words, BLOCK, (off_t)block * BLOCK);

	if (bytes != BLOCK)
		fail("block %u cannot be read: %s", block, bytes < 0 ? strerror(errno) : "it is short");
	for (size_t at = 0; at < BLOCK_WORDS; at++) {
		uint64_t due = word(version, block * BLOCK_WORDS + at);

		if (words[at] != due)
			fail("word %zu of block %u of version %u is %016llx, not %016llx", at, block,
			     version, (unsigned long long)words[at], (unsigned long long)due);
	}
}

static void disk(const char *rate_text, const char *device, int file)
{
	char *end;
	unsigned long rate = strtoul(rate_text, &end, 10);

	if (*end || !rate || rate > RATE_MAX)
		fail("%s is no number of blocks a second", rate_text);

	/* Past the caches, where the file system can do that. */
	int at = open(device, O_RDWR | O_DIRECT);

	if (at < 0 && errno == EINVAL)
		at = open(device, O_RDWR);
	if (at < 0)
		fail("%s: %s", device, strerror(errno));
	if (lseek(at, 0, SEEK_END) < BLOCKS * BLOCK)
		fail("%s is shorter than %u bytes", device, BLOCKS * BLOCK);

	static uint64_t words[BLOCK_WORDS] __attribute__((aligned(BLOCK)));
	uint32_t versions[BLOCKS] = { 0 };
	unsigned int last[BACKLOG];
	uint64_t next_us = now_us();

	for (unsigned long long number = 0;; number++) {
		unsigned int block = random() % BLOCKS;
		uint32_t version = ++versions[block];

		for (size_t i = 0; i < BLOCK_WORDS; i++)
			words[i] = word(version, block * BLOCK_WORDS + i);
		if (pwrite(at, words, BLOCK, (off_t)block * BLOCK) != BLOCK)
			fail("block %u cannot be written: %s", block, strerror(errno));
		last[number % BACKLOG] = block;
		for (unsigned int i = 0; number % BACKLOG == BACKLOG - 1 && i < BACKLOG; i++)
			compare(at, words, last[i], versions[last[i]]);
		tell(file, number + 1, 0);

		/* What was missed while it stood still is not made up for. */
		uint64_t now = now_us();

		next_us += 1000000 / rate;
		if (next_us > now)
			pause_us(next_us - now);
		else
			next_us = now;
	}
}

static void echo(const char *address, const char *port, int file)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	int at = socket(AF_INET, SOCK_STREAM, 0);
	uint64_t longest_cs = 0;

	if (inet_pton(AF_INET, address, &to.sin_addr) != 1)
		fail("%s is no IPv4 address", address);
	if (at < 0 || connect(at, (struct sockaddr *)&to, sizeof(to)))
		fail("no connection to %s: %s", address, strerror(errno));
	for (unsigned long long number = 1;; number++) {
		char sent[24], reply[24];
		int bytes = snprintf(sent, sizeof(sent), "%llu\n", number), got = 0;
		uint64_t began_us = now_us();

		if (send(at, sent, bytes, MSG_NOSIGNAL) != bytes)
			fail("%llu was not sent: %s", number, strerror(errno));
		while (got < bytes) {
			ssize_t more = recv(at, reply + got, bytes - got, 0);

			if (more <= 0)
				fail("no reply to %llu: %s", number, more ? strerror(errno) : "closed");
			got += more;
		}
		if (memcmp(sent, reply, bytes))
			fail("%llu was sent, %.*s came", number, bytes - 1, reply);

		uint64_t took_cs = (now_us() - began_us) / 10000;

		if (took_cs > longest_cs)
			longest_cs = took_cs;
		tell(file, number, longest_cs);
		pause_us(ECHO_PAUSE_US);
	}
}

int main(int argc, char **argv)
{
	if (argc == 4 || argc == 5) {
		int file = open(argv[3], O_CREAT | O_WRONLY, 0644);

		if (file < 0)
			fail("%s: %s", argv[3], strerror(errno));
		if (!strcmp(argv[1], "memory") && argc == 4)
			memory(argv[2], file);
		if (!strcmp(argv[1], "disk"))
			disk(argv[2], argc == 5 ? argv[4] : DISK, file);
		if (!strcmp(argv[1], "echo"))
			echo(argv[2], argc == 5 ? argv[4] : ECHO_PORT, file);
	}
	fputs("usage: load memory KIB FILE | load echo ADDRESS FILE [PORT] | load disk RATE FILE [DEVICE]\n",
	      stderr);
	return 2;
}
