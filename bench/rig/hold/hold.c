// SPDX-License-Identifier: Apache-2.0
/*
 * Holds pages of memory so that no kernel can move them: they lie in a pipe, as
 * vmsplice(2) puts them there. Until it is ended.
 *
 * usage: hold MIB [NUMA]      rounded up to a multiple of 16; of that NUMA node only
 * Says "held" once it holds them. Exit: 1 failed, 2 usage.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

int main(int argc, char **argv)
{
	if (argc < 2 || argc > 3 || atoi(argv[1]) <= 0) {
		fprintf(stderr, "usage: hold MIB [NUMA]\n");
		return 2;
	}
	if (argc == 3) {
		unsigned long nodes = 1UL << atoi(argv[2]);

		if (syscall(SYS_set_mempolicy, MPOL_BIND, &nodes, 8 * sizeof(nodes)))
			fail("set_mempolicy");
	}

	/* no contiguous memory for the slots of a larger pipe */
	size_t all = (size_t)atoi(argv[1]) << 20, piece = 16 << 20;

	for (size_t held = 0; held < all; held += piece) {
		char *memory = mmap(NULL, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		int pipes[2];

		if (memory == MAP_FAILED)
			fail("mmap");
		memset(memory, 1, piece);
		if (pipe(pipes))
			fail("pipe");
		/* a slot for each page, given as bytes */
		if (fcntl(pipes[1], F_SETPIPE_SZ, (int)piece) < 0)
			fail("F_SETPIPE_SZ");
		for (size_t done = 0; done < piece;) {
			struct iovec rest = { memory + done, piece - done };
			ssize_t n = vmsplice(pipes[1], &rest, 1, 0);

			if (n <= 0)
				fail("vmsplice");
			done += (size_t)n;
		}
	}
	puts("held");
	fflush(stdout);
	for (;;)
		pause();
}
