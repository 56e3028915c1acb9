// SPDX-License-Identifier: Apache-2.0
/*
 * A victim: does one small thing again and again, and tells how long each time took.
 * Static, so that it runs on hosts, on nodes and in guests. What disturbs it is aggressor.c.
 *
 *   wake   sleeps until a time; the latency is how late it is awake
 *   read   reads `bytes` at a random place of a file or block device
 *   echo   sends a datagram, waits for its answer
 *   answer gives these answers, for ever
 *
 * usage: victim KEY=VALUE...
 *   wake= read= echo=   how many rounds, of one of the three
 *   answer=1            instead: answer on `port`
 *   skip=50             rounds before, which are not told
 *   period_us=1000      from one wake to the next; one that is missed is left out
 *   file=PATH           what is read: at least `bytes` long
 *   bytes=4096
 *   direct=1            O_DIRECT: past the page cache; 0: through it
 *   seed=1              of the places
 *   to=ADDRESS          who answers: an IPv4 address
 *   port=5998
 *   wait_ms=1000        without an answer for so long it is asked again; all of that is latency
 *   label=0             of the markers (rig/marker.h) around each round, 0 to 15
 *
 * Prints lines of KEY=VALUE words: one "victim setting", "victim histogram" lines whose words
 * are LOWEST_NS=ROUNDS of a bucket, "victim done" with sums. A bucket's width is the power of
 * two that leaves its lowest value seven bits, 1/64 of it or less; below 128 ns it is 1 ns.
 * "victim answers" is printed once it does.
 * Pin it (taskset): moved= says how many rounds ended on another CPU than the first one's.
 * Exit: 0 done, 1 failed, 2 usage.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define PROGRAM	"victim"
#define USAGE	"victim wake=N|read=N|echo=N|answer=1 skip=N period_us=N file=PATH bytes=N direct=0|1 seed=N to=ADDRESS " \
		"port=N wait_ms=N label=N"
#include "words.h"

#define BUFFER_ALIGN	4096
#define DATAGRAM_BYTES	64
#define TRIES		60
#define WORDS_A_LINE	32

static struct {
	uint64_t wake, read, echo, answer, skip, period_us, bytes, direct, seed, port, wait_ms, label;
	const char *file, *to;
} ask = {
	.skip = 50, .period_us = 1000, .bytes = 4096, .direct = 1, .seed = 1, .port = 5998, .wait_ms = 1000,
};

static const struct number numbers[] = {
	{ "wake", &ask.wake, 1, UINT32_MAX }, { "read", &ask.read, 1, UINT32_MAX },
	{ "echo", &ask.echo, 1, UINT32_MAX }, { "answer", &ask.answer, 0, 1 },
	{ "skip", &ask.skip, 0, UINT32_MAX }, { "period_us", &ask.period_us, 1, 1000000000 },
	{ "bytes", &ask.bytes, 1, 1 << 30 }, { "direct", &ask.direct, 0, 1 }, { "seed", &ask.seed, 1, UINT64_MAX },
	{ "port", &ask.port, 1, 65535 }, { "wait_ms", &ask.wait_ms, 1, 60000 },
	{ "label", &ask.label, 0, MARKER_LABELS - 1 }, { NULL },
};
static const struct text texts[] = { { "file", &ask.file }, { "to", &ask.to }, { NULL } };

/* By bucket; 64 of them for each power of two above 128. */
static uint64_t histogram[64 * 64];
static uint64_t random_state, places, next_wake_ns, asked, again;
static int fd = -1;
static char *buffer;

static unsigned int bucket_of(uint64_t ns)
{
	unsigned int shift = ns < 128 ? 0 : 57 - __builtin_clzll(ns);

	return 64 * shift + (ns >> shift);
}

static uint64_t lowest_of(unsigned int bucket)
{
	return bucket < 128 ? bucket : (uint64_t)(bucket % 64 + 64) << (bucket / 64 - 1);
}

/* Gives how late it is. */
static uint64_t do_wake(void)
{
	uint64_t late_ns, time_ns = next_wake_ns;
	struct timespec time = { .tv_sec = time_ns / 1000000000, .tv_nsec = time_ns % 1000000000 };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR)
		;
	late_ns = clock_ns(CLOCK_MONOTONIC) - time_ns;
	next_wake_ns += (late_ns / (ask.period_us * 1000) + 1) * ask.period_us * 1000;
	return late_ns;
}

static uint64_t do_read(void)
{
	off_t place = random_of(&random_state) % places * ask.bytes;
	uint64_t begin = clock_ns(CLOCK_MONOTONIC);
	ssize_t got = pread(fd, buffer, ask.bytes, place);

	if (got != (ssize_t)ask.bytes)
		die("read of %" PRIu64 " bytes at %jd: %s", ask.bytes, (intmax_t)place,
		    got < 0 ? strerror(errno) : "less came");
	return clock_ns(CLOCK_MONOTONIC) - begin;
}

/* Answers come in any order, and twice if it was asked twice: each has its number. */
static uint64_t do_echo(void)
{
	uint64_t datagram[DATAGRAM_BYTES / sizeof(uint64_t)] = { ++asked }, begin = clock_ns(CLOCK_MONOTONIC);

	for (int i = 0; i < TRIES; i++) {
		uint64_t answer[DATAGRAM_BYTES / sizeof(uint64_t)];
		ssize_t got;

		again += i > 0;
		if (send(fd, datagram, sizeof(datagram), 0) < 0 && errno != ECONNREFUSED)
			die("%s: %s", ask.to, strerror(errno));
		do {
			got = recv(fd, answer, sizeof(answer), 0);
			if (got == sizeof(answer) && answer[0] == asked)
				return clock_ns(CLOCK_MONOTONIC) - begin;
		} while (got >= 0);
		if (errno == ECONNREFUSED)
			die("%s: nobody answers on port %" PRIu64, ask.to, ask.port);
		if (errno != EAGAIN && errno != EINTR)
			die("%s: %s", ask.to, strerror(errno));
	}
	die("%s: no answer, %d times", ask.to, TRIES);
}

static void __attribute__((noreturn)) answer(void)
{
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = htons(ask.port) };

	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0 || bind(fd, (void *)&here, sizeof(here)))
		die("port %" PRIu64 ": %s", ask.port, strerror(errno));
	printf("victim answers port=%" PRIu64 "\n", ask.port);
	for (;;) {
		char datagram[DATAGRAM_BYTES];
		struct sockaddr_in from;
		socklen_t length = sizeof(from);
		ssize_t got = recvfrom(fd, datagram, sizeof(datagram), 0, (void *)&from, &length);

		/* Who asks may be gone, or its network not there for a while: it asks again. */
		if (got < 0 || sendto(fd, datagram, got, 0, (void *)&from, length) < 0)
			continue;
	}
}

static void open_file(void)
{
	off_t bytes;

	fd = open(ask.file, O_RDONLY | (ask.direct ? O_DIRECT : 0));
	if (fd < 0)
		die("%s: %s%s", ask.file, strerror(errno),
		    errno == EINVAL && ask.direct ? ": its file system has no O_DIRECT: direct=0" : "");
	bytes = lseek(fd, 0, SEEK_END);
	if (bytes < 0 || (uint64_t)bytes < ask.bytes)
		die("%s: has %jd bytes, less than one read", ask.file, (intmax_t)bytes);
	places = bytes / ask.bytes;
	random_state = ask.seed;
	if (posix_memalign((void **)&buffer, BUFFER_ALIGN, ask.bytes))
		die("no memory");
	memset(buffer, 1, ask.bytes);
}

static void open_socket(void)
{
	struct sockaddr_in there = { .sin_family = AF_INET, .sin_port = htons(ask.port) };
	struct timeval wait = { .tv_sec = ask.wait_ms / 1000, .tv_usec = ask.wait_ms % 1000 * 1000 };

	inet_aton(ask.to, &there.sin_addr);
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)) || connect(fd, (void *)&there, sizeof(there)))
		die("%s: %s", ask.to, strerror(errno));
}

static void print_histogram(void)
{
	unsigned int words = 0;

	for (unsigned int i = 0; i < sizeof(histogram) / sizeof(*histogram); i++) {
		if (!histogram[i])
			continue;
		if (words++ % WORDS_A_LINE == 0)
			printf("%svictim histogram", words > 1 ? "\n" : "");
		printf(" %" PRIu64 "=%" PRIu64, lowest_of(i), histogram[i]);
	}
	puts("");
}

static void check_settings(void)
{
	struct in_addr address;

	if (!!ask.wake + !!ask.read + !!ask.echo + !!ask.answer != 1)
		usage("one of wake, read, echo and answer is wanted");
	if (ask.read && !ask.file)
		usage("read wants file=PATH");
	if (ask.read && ask.direct && ask.bytes % 512)
		usage("bytes=%" PRIu64 " is no multiple of 512, as direct=1 wants it", ask.bytes);
	if (ask.echo && (!ask.to || !inet_aton(ask.to, &address)))
		usage("echo wants to=ADDRESS, like 10.77.0.10");
}

int main(int argc, char **argv)
{
	uint64_t rounds, sum_ns = 0, least_ns = UINT64_MAX, most_ns = 0, moved = 0, begin_ns;
	uint64_t (*do_it)(void);
	int cpu;

	for (int i = 1; i < argc; i++)
		take(argv[i], numbers, texts);
	check_settings();
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (ask.answer)
		answer();
	rounds = ask.wake + ask.read + ask.echo;
	do_it = ask.wake ? do_wake : ask.read ? do_read : do_echo;
	if (ask.read)
		open_file();
	if (ask.echo)
		open_socket();
	printf("victim setting kind=%s rounds=%" PRIu64 " skip=%" PRIu64 " period_us=%" PRIu64 " bytes=%" PRIu64 " direct=%" PRIu64
	       " seed=%" PRIu64 " port=%" PRIu64 " label=%" PRIu64 " to=%s file=%s\n",
	       ask.wake ? "wake" : ask.read ? "read" : "echo", rounds, ask.skip, ask.period_us, ask.bytes, ask.direct,
	       ask.seed, ask.port, ask.label, ask.to ? ask.to : "", ask.file ? ask.file : "");
	/* Timers of an ordinary program may be late by this: not what is looked for. */
	prctl(PR_SET_TIMERSLACK, 1);
	next_wake_ns = clock_ns(CLOCK_MONOTONIC) + ask.period_us * 1000;
	for (uint64_t i = 0; i < ask.skip; i++)
		do_it();
	again = 0;
	cpu = sched_getcpu();
	begin_ns = clock_ns(CLOCK_MONOTONIC);
	for (uint64_t i = 0; i < rounds; i++) {
		uint64_t ns;

		mark(MARKER_BEGIN(ask.label));
		ns = do_it();
		mark(MARKER_END(ask.label));
		moved += sched_getcpu() != cpu;
		histogram[bucket_of(ns)]++;
		sum_ns += ns;
		least_ns = ns < least_ns ? ns : least_ns;
		most_ns = ns > most_ns ? ns : most_ns;
	}
	begin_ns = clock_ns(CLOCK_MONOTONIC) - begin_ns;
	print_histogram();
	printf("victim done rounds=%" PRIu64 " sum_ns=%" PRIu64 " least_ns=%" PRIu64 " most_ns=%" PRIu64 " took_ns=%" PRIu64
	       " again=%" PRIu64 " moved=%" PRIu64 " cpu=%d\n",
	       rounds, sum_ns, least_ns, most_ns, begin_ns, again, moved, cpu);
	return 0;
}
