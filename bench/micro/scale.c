// SPDX-License-Identifier: Apache-2.0
/*
 * Calls that make a kernel change what its cores share, by several threads at once, one on
 * each core: static, so that it runs in any image.
 *
 *   unlink   make a file, close it, unlink it
 *   mmap     map `pages` of memory, unmap them, and touch none
 *   fault    touch a page of a new mapping, which has `pages`
 *   connect  connect to a socket of one's own by TCP over loopback, accept, close both ends
 *
 * usage: scale op=unlink|mmap|fault|connect KEY=VALUE...
 *   cpus=0,2          a thread on each (default: on each that it may run on)
 *   calls=1000        of each thread, in each repeat
 *   repeats=3         threads begin each of them together
 *   pages=64
 *   dir=/tmp          where files are made
 *   apart=0           1: each thread's files in a folder of its own
 *   label=0           of the markers, 0 to 15: programs at the same time on the same cores take others
 *   at=now            or "stdin": the first repeat begins when a line comes
 *
 * Markers (rig/marker.h) stand around what each thread does in each repeat, and around
 * nothing else. Prints lines of KEY=VALUE words: one "scale setting", one "scale thread"
 * of each thread in each repeat (ns by the kernel's clock), one "scale done" with how many
 * calls were made altogether.
 * Exit: 0 done, 1 failed, 2 usage.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define PROGRAM	"scale"
#define USAGE	"scale op=unlink|mmap|fault|connect cpus=N,N calls=N repeats=N pages=N dir=PATH apart=0|1 label=N " \
		"at=now|stdin"
#include "words.h"

#define PAGE_BYTES	4096
#define PATH_BYTES	4096

static struct {
	uint64_t calls, repeats, pages, apart, label;
	const char *op, *cpus, *dir, *at;
} ask = { .calls = 1000, .repeats = 3, .pages = 64, .cpus = "", .dir = "/tmp", .at = "now" };

static const struct number numbers[] = {
	{ "calls", &ask.calls, 1, UINT32_MAX }, { "repeats", &ask.repeats, 1, 100000 },
	{ "pages", &ask.pages, 1, 1 << 20 }, { "apart", &ask.apart, 0, 1 },
	{ "label", &ask.label, 0, MARKER_LABELS - 1 }, { 0 },
};
static const struct text texts[] = {
	{ "op", &ask.op }, { "cpus", &ask.cpus }, { "dir", &ask.dir }, { "at", &ask.at }, { 0 },
};

struct repeat {
	uint64_t calls, ns;
};

struct worker {
	pthread_t thread;
	unsigned int cpu, number;
	char folder[PATH_BYTES], file[PATH_BYTES];
	int listener;
	struct sockaddr_in address;
	struct repeat *repeats;
};

static struct worker *workers;
static unsigned int worker_count;
static pthread_barrier_t barrier;
static atomic_uint arrived;

static void prepare_files(struct worker *me)
{
	int length = snprintf(me->folder, PATH_BYTES, "%s/scale-%d-%u", ask.dir, getpid(), me->number);

	if (length >= PATH_BYTES - (int)sizeof("/file"))
		usage("dir=%.40s...: too long", ask.dir);
	if (ask.apart && mkdir(me->folder, 0700))
		die("%s: %s", me->folder, strerror(errno));
	strcat(strcpy(me->file, me->folder), ask.apart ? "/file" : "");
}

static void end_files(struct worker *me)
{
	if (ask.apart && rmdir(me->folder))
		die("%s: %s", me->folder, strerror(errno));
}

static uint64_t do_unlink(struct worker *me)
{
	uint64_t done;

	for (done = 0; done < ask.calls; done++) {
		int fd = open(me->file, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);

		if (fd < 0 || close(fd) || unlink(me->file))
			die("%s: %s", me->file, strerror(errno));
	}
	return done;
}

static char *map(void)
{
	char *found = mmap(NULL, ask.pages * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (found == MAP_FAILED)
		die("mmap of %" PRIu64 " pages: %s", ask.pages, strerror(errno));
	return found;
}

static void unmap(char *mapping)
{
	if (munmap(mapping, ask.pages * PAGE_BYTES))
		die("munmap: %s", strerror(errno));
}

static uint64_t do_mmap(struct worker *me)
{
	uint64_t done;

	(void)me;
	for (done = 0; done < ask.calls; done++)
		unmap(map());
	return done;
}

static uint64_t do_fault(struct worker *me)
{
	uint64_t done = 0;

	(void)me;
	while (done < ask.calls) {
		char *mapping = map();

		for (uint64_t page = 0; page < ask.pages && done < ask.calls; page++, done++)
			*(volatile char *)(mapping + page * PAGE_BYTES) = 1;
		unmap(mapping);
	}
	return done;
}

static void prepare_listener(struct worker *me)
{
	socklen_t length = sizeof(me->address);

	me->address = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	me->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (me->listener < 0 || bind(me->listener, (struct sockaddr *)&me->address, length) || listen(me->listener, 16) ||
	    getsockname(me->listener, (struct sockaddr *)&me->address, &length))
		die("a socket that listens on loopback: %s", strerror(errno));
}

static void end_listener(struct worker *me)
{
	close(me->listener);
}

static uint64_t do_connect(struct worker *me)
{
	/* No TIME_WAIT is left behind: ports would run out. */
	const struct linger at_once = { .l_onoff = 1 };
	uint64_t done;

	for (done = 0; done < ask.calls; done++) {
		int other, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)) ||
		    connect(fd, (struct sockaddr *)&me->address, sizeof(me->address)))
			die("connect: %s", strerror(errno));
		other = accept4(me->listener, NULL, NULL, SOCK_CLOEXEC);
		if (other < 0 || close(fd) || close(other))
			die("accept, close: %s", strerror(errno));
	}
	return done;
}

static void nothing(struct worker *me)
{
	(void)me;
}

static const struct op {
	const char *name;
	void (*prepare)(struct worker *), (*end)(struct worker *);
	uint64_t (*run)(struct worker *);
} ops[] = {
	{ "unlink", prepare_files, end_files, do_unlink }, { "mmap", nothing, nothing, do_mmap },
	{ "fault", nothing, nothing, do_fault }, { "connect", prepare_listener, end_listener, do_connect }, { 0 },
};
static const struct op *op;

/* All threads are here, and none sleeps: waking the others is no part of what is counted. */
static void meet(uint64_t times)
{
	pthread_barrier_wait(&barrier);
	atomic_fetch_add(&arrived, 1);
	while (atomic_load(&arrived) < times * worker_count)
		asm volatile("pause");
}

static void *work(void *data)
{
	struct worker *me = data;

	for (uint64_t i = 0; i < ask.repeats; i++) {
		uint64_t begin_ns, calls, ns;

		meet(i + 1);
		begin_ns = clock_ns(CLOCK_MONOTONIC);
		mark(MARKER_BEGIN(ask.label));
		calls = op->run(me);
		mark(MARKER_END(ask.label));
		ns = clock_ns(CLOCK_MONOTONIC) - begin_ns;
		me->repeats[i] = (struct repeat){ calls, ns };
		if (sched_getcpu() != (int)me->cpu)
			die("thread %u ran on CPU %d, not on %u only", me->number, sched_getcpu(), me->cpu);
	}
	return NULL;
}

static void add_worker(unsigned int cpu)
{
	struct worker *me;

	for (unsigned int i = 0; i < worker_count; i++) {
		if (workers[i].cpu == cpu)
			usage("cpus=%s: %u is there twice", ask.cpus, cpu);
	}
	workers = realloc(workers, (worker_count + 1) * sizeof(*workers));
	if (!workers)
		die("no memory");
	me = &workers[worker_count];
	*me = (struct worker){ .cpu = cpu, .number = worker_count, .listener = -1 };
	worker_count++;
}

static void add_workers(void)
{
	cpu_set_t allowed;
	char *words, *rest;

	if (!*ask.cpus) {
		if (sched_getaffinity(0, sizeof(allowed), &allowed))
			die("cores of this program: %s", strerror(errno));
		for (unsigned int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
			if (CPU_ISSET(cpu, &allowed))
				add_worker(cpu);
		}
		return;
	}
	words = rest = strdup(ask.cpus);
	for (char *word; (word = strsep(&rest, ","));) {
		uint64_t cpu = to_number("cpus", word);

		if (cpu >= CPU_SETSIZE)
			usage("cpus=%s: less than %d", ask.cpus, CPU_SETSIZE);
		add_worker(cpu);
	}
	free(words);
}

static void start(struct worker *me)
{
	pthread_attr_t attributes;
	cpu_set_t set;
	int error;

	CPU_ZERO(&set);
	CPU_SET(me->cpu, &set);
	pthread_attr_init(&attributes);
	pthread_attr_setaffinity_np(&attributes, sizeof(set), &set);
	error = pthread_create(&me->thread, &attributes, work, me);
	if (error)
		die("a thread on CPU %u: %s", me->cpu, strerror(error));
	pthread_attr_destroy(&attributes);
}

static void check_settings(void)
{
	for (op = ops; op->name && ask.op && strcmp(op->name, ask.op); op++)
		;
	if (!ask.op || !op->name)
		usage("op=%s: unlink, mmap, fault or connect", ask.op ? ask.op : "");
	if (strcmp(ask.at, "now") && strcmp(ask.at, "stdin"))
		usage("at=%s: now or stdin", ask.at);
}

static void print_setting(void)
{
	printf("scale setting op=%s threads=%u calls=%" PRIu64 " repeats=%" PRIu64 " pages=%" PRIu64 " apart=%" PRIu64
	       " label=%" PRIu64 " at=%s dir=%s\n",
	       ask.op, worker_count, ask.calls, ask.repeats, ask.pages, ask.apart, ask.label, ask.at, ask.dir);
}

int main(int argc, char **argv)
{
	uint64_t calls = 0;
	char line[64];

	for (int i = 1; i < argc; i++)
		take(argv[i], numbers, texts);
	check_settings();
	add_workers();
	for (unsigned int i = 0; i < worker_count; i++) {
		workers[i].repeats = calloc(ask.repeats, sizeof(*workers[i].repeats));
		if (!workers[i].repeats)
			die("no memory");
		op->prepare(&workers[i]);
	}
	/* Whoever gives the line knows then that it is ready. */
	setvbuf(stdout, NULL, _IOLBF, 0);
	print_setting();
	if (!strcmp(ask.at, "stdin") && !fgets(line, sizeof(line), stdin))
		die("at=stdin: no line came");
	pthread_barrier_init(&barrier, NULL, worker_count);
	for (unsigned int i = 0; i < worker_count; i++)
		start(&workers[i]);
	for (unsigned int i = 0; i < worker_count; i++)
		pthread_join(workers[i].thread, NULL);
	for (uint64_t i = 0; i < ask.repeats; i++) {
		for (unsigned int j = 0; j < worker_count; j++) {
			const struct repeat *repeat = &workers[j].repeats[i];

			calls += repeat->calls;
			printf("scale thread repeat=%" PRIu64 " thread=%u cpu=%u calls=%" PRIu64 " ns=%" PRIu64 "\n",
			       i + 1, j, workers[j].cpu, repeat->calls, repeat->ns);
		}
	}
	for (unsigned int i = 0; i < worker_count; i++)
		op->end(&workers[i]);
	printf("scale done calls=%" PRIu64 "\n", calls);
	return 0;
}
