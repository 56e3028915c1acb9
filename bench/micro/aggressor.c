// SPDX-License-Identifier: Apache-2.0
/*
 * An aggressor: does one thing as often as it can, for others (victim.c) to be disturbed by.
 * Static, so that it runs on hosts, on nodes and in guests.
 *
 * usage: aggressor MODE KEY=VALUE...
 *   cpu       integer work in registers; counts millions of steps
 *   memory    copies half of `bytes` to the other half; counts MiB
 *   disk      reads `bytes` at random places of file= past the page cache; counts reads
 *   fork      starts processes that end at once; counts them
 *   reclaim   reads file=, which is larger than memory, through the page cache, so that the
 *             kernel has to find pages all the time; counts pages that it took back. They hold
 *             what is on the disk, too: no program is in danger
 *   unlink    makes and removes files in one folder, dir=; counts them
 *   tlb       takes rights from pages, and pages away, in one address space for all threads,
 *             so that CPUs have to tell each other; counts calls
 *   toggle    writes 0 and 1 to file= by turns: a switch of the kernel, which is left as it
 *             was. The kernel patches its text for some, and stops or starts a core for
 *             others; counts writes
 *
 *   threads=  of which each does that (default: 1; fork, unlink, tlb: 2; disk: 4)
 *   seconds=0 how long; 0: until SIGTERM or SIGINT
 *   bytes=    default: memory 32 MiB, disk 64 KiB
 *   direct=1  disk: O_DIRECT; 0: without
 *
 * Prints lines of KEY=VALUE words: "aggressor setting", "aggressor begun" once it has done
 * something, "aggressor done" with the count. To have done nothing is an error.
 * It runs where its CPUs are (taskset). Exit: 0 done, 1 failed, 2 usage.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROGRAM	"aggressor"
#define USAGE	"aggressor cpu|memory|disk|fork|reclaim|unlink|tlb|toggle threads=N seconds=N file=PATH dir=PATH bytes=N direct=0|1"
#include "words.h"

#define THREADS_MOST	64
#define BEGIN_S		120
#define LOOK_NS		5000000
#define PAGE		4096
#define FORK_BYTES	(4 << 20)
#define RECLAIM_BYTES	(1 << 20)
#define TLB_PAGES	32
#define TLB_ROUNDS	16

static struct {
	uint64_t threads, seconds, bytes, direct;
	const char *file, *dir;
} ask = { .direct = 1 };

static const struct number numbers[] = {
	{ "threads", &ask.threads, 1, THREADS_MOST }, { "seconds", &ask.seconds, 0, UINT32_MAX },
	{ "bytes", &ask.bytes, PAGE, 1 << 30 }, { "direct", &ask.direct, 0, 1 }, { NULL },
};
static const struct text texts[] = { { "file", &ask.file }, { "dir", &ask.dir }, { NULL } };

/* Alone on its cache line: counting is not to be what disturbs. */
static struct worker {
	pthread_t thread;
	unsigned int number;
	_Atomic uint64_t count;
	char rest[48];
} __attribute__((aligned(64))) workers[THREADS_MOST];

static atomic_bool stop;
static uint64_t file_bytes;

static bool goes_on(struct worker *worker, uint64_t more)
{
	atomic_fetch_add_explicit(&worker->count, more, memory_order_relaxed);
	return !atomic_load_explicit(&stop, memory_order_relaxed);
}

static void *pages(uint64_t bytes)
{
	void *found = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (found == MAP_FAILED)
		die("%" PRIu64 " bytes of memory: %s", bytes, strerror(errno));
	return found;
}

static int open_file(int flags)
{
	int fd = open(ask.file, O_RDONLY | flags);

	if (fd < 0)
		die("%s: %s%s", ask.file, strerror(errno),
		    errno == EINVAL && flags ? ": its file system has no O_DIRECT: direct=0" : "");
	return fd;
}

static void cpu(struct worker *worker)
{
	uint64_t state = worker->number + 1;

	do {
		for (int i = 0; i < 1000000; i++)
			random_of(&state);
		asm volatile("" : : "r"(state));
	} while (goes_on(worker, 1));
}

static void memory(struct worker *worker)
{
	uint64_t half = ask.bytes / 2, copied = 0;
	char *all = pages(ask.bytes);

	memset(all, 1, ask.bytes);
	for (;;) {
		uint64_t before = copied >> 20;

		memcpy(all + half, all, half);
		asm volatile("" : : "r"(all) : "memory");
		copied += half;
		if (!goes_on(worker, (copied >> 20) - before))
			break;
	}
}

static void disk(struct worker *worker)
{
	uint64_t state = worker->number + 1;
	char *buffer = pages(ask.bytes);
	int fd = open_file(ask.direct ? O_DIRECT : 0);

	do {
		off_t place = random_of(&state) % (file_bytes / ask.bytes) * ask.bytes;

		if (pread(fd, buffer, ask.bytes, place) != (ssize_t)ask.bytes)
			die("%s: read of %" PRIu64 " bytes at %jd: %s", ask.file, ask.bytes, (intmax_t)place, strerror(errno));
	} while (goes_on(worker, 1));
	close(fd);
}

static void fork_storm(struct worker *worker)
{
	char *mine = pages(FORK_BYTES);

	memset(mine, 1, FORK_BYTES);
	do {
		pid_t child = fork();
		int status;

		if (child == 0) {
			mine[0] = 2;
			_exit(0);
		}
		if (child < 0)
			die("fork: %s", strerror(errno));
		if (waitpid(child, &status, 0) != child || status)
			die("a child ended with %d", status);
	} while (goes_on(worker, 1));
}

static uint64_t pages_taken_back(void)
{
	FILE *file = fopen("/proc/vmstat", "r");
	uint64_t sum = 0, value;
	char name[64];

	while (file && fscanf(file, "%63s %" SCNu64, name, &value) == 2)
		if (!strcmp(name, "pgsteal_kswapd") || !strcmp(name, "pgsteal_direct"))
			sum += value;
	if (file)
		fclose(file);
	return sum;
}

static void reclaim(struct worker *worker)
{
	uint64_t before = pages_taken_back(), place = file_bytes / ask.threads * worker->number / PAGE * PAGE;
	char *buffer = pages(RECLAIM_BYTES);
	int fd = open_file(0);

	for (uint64_t done = 1;; done++) {
		ssize_t got = pread(fd, buffer, RECLAIM_BYTES, place);
		uint64_t more = 0;

		if (got < 0)
			die("%s: %s", ask.file, strerror(errno));
		place = got == RECLAIM_BYTES ? place + got : 0;
		/* The kernel's count is of all: one thread tells it. */
		if (worker->number == 0 && done % 16 == 0) {
			more = pages_taken_back() - before;
			before += more;
		}
		if (!goes_on(worker, more))
			break;
	}
	close(fd);
}

static void unlink_files(struct worker *worker)
{
	char path[4096];
	int length = snprintf(path, sizeof(path), "%s/aggressor.%d.%u", ask.dir, getpid(), worker->number);

	if (length >= (int)sizeof(path))
		die("%s: too long", ask.dir);
	do {
		int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);

		if (fd < 0 || close(fd) || unlink(path))
			die("%s: %s", path, strerror(errno));
	} while (goes_on(worker, 1));
}

static void tlb(struct worker *worker)
{
	uint64_t calls;

	do {
		char *mine = pages(TLB_PAGES * PAGE);

		for (calls = 0; calls < 2 * TLB_ROUNDS; calls += 2) {
			for (int i = 0; i < TLB_PAGES; i++)
				mine[i * PAGE] = 1;
			if (mprotect(mine, TLB_PAGES * PAGE, PROT_READ) || mprotect(mine, TLB_PAGES * PAGE, PROT_READ | PROT_WRITE))
				die("mprotect: %s", strerror(errno));
		}
		if (munmap(mine, TLB_PAGES * PAGE))
			die("munmap: %s", strerror(errno));
	} while (goes_on(worker, calls + 1));
}

static void toggle(struct worker *worker)
{
	int fd = open(ask.file, O_RDWR);
	char was, value;

	if (fd < 0 || pread(fd, &was, 1, 0) != 1)
		die("%s: %s", ask.file, fd < 0 ? strerror(errno) : "cannot be read");
	if (was != '0' && was != '1')
		die("%s: has '%c', neither 0 nor 1", ask.file, was);
	value = was;
	do {
		value = value == '0' ? '1' : '0';
		if (pwrite(fd, &value, 1, 0) != 1)
			die("%s: %c cannot be written: %s", ask.file, value, strerror(errno));
	} while (goes_on(worker, 1) || value != was);
	close(fd);
}

static const struct mode {
	const char *name, *unit;
	void (*work)(struct worker *worker);
	uint64_t threads, bytes;
	bool file, dir;
} modes[] = {
	{ .name = "cpu", .unit = "million_steps", .work = cpu, .threads = 1 },
	{ .name = "memory", .unit = "mib", .work = memory, .threads = 1, .bytes = 32 << 20 },
	{ .name = "disk", .unit = "reads", .work = disk, .threads = 4, .bytes = 65536, .file = true },
	{ .name = "fork", .unit = "processes", .work = fork_storm, .threads = 2 },
	{ .name = "reclaim", .unit = "pages", .work = reclaim, .threads = 1, .file = true },
	{ .name = "unlink", .unit = "files", .work = unlink_files, .threads = 2, .dir = true },
	{ .name = "tlb", .unit = "calls", .work = tlb, .threads = 2 },
	{ .name = "toggle", .unit = "writes", .work = toggle, .threads = 1, .file = true },
	{ .name = NULL },
}, *mode;

static void *run(void *argument)
{
	mode->work(argument);
	return NULL;
}

static uint64_t count(void)
{
	uint64_t sum = 0;

	for (unsigned int i = 0; i < ask.threads; i++)
		sum += atomic_load_explicit(&workers[i].count, memory_order_relaxed);
	return sum;
}

static void check_file(void)
{
	struct sysinfo info;
	off_t bytes = lseek(open_file(0), 0, SEEK_END);

	if (bytes < 0 || (uint64_t)bytes < ask.bytes)
		die("%s: has %jd bytes, less than one read", ask.file, (intmax_t)bytes);
	file_bytes = bytes;
	sysinfo(&info);
	if (mode->work == reclaim && file_bytes <= (uint64_t)info.totalram * info.mem_unit)
		die("%s: has %" PRIu64 " bytes, less than memory: nothing would be taken back", ask.file, file_bytes);
}

static void take_all(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";

	for (mode = modes; mode->name && strcmp(mode->name, name); mode++)
		;
	if (!mode->name)
		usage("%s: no such mode", *name ? name : "nothing");
	for (int i = 2; i < argc; i++)
		take(argv[i], numbers, texts);
	ask.threads = ask.threads ? ask.threads : mode->threads;
	ask.bytes = ask.bytes ? ask.bytes : mode->bytes;
	if (mode->file && !ask.file)
		usage("%s wants file=PATH", mode->name);
	if (mode->dir && !ask.dir)
		usage("%s wants dir=PATH", mode->name);
	if (mode->work == toggle && ask.threads != 1)
		usage("toggle is for one thread");
	if (ask.bytes % 512)
		usage("bytes=%" PRIu64 " is no multiple of 512", ask.bytes);
}

int main(int argc, char **argv)
{
	const struct timespec look = { .tv_nsec = LOOK_NS }, second = { .tv_sec = 1 };
	uint64_t begin_ns, done;
	sigset_t end;

	take_all(argc, argv);
	setvbuf(stdout, NULL, _IOLBF, 0);
	/* Switches have no end to look for. */
	if (mode->file && mode->work != toggle)
		check_file();
	printf("aggressor setting mode=%s threads=%" PRIu64 " seconds=%" PRIu64 " bytes=%" PRIu64 " direct=%" PRIu64 " unit=%s"
	       " dir=%s file=%s\n", mode->name, ask.threads, ask.seconds, ask.bytes, ask.direct, mode->unit,
	       ask.dir ? ask.dir : "", ask.file ? ask.file : "");
	/* Before there are threads: theirs are the same. */
	sigemptyset(&end);
	sigaddset(&end, SIGTERM);
	sigaddset(&end, SIGINT);
	sigprocmask(SIG_BLOCK, &end, NULL);
	begin_ns = clock_ns(CLOCK_MONOTONIC);
	for (unsigned int i = 0; i < ask.threads; i++) {
		workers[i].number = i;
		if (pthread_create(&workers[i].thread, NULL, run, &workers[i]))
			die("thread %u: %s", i, strerror(errno));
	}
	while (!count()) {
		if (sigtimedwait(&end, NULL, &look) > 0 || clock_ns(CLOCK_MONOTONIC) - begin_ns > BEGIN_S * 1000000000ull)
			die("%s: nothing was done", mode->name);
	}
	puts("aggressor begun");
	while (sigtimedwait(&end, NULL, &second) < 0)
		if (ask.seconds && clock_ns(CLOCK_MONOTONIC) - begin_ns >= ask.seconds * 1000000000ull)
			break;
	atomic_store(&stop, true);
	for (unsigned int i = 0; i < ask.threads; i++)
		pthread_join(workers[i].thread, NULL);
	done = count();
	printf("aggressor done count=%" PRIu64 " took_ns=%" PRIu64 "\n", done, clock_ns(CLOCK_MONOTONIC) - begin_ns);
	return 0;
}
