// SPDX-License-Identifier: Apache-2.0
/*
 * The evaluation program of the Mint paper (section 4.4), for hosts, nodes and guests:
 * static, so that it runs in any image. Each repeat does, in this order,
 *
 *   io        lseek to a random place of a file or block device, read `bytes`
 *   register  increment a register (a loop of three instructions)
 *   copy      copy `bytes` of memory
 *
 * as often as is asked for, and is timed by TSC. Markers (rig/marker.h) stand around it.
 *
 * usage: eval KEY=VALUE...
 *   io= register= copy=   how often, in each repeat (default: 0)
 *   bytes=262144          of one read, and of one copy
 *   repeats=10
 *   file=PATH             what io reads: at least `bytes` long
 *   align=4096            places are multiples of this; so is bytes if direct=1
 *   direct=1              O_DIRECT: past the page cache of this kernel; 0: through it
 *   copy_by=memcpy        or "loop": 16 bytes a turn, the same instructions on any CPU
 *   seed=1                of the places
 *   label=0               of the markers, 0 to 15: programs at the same time take others
 *   at=now                when the first repeat begins, so that several begin together:
 *                         "tsc:N" (of a guest, its own), "realtime:NS" (since 1970),
 *                         "stdin" (when a line comes)
 *
 * Prints lines of KEY=VALUE words: one "eval setting", one "eval repeat" each, "eval done".
 * Pin it (taskset): moved=1 says that a repeat ended on another CPU than it began on.
 * Exit: 0 done, 1 failed, 2 usage.
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <emmintrin.h>
#include <fcntl.h>
#include <stdbool.h>
#include <unistd.h>

#define PROGRAM	"eval"
#define USAGE	"eval io=N register=N copy=N bytes=N repeats=N file=PATH align=N direct=0|1 " \
		"copy_by=memcpy|loop seed=N label=N at=now|stdin|tsc:N|realtime:NS"
#include "words.h"

#define BUFFER_ALIGN	4096
#define RATE_NS		200000000
#define SPIN_NS		2000000

static struct {
	uint64_t io, registers, copy, bytes, repeats, align, direct, seed, label;
	const char *file, *copy_by, *at;
} ask = {
	.bytes = 262144, .repeats = 10, .align = 4096, .direct = 1, .seed = 1, .copy_by = "memcpy", .at = "now",
};

static const struct number numbers[] = {
	{ "io", &ask.io, 0, UINT64_MAX }, { "register", &ask.registers, 0, UINT64_MAX },
	{ "copy", &ask.copy, 0, UINT64_MAX }, { "bytes", &ask.bytes, 16, 1ull << 30 },
	{ "repeats", &ask.repeats, 1, UINT32_MAX }, { "align", &ask.align, 1, 1ull << 30 },
	{ "direct", &ask.direct, 0, 1 }, { "seed", &ask.seed, 1, UINT64_MAX },
	{ "label", &ask.label, 0, MARKER_LABELS - 1 }, { 0 },
};
static const struct text texts[] = { { "file", &ask.file }, { "copy_by", &ask.copy_by }, { "at", &ask.at }, { 0 } };

struct moment {
	uint64_t tsc;
	uint32_t cpu;
};

static int fd = -1;
static uint64_t places, random_state;
static char *from, *to;

/* After all instructions before it, and before all behind it. */
static inline struct moment now(void)
{
	uint32_t low, high, aux;

	asm volatile("lfence; rdtscp; lfence" : "=a"(low), "=d"(high), "=c"(aux) : : "memory");
	/* As Linux sets it: the CPU, and its NUMA node above. */
	return (struct moment){ (uint64_t)high << 32 | low, aux & 0xfff };
}

/* Both clocks at nearly the same moment: the closest of several looks. */
static uint64_t look_ns(uint64_t *tsc)
{
	uint64_t best = UINT64_MAX, ns = 0;

	for (int i = 0; i < 20; i++) {
		uint64_t before = now().tsc, then = clock_ns(CLOCK_MONOTONIC), after = now().tsc;

		if (after - before < best) {
			best = after - before;
			ns = then;
			*tsc = before + best / 2;
		}
	}
	return ns;
}

static uint64_t measured_tsc_hz(void)
{
	uint64_t first, last, first_ns = look_ns(&first), last_ns;
	struct timespec pause = { .tv_nsec = RATE_NS };

	nanosleep(&pause, NULL);
	last_ns = look_ns(&last);
	return (uint64_t)((last - first) * 1e9 / (last_ns - first_ns));
}

/* What the CPU says of it; 0: nothing */
static uint64_t told_tsc_hz(void)
{
	uint32_t below, above, crystal_hz, unused;

	if (!__get_cpuid(0x15, &below, &above, &crystal_hz, &unused) || !below)
		return 0;
	return (uint64_t)crystal_hz * above / below;
}

static void check_rdtscp(void)
{
	uint32_t a, b, c, d = 0;

	if (!__get_cpuid(0x80000001, &a, &b, &c, &d) || !(d & 1u << 27))
		die("this CPU has no RDTSCP");
}

static uint64_t next_random(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

static uint64_t open_file(void)
{
	off_t bytes;

	fd = open(ask.file, O_RDONLY | (ask.direct ? O_DIRECT : 0));
	if (fd < 0)
		die("%s: %s%s", ask.file, strerror(errno),
		    errno == EINVAL && ask.direct ? ": its file system has no O_DIRECT: direct=0" : "");
	bytes = lseek(fd, 0, SEEK_END);
	if (bytes < 0)
		die("%s: %s", ask.file, strerror(errno));
	if ((uint64_t)bytes < ask.bytes)
		die("%s: has %jd bytes, less than one read", ask.file, (intmax_t)bytes);
	places = (bytes - ask.bytes) / ask.align + 1;
	return bytes;
}

/* Gives a hash of the places, by which two runs are seen to have read the same. */
static uint64_t do_io(void)
{
	uint64_t hash = 14695981039346656037u;

	for (uint64_t i = 0; i < ask.io; i++) {
		off_t place = next_random() % places * ask.align;
		ssize_t got;

		if (lseek(fd, place, SEEK_SET) != place)
			die("lseek: %s", strerror(errno));
		got = read(fd, from, ask.bytes);
		if (got != (ssize_t)ask.bytes)
			die("read of %" PRIu64 " bytes at %jd: %s", ask.bytes, (intmax_t)place,
			    got < 0 ? strerror(errno) : "less came");
		hash = (hash ^ place) * 1099511628211u;
	}
	return hash;
}

static void do_register(void)
{
	uint64_t left = ask.registers, value = 0;

	if (left)
		asm volatile("1: inc %0; dec %1; jnz 1b" : "+r"(value), "+r"(left) : : "cc");
	if (value != ask.registers)
		die("%" PRIu64 " increments gave %" PRIu64, ask.registers, value);
}

static void do_copy(void)
{
	bool loop = *ask.copy_by == 'l';

	for (uint64_t i = 0; i < ask.copy; i++) {
		if (!loop)
			memcpy(to, from, ask.bytes);
		for (uint64_t at = 0; loop && at < ask.bytes; at += 16)
			_mm_store_si128((__m128i *)(to + at), _mm_load_si128((const __m128i *)(from + at)));
		/* Somebody may look: no copy is left out, or made of two. */
		asm volatile("" : : "r"(to), "r"(from) : "memory");
	}
}

/* Sleeps until shortly before, then spins: it is there when the time comes. */
static void wait_until(uint64_t (*clock)(void), uint64_t time, uint64_t spin)
{
	const struct timespec moment = { .tv_nsec = SPIN_NS / 2 };

	if (clock() >= time)
		die("at=%s: that is over", ask.at);
	while (clock() + spin < time)
		nanosleep(&moment, NULL);
	while (clock() < time)
		asm volatile("pause");
}

static uint64_t tsc_clock(void)
{
	return now().tsc;
}

static uint64_t realtime_clock(void)
{
	return clock_ns(CLOCK_REALTIME);
}

static void wait_start(uint64_t tsc_hz)
{
	char line[64];

	if (!strncmp(ask.at, "tsc:", 4))
		wait_until(tsc_clock, to_number("at=tsc", ask.at + 4), tsc_hz / 1000 * SPIN_NS / 1000000);
	else if (!strncmp(ask.at, "realtime:", 9))
		wait_until(realtime_clock, to_number("at=realtime", ask.at + 9), SPIN_NS);
	else if (!strcmp(ask.at, "stdin") && !fgets(line, sizeof(line), stdin))
		die("at=stdin: no line came");
}

static void check_settings(void)
{
	if (!ask.io && !ask.registers && !ask.copy)
		usage("nothing to do: io, register and copy are 0");
	if (ask.io && !ask.file)
		usage("io wants file=PATH");
	if (ask.io && ask.direct && ask.bytes % ask.align)
		usage("bytes=%" PRIu64 " is no multiple of align=%" PRIu64 ", as direct=1 wants it", ask.bytes, ask.align);
	if (strcmp(ask.copy_by, "memcpy") && strcmp(ask.copy_by, "loop"))
		usage("copy_by=%s: memcpy or loop", ask.copy_by);
	if (!strcmp(ask.copy_by, "loop") && ask.bytes % 16)
		usage("bytes=%" PRIu64 " is no multiple of 16, as copy_by=loop wants it", ask.bytes);
	if (!strncmp(ask.at, "tsc:", 4))
		to_number("at=tsc", ask.at + 4);
	else if (!strncmp(ask.at, "realtime:", 9))
		to_number("at=realtime", ask.at + 9);
	else if (strcmp(ask.at, "now") && strcmp(ask.at, "stdin"))
		usage("at=%s: now, stdin, tsc:N or realtime:NS", ask.at);
}

int main(int argc, char **argv)
{
	uint64_t file_bytes = 0, tsc_hz;

	for (int i = 1; i < argc; i++)
		take(argv[i], numbers, texts);
	check_settings();
	check_rdtscp();
	/* Each line is one write, and is out before the next repeat. */
	setvbuf(stdout, NULL, _IOLBF, 0);
	random_state = ask.seed;
	if (ask.io)
		file_bytes = open_file();
	if (posix_memalign((void **)&from, BUFFER_ALIGN, ask.bytes) || posix_memalign((void **)&to, BUFFER_ALIGN, ask.bytes))
		die("no memory");
	memset(from, 1, ask.bytes);
	memset(to, 2, ask.bytes);
	tsc_hz = measured_tsc_hz();
	printf("eval setting io=%" PRIu64 " register=%" PRIu64 " copy=%" PRIu64 " bytes=%" PRIu64 " repeats=%" PRIu64
	       " align=%" PRIu64 " direct=%" PRIu64 " copy_by=%s seed=%" PRIu64 " label=%" PRIu64 " at=%s tsc_hz=%" PRIu64
	       " tsc_hz_cpuid=%" PRIu64 " file_bytes=%" PRIu64 " file=%s\n",
	       ask.io, ask.registers, ask.copy, ask.bytes, ask.repeats, ask.align, ask.direct, ask.copy_by, ask.seed,
	       ask.label, ask.at, tsc_hz, told_tsc_hz(), file_bytes, ask.file ? ask.file : "");
	wait_start(tsc_hz);
	for (uint64_t i = 0; i < ask.repeats; i++) {
		uint64_t begin_ns = clock_ns(CLOCK_REALTIME), hash;
		struct moment begin, end;

		mark(MARKER_BEGIN(ask.label));
		begin = now();
		hash = do_io();
		do_register();
		do_copy();
		end = now();
		mark(MARKER_END(ask.label));
		printf("eval repeat number=%" PRIu64 " ns=%.0f ticks=%" PRIu64 " begin_tsc=%" PRIu64 " begin_realtime_ns=%" PRIu64
		       " cpu=%u moved=%d places=%016" PRIx64 "\n",
		       i + 1, (end.tsc - begin.tsc) * 1e9 / tsc_hz, end.tsc - begin.tsc, begin.tsc, begin_ns, begin.cpu,
		       begin.cpu != end.cpu, hash);
	}
	puts("eval done");
	return 0;
}
