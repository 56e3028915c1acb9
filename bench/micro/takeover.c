// SPDX-License-Identifier: Apache-2.0
/*
 * The four ways to have a kernel loaded over this one, as system calls: kexec(8)
 * asks other things first, such as whether memory is reserved for a crash kernel.
 *
 * usage: takeover IMAGE INITRD    prints "WAY ERROR" for each, ERROR 0 if it was loaded
 *
 * Exit: 0 done, whatever the calls answered; 1 failed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/kexec.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char CMDLINE[] = "panic=-1";

static void say(const char *way, long ret)
{
	printf("%s %s\n", way, ret ? strerrorname_np(errno) : "0");
}

int main(int argc, char **argv)
{
	static char page[4096];
	struct kexec_segment segment = {
		.buf = page, .bufsz = sizeof(page), .mem = (void *)0x1000000, .memsz = sizeof(page),
	};
	int kernel, initrd;

	if (argc != 3)
		return 1;
	kernel = open(argv[1], O_RDONLY | O_CLOEXEC);
	initrd = open(argv[2], O_RDONLY | O_CLOEXEC);
	if (kernel < 0 || initrd < 0) {
		perror("takeover");
		return 1;
	}
	say("kexec_file_load", syscall(SYS_kexec_file_load, kernel, initrd, sizeof(CMDLINE), CMDLINE, 0L));
	say("kexec_file_load-crash",
	    syscall(SYS_kexec_file_load, kernel, initrd, sizeof(CMDLINE), CMDLINE, (long)KEXEC_FILE_ON_CRASH));
	say("kexec_load", syscall(SYS_kexec_load, 0x1000000L, 1L, &segment, (long)KEXEC_ARCH_X86_64));
	say("kexec_load-crash",
	    syscall(SYS_kexec_load, 0x1000000L, 1L, &segment, (long)(KEXEC_ARCH_X86_64 | KEXEC_ON_CRASH)));
	return 0;
}
