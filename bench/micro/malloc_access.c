// SPDX-License-Identifier: Apache-2.0
/*
 * Reads memory that it has allocated, again and again, as "malloc_access" of L does ("Resource layout
 * optimization for live migration", 5.2): a guest that misses its last-level cache.
 *
 * usage: malloc_access MIB [HOT_KIB]
 * Writes each page of MIB, says "ready", and reads lines of it by lot, one in some 25 instructions. With
 * HOT_KIB nine of ten of them are of that many at the beginning, which a cache may hold. All are powers
 * of two. Ends by a signal only. Exit: 1 failed, 2 usage.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE	4096
#define LINE	64
/* Of a turn that do nothing but take time: with what finds the line they are some 25. */
#define IDLE	"6"
/* Of 1024 */
#define HOT	922

static uint64_t lines(const char *word, int shift)
{
	uint64_t bytes = strtoull(word, NULL, 10) << shift;

	if (bytes < PAGE || (bytes & (bytes - 1))) {
		fputs("usage: malloc_access MIB [HOT_KIB], powers of two\n", stderr);
		exit(2);
	}
	return bytes / LINE;
}

static inline void read_line(const uint8_t *memory, uint64_t line)
{
	uint64_t sum = line;

	asm volatile("movzbl (%1), %%eax\n\t.rept " IDLE "\n\tadd $1, %0\n\t.endr"
		     : "+r"(sum) : "r"(memory + line * LINE) : "eax", "cc");
}

int main(int argc, char **argv)
{
	uint64_t all, hot, random = 88172645463325252ull;
	uint8_t *memory;

	all = argc == 2 || argc == 3 ? lines(argv[1], 20) : lines("", 0);
	hot = argc == 3 ? lines(argv[2], 10) : 0;
	memory = aligned_alloc(PAGE, all * LINE);
	if (!memory || hot > all) {
		fputs("malloc_access: no memory for that\n", stderr);
		return 1;
	}
	memset(memory, 1, all * LINE);
	puts("ready");
	fflush(stdout);
	for (;;) {
		/* Marsaglia's xorshift; its low bits choose, the others are the line */
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		if (hot && (random & 1023) < HOT)
			read_line(memory, random >> 10 & (hot - 1));
		else
			read_line(memory, random >> 10 & (all - 1));
	}
}
