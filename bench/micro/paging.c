// SPDX-License-Identifier: Apache-2.0
/*
 * What a pager of guests' memory stands on: pages of a tmpfs file are taken out while threads,
 * vCPUs and disks write to them, and come back when they are touched. Is a write ever lost?
 *
 * Out: splice of the page into a pipe, a hole punched in its place, the pipe read. In: a fault
 * that userfaultfd tells, UFFDIO_COPY. A vCPU has no kernel, just a loop that compares and
 * counts up; its memory is the same mapping, a KVM memory slot.
 *
 * usage: paging KEY=VALUE...
 *   seconds=10     how long
 *   pages=256      of each writer: a power of two
 *   resident=64    pages of all that may stay; the rest is taken out
 *   threads=1      writers that are threads
 *   vcpus=0        writers that are vCPUs (/dev/kvm)
 *   reads=0        writers that read a file's blocks into their pages, past the page cache
 *   file=PATH      of them; it is made
 *   pause_us=0     between two pages that are taken out
 *   stall_s=60     a writer that does nothing for so long hangs: all tasks' stacks go to the kernel's log
 *   take=0         1: they go by /dev/mint-memory, which leaves those that something else refers to
 *   seed=1
 *
 * Prints "paging done" with KEY=VALUE words: outs= ins= zeros= pages that went and came; stayed=
 * those that did not go; writes= vcpu_writes= reads= what was done; lost= what had another content
 * than was last written there, of threads and vCPUs; reads_lost= of reads, which are not safe
 * without take=1.
 * Exit: 0 done, whatever was lost; 1 failed, also a writer that hangs; 2 usage.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/kvm.h>
#include <linux/mint_memory.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PROGRAM	"paging"
#define USAGE	"paging seconds=N pages=N resident=N threads=N vcpus=N reads=N file=PATH pause_us=N stall_s=N take=0|1 seed=N"
#include "vcpu-loop.h"
#include "words.h"

#define PAGE		4096ul
#define WORDS		(PAGE / sizeof(uint64_t))
#define WRITERS_MOST	8
#define EVENTS		16
#define TAG_SHIFT	16	/* a page's number is in what it holds */

/* Where things are for vCPUs. */
#define GUEST_CODE	0x1000ul
#define GUEST_WORDS	0x2000ul	/* one struct told for each vCPU */
#define GUEST_EXPECTED	0x10000ul	/* 32 bits for each page */
#define GUEST_LOW_BYTES	0x100000ul
#define GUEST_RAM	0x10000000ul

static struct {
	uint64_t seconds, pages, resident, threads, vcpus, reads, pause_us, stall_s, take, seed;
	const char *file;
} ask = {
	.seconds = 10, .pages = 256, .resident = 64, .threads = 1, .stall_s = 60, .seed = 1,
};

static const struct number numbers[] = {
	{ "seconds", &ask.seconds, 1, UINT32_MAX }, { "pages", &ask.pages, 1, 1024 },
	{ "resident", &ask.resident, 1, UINT32_MAX }, { "threads", &ask.threads, 0, WRITERS_MOST },
	{ "vcpus", &ask.vcpus, 0, WRITERS_MOST }, { "reads", &ask.reads, 0, WRITERS_MOST },
	{ "pause_us", &ask.pause_us, 0, UINT32_MAX }, { "stall_s", &ask.stall_s, 1, UINT32_MAX },
	{ "take", &ask.take, 0, 1 }, { "seed", &ask.seed, 1, UINT32_MAX }, { }
};

static const struct text texts[] = { { "file", &ask.file }, { } };

enum kind { THREAD, VCPU, READ };

struct writer {
	enum kind kind;
	uint64_t first;			/* of its pages */
	_Atomic uint64_t rounds;
	uint64_t lost, seed;
	int kvm_run_fd;
	struct kvm_run *run;
	pthread_t thread;
};

static struct writer writers[3 * WRITERS_MOST];
static unsigned int writer_count;
static uint64_t page_count;

static int ram_fd, store_fd, device, uffd, pipes[2];
static unsigned char *ram, *store, *low;
static atomic_bool over, served;	/* nobody writes or is taken out any more; nobody touches anything any more */

/* Held while a page goes or comes: which of them are here, and which in the store. */
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;
static bool *is_here, *is_stored;
static uint64_t here_count, outs, ins, zeros, stayed;

static uint64_t tag(uint64_t page)
{
	return (page + 1) << TAG_SHIFT;
}

/* --- pages come */

static void come(uint64_t page)
{
	unsigned long address = (unsigned long)(ram + page * PAGE);
	int failed;

	pthread_mutex_lock(&order);
	if (is_here[page]) {
		/* it came for another one who waited for it */
		struct uffdio_range range = { .start = address, .len = PAGE };

		failed = ioctl(uffd, UFFDIO_WAKE, &range);
	} else if (is_stored[page]) {
		struct uffdio_copy copy = {
			.dst = address, .src = (unsigned long)(store + page * PAGE), .len = PAGE,
		};

		failed = ioctl(uffd, UFFDIO_COPY, &copy) ||
			 fallocate(store_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, page * PAGE, PAGE);
		ins++;
	} else {
		struct uffdio_zeropage zero = { .range = { .start = address, .len = PAGE } };

		failed = ioctl(uffd, UFFDIO_ZEROPAGE, &zero);
		zeros++;
	}
	if (failed)
		die("page %" PRIu64 " does not come: %m", page);
	if (!is_here[page]) {
		is_here[page] = true;
		is_stored[page] = false;
		here_count++;
	}
	pthread_mutex_unlock(&order);
}

static void *serve_faults(void *unused)
{
	struct pollfd ready = { .fd = uffd, .events = POLLIN };
	struct uffd_msg events[EVENTS];

	while (!atomic_load(&served)) {
		ssize_t got;

		if (poll(&ready, 1, 100) <= 0)
			continue;
		got = read(uffd, events, sizeof(events));
		if (got < 0 && errno == EAGAIN)
			continue;
		if (got < (ssize_t)sizeof(*events))
			die("userfaultfd: %m");
		for (size_t i = 0; i < got / sizeof(*events); i++) {
			if (events[i].event != UFFD_EVENT_PAGEFAULT)
				die("userfaultfd tells event %u", events[i].event);
			come((events[i].arg.pagefault.address - (unsigned long)ram) / PAGE);
		}
	}
	return unused;
}

/* --- pages go */

static void go_by_splice(uint64_t page)
{
	loff_t at = page * PAGE;

	if (splice(ram_fd, &at, pipes[1], NULL, PAGE, 0) != (ssize_t)PAGE)
		die("splice of page %" PRIu64 ": %m", page);
	if (fallocate(ram_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, page * PAGE, PAGE))
		die("a hole for page %" PRIu64 ": %m", page);
	if (read(pipes[0], store + page * PAGE, PAGE) != (ssize_t)PAGE)
		die("the pipe with page %" PRIu64 ": %m", page);
}

static bool go(uint64_t page)
{
	if (ask.take) {
		struct mint_memory_take one = { .from = ram_fd, .to = store_fd, .first = page, .count = 1 };

		if (ioctl(device, MINT_MEMORY_TAKE, &one))
			die("page %" PRIu64 " is not taken: %m", page);
		if (!(one.taken[0] & 1)) {
			stayed++;
			return false;
		}
	} else {
		go_by_splice(page);
	}
	is_here[page] = false;
	is_stored[page] = true;
	here_count--;
	outs++;
	return true;
}

static void *take_out(void *unused)
{
	uint64_t state = ask.seed * 2654435761u + 1;

	while (!atomic_load(&over)) {
		uint64_t page = random_of(&state) % page_count;
		bool went = false;

		pthread_mutex_lock(&order);
		if (here_count > ask.resident && is_here[page]) {
			went = go(page);
		}
		pthread_mutex_unlock(&order);
		if (went && ask.pause_us)
			usleep(ask.pause_us);
		else if (!went)
			sched_yield();
	}
	return unused;
}

/* --- who writes */

static void wrong(struct writer *writer, uint64_t page, uint64_t found, uint64_t expected)
{
	if (writer->lost++ < 5)
		fprintf(stderr, PROGRAM ": page %" PRIu64 " holds %#" PRIx64 " instead of %#" PRIx64 "\n", page, found, expected);
}

static void *write_as_thread(void *argument)
{
	struct writer *me = argument;
	uint64_t *expected = calloc(ask.pages, sizeof(*expected));

	while (!atomic_load(&over)) {
		uint64_t index = random_of(&me->seed) % ask.pages, page = me->first + index;
		volatile uint64_t *words = (uint64_t *)(ram + page * PAGE);

		for (size_t i = 0; i < WORDS; i++) {
			if (words[i] != expected[index]) {
				wrong(me, page, words[i], expected[index]);
				break;
			}
		}
		expected[index] = (expected[index] ? expected[index] : tag(page)) + 1;
		for (size_t i = 0; i < WORDS; i++)
			words[i] = expected[index];
		atomic_fetch_add(&me->rounds, 1);
	}
	/* what it has written last is there, too */
	for (uint64_t index = 0; index < ask.pages; index++) {
		uint64_t *words = (uint64_t *)(ram + (me->first + index) * PAGE);

		for (size_t i = 0; i < WORDS; i++) {
			if (words[i] != expected[index]) {
				wrong(me, me->first + index, words[i], expected[index]);
				break;
			}
		}
	}
	free(expected);
	return NULL;
}

static void *read_into_pages(void *argument)
{
	struct writer *me = argument;
	int fd = open(ask.file, O_RDONLY | O_DIRECT);

	if (fd < 0)
		die("%s: %m", ask.file);
	while (!atomic_load(&over)) {
		uint64_t page = me->first + random_of(&me->seed) % ask.pages;
		uint64_t block = random_of(&me->seed) % ask.pages;
		volatile uint64_t *words = (uint64_t *)(ram + page * PAGE);

		if (pread(fd, (void *)words, PAGE, block * PAGE) != (ssize_t)PAGE)
			die("%s: %m", ask.file);
		for (size_t i = 0; i < WORDS; i++) {
			if (words[i] != tag(block)) {
				me->lost++;
				break;
			}
		}
		atomic_fetch_add(&me->rounds, 1);
	}
	close(fd);
	return NULL;
}

static void make_file(void)
{
	uint64_t words[WORDS];
	int fd = open(ask.file, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	if (fd < 0)
		die("%s: %m", ask.file);
	for (uint64_t block = 0; block < ask.pages; block++) {
		for (size_t i = 0; i < WORDS; i++)
			words[i] = tag(block);
		if (write(fd, words, PAGE) != (ssize_t)PAGE)
			die("%s: %m", ask.file);
	}
	if (fsync(fd) || close(fd))
		die("%s: %m", ask.file);
}

/* --- vCPUs */

static struct told *told_of(const struct writer *writer)
{
	return (struct told *)(low + GUEST_WORDS) + (writer - writers);
}

static uint32_t *expected_of(const struct writer *writer)
{
	return (uint32_t *)(low + GUEST_EXPECTED) + writer->first;
}

/* What the loop compares of a page. */
static volatile uint32_t *word_of(const struct writer *writer, uint64_t index, size_t number)
{
	static const size_t at[] = { 0, 2048, 4092 };

	return (uint32_t *)(ram + (writer->first + index) * PAGE + at[number]);
}

static void *write_as_vcpu(void *argument)
{
	struct writer *me = argument;
	struct told *told = told_of(me);

	for (uint64_t index = 0; index < ask.pages; index++) {
		expected_of(me)[index] = tag(me->first + index);
		for (size_t i = 0; i < 3; i++)
			*word_of(me, index, i) = expected_of(me)[index];
	}
	while (!atomic_load(&over)) {
		if (ioctl(me->kvm_run_fd, KVM_RUN, 0)) {
			if (errno != EINTR)
				die("KVM_RUN: %m");
			continue;
		}
		if (me->run->exit_reason != KVM_EXIT_IO)
			die("a vCPU ended with reason %u", me->run->exit_reason);
		for (size_t i = 0; i < 3; i++)
			if (told->found[i] != told->expected || (i == 2 && !me->lost))
				wrong(me, me->first + told->page, told->found[i], told->expected);
		break;
	}
	/* it may have been stopped amid its writes: each of them is the one, or the next */
	for (uint64_t index = 0; index < ask.pages && !me->lost; index++)
		for (size_t i = 0; i < 3; i++) {
			uint32_t found = *word_of(me, index, i), expected = expected_of(me)[index];

			if (found != expected && found != expected + 1)
				wrong(me, me->first + index, found, expected);
		}
	return NULL;
}

static void no_more(int unused)
{
	(void)unused;
}

static void make_vcpus(void)
{
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC), vm = kvm < 0 ? -1 : ioctl(kvm, KVM_CREATE_VM, 0);
	struct kvm_userspace_memory_region slots[2];
	int run_bytes;

	if (vm < 0)
		die("/dev/kvm: %m");
	low = mmap(NULL, GUEST_LOW_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (low == MAP_FAILED)
		die("memory: %m");
	memcpy(low + GUEST_CODE, loop_begin, loop_end - loop_begin);
	slots[0] = (struct kvm_userspace_memory_region) {
		.slot = 0, .memory_size = GUEST_LOW_BYTES, .userspace_addr = (unsigned long)low,
	};
	slots[1] = (struct kvm_userspace_memory_region) {
		.slot = 1, .guest_phys_addr = GUEST_RAM, .memory_size = page_count * PAGE,
		.userspace_addr = (unsigned long)ram,
	};
	run_bytes = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	if (ioctl(vm, KVM_SET_USER_MEMORY_REGION, &slots[0]) || ioctl(vm, KVM_SET_USER_MEMORY_REGION, &slots[1]))
		die("KVM_SET_USER_MEMORY_REGION: %m");
	for (struct writer *one = writers; one < writers + writer_count; one++) {
		struct kvm_segment flat = { .limit = 0xffffffff, .selector = 8, .type = 3, .present = 1, .db = 1, .s = 1, .g = 1 };
		struct kvm_regs regs = {
			.rip = GUEST_CODE, .rflags = 2, .rsi = GUEST_RAM + one->first * PAGE,
			.rdi = GUEST_EXPECTED + one->first * sizeof(uint32_t), .rcx = ask.pages - 1, .rbx = one->seed,
			.rsp = GUEST_WORDS + (one - writers) * sizeof(struct told),
		};
		struct kvm_sregs sregs;

		if (one->kind != VCPU)
			continue;
		one->kvm_run_fd = ioctl(vm, KVM_CREATE_VCPU, one - writers);
		if (one->kvm_run_fd < 0 || ioctl(one->kvm_run_fd, KVM_GET_SREGS, &sregs))
			die("a vCPU: %m");
		one->run = mmap(NULL, run_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, one->kvm_run_fd, 0);
		sregs.ds = sregs.es = sregs.ss = sregs.fs = sregs.gs = flat;
		flat.type = 11;
		sregs.cs = flat;
		sregs.cr0 |= 1;
		if (one->run == MAP_FAILED || ioctl(one->kvm_run_fd, KVM_SET_SREGS, &sregs) ||
		    ioctl(one->kvm_run_fd, KVM_SET_REGS, &regs))
			die("a vCPU's registers: %m");
	}
}

/* --- the whole */

static void make_memory(void)
{
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_MISSING_SHMEM };
	struct uffdio_register range = { .mode = UFFDIO_REGISTER_MODE_MISSING };

	ram_fd = memfd_create("ram", MFD_CLOEXEC);
	if (ram_fd < 0 || ftruncate(ram_fd, page_count * PAGE) || pipe2(pipes, O_CLOEXEC))
		die("memory: %m");
	ram = mmap(NULL, page_count * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, ram_fd, 0);
	store_fd = memfd_create("store", MFD_CLOEXEC);
	if (store_fd < 0 || ftruncate(store_fd, page_count * PAGE))
		die("memory: %m");
	if (ask.take) {
		device = open("/dev/mint-memory", O_RDWR | O_CLOEXEC);
		if (device < 0)
			die("/dev/mint-memory: %m");
	}
	store = mmap(NULL, page_count * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, store_fd, 0);
	is_here = calloc(page_count, sizeof(*is_here));
	is_stored = calloc(page_count, sizeof(*is_stored));
	if (ram == MAP_FAILED || store == MAP_FAILED || !is_here || !is_stored)
		die("memory: %m");
	uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	range.range.start = (unsigned long)ram;
	range.range.len = page_count * PAGE;
	if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api) || ioctl(uffd, UFFDIO_REGISTER, &range))
		die("userfaultfd: %m");
}

static void make_writers(void)
{
	static const struct { enum kind kind; uint64_t *count; } kinds[] = {
		{ THREAD, &ask.threads }, { VCPU, &ask.vcpus }, { READ, &ask.reads },
	};

	for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds); k++) {
		for (uint64_t i = 0; i < *kinds[k].count; i++) {
			struct writer *one = &writers[writer_count];

			one->kind = kinds[k].kind;
			one->first = writer_count * ask.pages;
			one->seed = ask.seed * 1000 + writer_count + 1;
			writer_count++;
		}
	}
	page_count = writer_count * ask.pages;
}

static uint64_t rounds_of(const struct writer *writer)
{
	return writer->kind == VCPU ? ((volatile struct told *)told_of(writer))->rounds : atomic_load(&writer->rounds);
}

static void hang(const struct writer *writer)
{
	static const char *const names[] = { "thread", "vcpu", "read" };
	int fd = open("/proc/sysrq-trigger", O_WRONLY);

	/* blocked tasks, then all */
	if (fd >= 0 && write(fd, "w", 1) == 1)
		(void)!write(fd, "t", 1);
	printf("paging hang kind=%s first=%" PRIu64 " rounds=%" PRIu64 " outs=%" PRIu64 " ins=%" PRIu64 "\n",
	       names[writer->kind], writer->first, rounds_of(writer), outs, ins);
	fflush(stdout);
	_exit(1);
}

/* Until the time is over; ends the program when a writer hangs. */
static void watch(void)
{
	uint64_t seen[3 * WRITERS_MOST] = { 0 }, since[3 * WRITERS_MOST], now = clock_ns(CLOCK_MONOTONIC);
	uint64_t end = now + ask.seconds * 1000000000ull;

	for (unsigned int i = 0; i < writer_count; i++)
		since[i] = now;
	while ((now = clock_ns(CLOCK_MONOTONIC)) < end) {
		usleep(100000);
		for (unsigned int i = 0; i < writer_count; i++) {
			uint64_t rounds = rounds_of(&writers[i]);

			/* a vCPU that has found a lost write has ended */
			if (rounds != seen[i] || writers[i].lost)
				since[i] = now;
			else if (now - since[i] > ask.stall_s * 1000000000ull)
				hang(&writers[i]);
			seen[i] = rounds;
		}
	}
}

int main(int argc, char **argv)
{
	static void *(*const bodies[])(void *) = { write_as_thread, write_as_vcpu, read_into_pages };
	uint64_t rounds[3] = { 0 }, lost[3] = { 0 };
	pthread_t faults, evictor;

	for (int i = 1; i < argc; i++)
		take(argv[i], numbers, texts);
	if (ask.pages & (ask.pages - 1))
		usage("pages=%" PRIu64 ": a power of two is wanted", ask.pages);
	if (ask.reads && !ask.file)
		usage("reads= wants file=");
	signal(SIGUSR1, no_more);
	make_writers();
	if (!page_count)
		usage("nobody writes");
	make_memory();
	if (ask.reads)
		make_file();
	if (ask.vcpus)
		make_vcpus();
	if (pthread_create(&faults, NULL, serve_faults, NULL) || pthread_create(&evictor, NULL, take_out, NULL))
		die("threads: %m");
	for (struct writer *one = writers; one < writers + writer_count; one++)
		if (pthread_create(&one->thread, NULL, bodies[one->kind], one))
			die("threads: %m");
	watch();
	atomic_store(&over, true);
	for (struct writer *one = writers; one < writers + writer_count; one++) {
		/* a signal that comes just before KVM_RUN does not end it */
		while (pthread_tryjoin_np(one->thread, NULL)) {
			pthread_kill(one->thread, SIGUSR1);
			usleep(10000);
		}
		rounds[one->kind] += rounds_of(one);
		lost[one->kind] += one->lost;
	}
	atomic_store(&served, true);
	pthread_join(faults, NULL);
	pthread_join(evictor, NULL);
	printf("paging done outs=%" PRIu64 " ins=%" PRIu64 " zeros=%" PRIu64 " stayed=%" PRIu64 " writes=%" PRIu64 " vcpu_writes=%" PRIu64
	       " reads=%" PRIu64 " lost=%" PRIu64 " reads_lost=%" PRIu64 "\n",
	       outs, ins, zeros, stayed, rounds[THREAD], rounds[VCPU], rounds[READ], lost[THREAD] + lost[VCPU], lost[READ]);
	return 0;
}
