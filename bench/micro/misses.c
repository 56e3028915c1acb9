// SPDX-License-Identifier: Apache-2.0
/*
 * Known numbers of cache misses, as perf_event_open(2) counts a KVM guest's by AMD's event 0x43.
 *
 * usage: misses CPU NUMA LINES READS
 * On a CPU, a guest reads lines of memory of a NUMA node, one after the other, LINES of them (a power of
 * two, 16384 at most) again and again, READS in all.
 * Prints "instructions=N near=N far=N": what the guest executed, and lines that came to it from the CPU's
 * NUMA node and from others. Exit: 1 failed, 2 usage.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/kvm.h>
#include <linux/mempolicy.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE		4096
#define LINE		64
#define LINES_MAX	16384
#define CODE		0x1000
#define DATA		0x100000
#define NEAR		0x0843
#define FAR		0x4043
#define EVENTS		3

/* 16 bits, with segments of 4 GiB. ecx: reads; edx: bytes of the lines, less one; ebx: 0. */
static const uint8_t guest_code[] = {
	0x67, 0x8a, 0x03,		/* 1: mov (%ebx), %al */
	0x66, 0x83, 0xc3, LINE,		/* add $64, %ebx */
	0x66, 0x21, 0xd3,		/* and %edx, %ebx */
	0x66, 0x49,			/* dec %ecx */
	0x75, 0xf2,			/* jnz 1b */
	0xe6, 0x10,			/* out %al, $0x10 */
};

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static int counter(uint32_t type, uint64_t config, int leader)
{
	struct perf_event_attr attr = {
		.type = type,
		.size = sizeof(attr),
		.config = config,
		.read_format = PERF_FORMAT_GROUP,
		.disabled = leader < 0,
		.exclude_host = 1,
	};
	int fd = syscall(SYS_perf_event_open, &attr, 0, -1, leader, PERF_FLAG_FD_CLOEXEC);

	if (fd < 0)
		fail("perf_event_open");
	return fd;
}

static void *memory(size_t bytes, int numa)
{
	unsigned long mask = 1ul << numa;
	void *found = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (found == MAP_FAILED)
		fail("memory");
	if (syscall(SYS_mbind, found, bytes, MPOL_BIND, &mask, 8 * sizeof(mask), 0))
		fail("mbind");
	memset(found, 0, bytes);
	return found;
}

static int vcpu(int numa, uint32_t lines, uint32_t reads, struct kvm_run **run)
{
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC), vm, fd, bytes;
	struct kvm_userspace_memory_region code = { .guest_phys_addr = CODE, .memory_size = PAGE };
	struct kvm_userspace_memory_region data = { .slot = 1, .guest_phys_addr = DATA, .memory_size = lines * LINE };
	struct kvm_regs regs = { .rip = CODE, .rflags = 2, .rcx = reads, .rdx = lines * LINE - 1 };
	struct kvm_sregs sregs;
	void *begin = memory(PAGE, numa);

	if (kvm < 0)
		fail("/dev/kvm");
	vm = ioctl(kvm, KVM_CREATE_VM, 0);
	if (vm < 0)
		fail("a VM");
	memcpy(begin, guest_code, sizeof(guest_code));
	code.userspace_addr = (uintptr_t)begin;
	data.userspace_addr = (uintptr_t)memory(data.memory_size, numa);
	fd = ioctl(vm, KVM_CREATE_VCPU, 0);
	bytes = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	if (ioctl(vm, KVM_SET_USER_MEMORY_REGION, &code) || ioctl(vm, KVM_SET_USER_MEMORY_REGION, &data) || fd < 0 ||
	    bytes < 0)
		fail("a vCPU");
	*run = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (*run == MAP_FAILED || ioctl(fd, KVM_GET_SREGS, &sregs))
		fail("a vCPU's registers");
	sregs.cs.base = sregs.cs.selector = 0;
	sregs.ds.base = DATA;
	sregs.ds.limit = UINT32_MAX;
	sregs.ds.g = 1;
	if (ioctl(fd, KVM_SET_SREGS, &sregs) || ioctl(fd, KVM_SET_REGS, &regs))
		fail("a vCPU's registers");
	return fd;
}

int main(int argc, char **argv)
{
	uint64_t values[1 + EVENTS];
	uint32_t words[4] = { 0 };
	struct kvm_run *run;
	cpu_set_t cpus;
	int fd, leader;

	for (int i = 1; i < argc && argc == 5; i++)
		words[i - 1] = strtoul(argv[i], NULL, 0);
	if (words[1] > 63 || words[2] < PAGE / LINE || words[2] > LINES_MAX || (words[2] & (words[2] - 1)) || !words[3]) {
		fprintf(stderr, "usage: misses CPU NUMA LINES READS\n");
		return 2;
	}
	CPU_ZERO(&cpus);
	CPU_SET(words[0], &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		fail("the CPU");
	fd = vcpu(words[1], words[2], words[3], &run);
	leader = counter(PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS, -1);
	counter(PERF_TYPE_RAW, NEAR, leader);
	counter(PERF_TYPE_RAW, FAR, leader);
	if (ioctl(leader, PERF_EVENT_IOC_ENABLE, 0))
		fail("counters");
	if (ioctl(fd, KVM_RUN, 0) || run->exit_reason != KVM_EXIT_IO)
		fail("KVM_RUN");
	if (read(leader, values, sizeof(values)) != sizeof(values) || values[0] != EVENTS)
		fail("a counter");
	printf("instructions=%llu near=%llu far=%llu\n", (unsigned long long)values[1], (unsigned long long)values[2],
	       (unsigned long long)values[3]);
	return 0;
}
