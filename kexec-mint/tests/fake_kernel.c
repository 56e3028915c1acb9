// SPDX-License-Identifier: Apache-2.0
/*
 * kexec-mint.c against a kernel that is played: the file is compiled as it is,
 * with the system calls it makes replaced. What the kernel has and answers
 * comes from the environment:
 *
 *   FAKE_DEVICE  errno of opening /dev/mint (0: it opens)
 *   FAKE_INFO    errno of MINT_IOC_INFO
 *   FAKE_SELF    node that the command runs on; FAKE_ABI  version of the ABI
 *   FAKE_STATE   state of the other node; -1: no such node
 *   FAKE_LOAD    errno of kexec_file_load; FAKE_START  errno of NODE_START
 *
 * Each call that would change something is told on stdout, so that a test sees
 * what reached the kernel and that a refusal changed nothing.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <linux/mint.h>

static int fake_open(const char *path, int flags);
static int fake_ioctl(int fd, unsigned long request, void *arg);
static long fake_syscall(long number, ...);

#define open	fake_open
#define ioctl	fake_ioctl
#define syscall	fake_syscall
#include "kexec/kexec-mint.c"
#undef open
#undef ioctl
#undef syscall

int kexec_debug;

void usage(void)
{
	puts("usage");
}

static int given(const char *name, int otherwise)
{
	const char *value = getenv(name);

	return value ? atoi(value) : otherwise;
}

static int answer(int error)
{
	errno = error;
	return error ? -1 : 0;
}

static int fake_open(const char *path, int flags)
{
	if (strcmp(path, "/dev/mint"))
		return open(path, flags);
	if (answer(given("FAKE_DEVICE", 0)) < 0)
		return -1;
	return open("/dev/null", flags);
}

static int fake_ioctl(int fd, unsigned long request, void *arg)
{
	struct mint_info *info = arg;
	struct mint_node *node = arg;
	int state = given("FAKE_STATE", MINT_NODE_STOPPED);

	(void)fd;
	if (*(__u32 *)arg != (request == MINT_IOC_INFO ? sizeof(*info) : sizeof(*node)))
		return answer(E2BIG);
	switch (request) {
	case MINT_IOC_INFO:
		info->abi_version = given("FAKE_ABI", MINT_ABI_VERSION);
		info->node = given("FAKE_SELF", 0);
		info->node_max = 4;
		return answer(given("FAKE_INFO", 0));
	case MINT_IOC_NODE_GET:
		if (state < 0)
			return answer(ENOENT);
		node->state = state;
		node->memory_bytes = 768ULL << 20;
		node->cpus_online = 2;
		node->boot_cpu = MINT_NODE_ANY;
		strcpy(node->name, "web");
		strcpy(node->release, "6.12.0-mint");
		strcpy(node->reason, "sysrq triggered crash");
		return 0;
	case MINT_IOC_NODE_START:
		printf("start node=%u\n", node->node);
		return answer(given("FAKE_START", 0));
	default:
		printf("unexpected ioctl %lx\n", request);
		return answer(ENOTTY);
	}
}

static long fake_syscall(long number, ...)
{
	int kernel_fd, initrd_fd;
	unsigned long cmdline_len, flags;
	const char *cmdline;
	va_list args;

	if (number != __NR_kexec_file_load) {
		printf("unexpected system call %ld\n", number);
		return answer(ENOSYS);
	}
	va_start(args, number);
	kernel_fd = va_arg(args, int);
	initrd_fd = va_arg(args, int);
	cmdline_len = va_arg(args, unsigned long);
	cmdline = va_arg(args, const char *);
	flags = va_arg(args, unsigned long);
	va_end(args);
	printf("kexec_file_load kernel=%d initrd=%d flags=%#lx cmdline_len=%lu cmdline=%s\n",
	       kernel_fd >= 0, initrd_fd >= 0, flags, cmdline_len, cmdline ? cmdline : "-");
	return answer(given("FAKE_LOAD", 0));
}

int main(int argc, char **argv)
{
	return mint_main(argc, argv);
}
