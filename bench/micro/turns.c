// SPDX-License-Identifier: Apache-2.0
/*
 * Known numbers of instructions, as perf_event_open(2) counts them: on this node, and in a KVM guest.
 *
 * usage: turns TURNS	of a loop of two instructions
 * Prints "expected=N host=N host_guest=N guest=N guest_host=N host_us=N guest_us=N": instructions that
 * were counted for the host alone and for guests alone while the node ran the loop, then the same two
 * for a guest that ran it (guest first), and how long either took. Exit: 1 failed, 2 usage.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/kvm.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE		4096
#define CODE		0x1000
#define LOOP		2

/* 16 bits, ecx: turns. Ends with an OUT. */
static const uint8_t guest_code[] = {
	0x66, 0x49,		/* 1: dec %ecx */
	0x75, 0xfc,		/* jnz 1b */
	0xe6, 0x10,		/* out %al, $0x10 */
};

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static int counter(int host, int guest)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_HARDWARE,
		.size = sizeof(attr),
		.config = PERF_COUNT_HW_INSTRUCTIONS,
		.disabled = 1,
		.exclude_host = !host,
		.exclude_guest = !guest,
	};
	int fd = syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);

	if (fd < 0)
		fail("perf_event_open");
	return fd;
}

static uint64_t count(int fd)
{
	uint64_t value;

	if (read(fd, &value, sizeof(value)) != sizeof(value))
		fail("a counter");
	return value;
}

static uint64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000ull + now.tv_nsec / 1000;
}

/* The loop, on this CPU itself. */
static void on_host(uint32_t turns)
{
	asm volatile("1:	dec %0\n"
		     "	jnz 1b\n"
		     : "+r"(turns)
		     :
		     : "cc");
}

/* A vCPU that will run it. */
static int vcpu(uint32_t turns, struct kvm_run **run)
{
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC), vm, fd, bytes;
	struct kvm_userspace_memory_region slot = { .guest_phys_addr = CODE, .memory_size = PAGE };
	struct kvm_regs regs = { .rip = CODE, .rflags = 2, .rcx = turns };
	struct kvm_sregs sregs;
	uint8_t *code;

	if (kvm < 0)
		fail("/dev/kvm");
	vm = ioctl(kvm, KVM_CREATE_VM, 0);
	code = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (vm < 0 || code == MAP_FAILED)
		fail("a VM");
	memcpy(code, guest_code, sizeof(guest_code));
	slot.userspace_addr = (uintptr_t)code;
	fd = ioctl(vm, KVM_CREATE_VCPU, 0);
	bytes = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	if (ioctl(vm, KVM_SET_USER_MEMORY_REGION, &slot) || fd < 0 || bytes < 0)
		fail("a vCPU");
	*run = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (*run == MAP_FAILED || ioctl(fd, KVM_GET_SREGS, &sregs))
		fail("a vCPU's registers");
	sregs.cs.base = sregs.cs.selector = 0;
	if (ioctl(fd, KVM_SET_SREGS, &sregs) || ioctl(fd, KVM_SET_REGS, &regs))
		fail("a vCPU's registers");
	return fd;
}

int main(int argc, char **argv)
{
	uint32_t turns = argc == 2 ? strtoul(argv[1], NULL, 0) : 0;
	uint64_t values[4], took_us[2];
	struct kvm_run *run;
	int fd, counters[2];

	if (!turns) {
		fprintf(stderr, "usage: turns TURNS\n");
		return 2;
	}
	fd = vcpu(turns, &run);
	for (int in_guest = 0; in_guest < 2; in_guest++) {
		uint64_t began_us;

		counters[0] = counter(!in_guest, in_guest);
		counters[1] = counter(in_guest, !in_guest);
		for (int i = 0; i < 2; i++)
			ioctl(counters[i], PERF_EVENT_IOC_ENABLE, 0);
		began_us = now_us();
		if (!in_guest)
			on_host(turns);
		else if (ioctl(fd, KVM_RUN, 0) || run->exit_reason != KVM_EXIT_IO)
			fail("KVM_RUN");
		took_us[in_guest] = now_us() - began_us;
		for (int i = 0; i < 2; i++)
			ioctl(counters[i], PERF_EVENT_IOC_DISABLE, 0);
		for (int i = 0; i < 2; i++) {
			values[2 * in_guest + i] = count(counters[i]);
			close(counters[i]);
		}
	}
	printf("expected=%llu host=%llu host_guest=%llu guest=%llu guest_host=%llu host_us=%llu guest_us=%llu\n",
	       (unsigned long long)turns * LOOP, (unsigned long long)values[0], (unsigned long long)values[1],
	       (unsigned long long)values[2], (unsigned long long)values[3], (unsigned long long)took_us[0],
	       (unsigned long long)took_us[1]);
	return 0;
}
