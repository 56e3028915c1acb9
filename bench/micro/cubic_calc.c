// SPDX-License-Identifier: Apache-2.0
/*
 * Solves cubic equations, as "cubic_calc" of L does ("Resource layout optimization for live migration",
 * 5.2): a guest that hardly misses its last-level cache.
 *
 * usage: cubic_calc MIB [LINES]
 * Fills MIB with coefficients, says "ready", and takes them one after the other, again and again; each
 * cache line has one equation, which is solved eight times, a root by Newton's method. With LINES it
 * takes that many and sleeps for 10 ms: an emulator executes what hits its caches many times faster than
 * what does not, which no CPU does as much. Ends by a signal only. Exit: 1 failed, 2 usage.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define LINE	64
#define TIMES	8
#define STEPS	24

struct equation {
	double a, b, c, d;	/* ax³ + bx² + cx + d = 0 */
	double roots[3];
	uint64_t real;		/* how many of them */
};

_Static_assert(sizeof(struct equation) == LINE, "one of each line");

static double newton(const struct equation *one, double x)
{
	for (int step = 0; step < STEPS; step++) {
		double slope = (3 * one->a * x + 2 * one->b) * x + one->c;
		double value = ((one->a * x + one->b) * x + one->c) * x + one->d;

		if (slope == 0)
			break;
		x -= value / slope;
	}
	return x;
}

/* One root, then what is left when that is divided out. */
static void solve(struct equation *one)
{
	double x = newton(one, 1e3), b = one->b + one->a * x, c = one->c + b * x;
	double inside = b * b - 4 * one->a * c;

	one->roots[0] = x;
	one->real = inside < 0 ? 1 : 3;
	if (inside < 0)
		return;
	one->roots[1] = (-b + sqrt(inside)) / (2 * one->a);
	one->roots[2] = (-b - sqrt(inside)) / (2 * one->a);
}

int main(int argc, char **argv)
{
	uint64_t count = argc == 2 || argc == 3 ? (strtoull(argv[1], NULL, 10) << 20) / LINE : 0, found = 0;
	uint64_t lines = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
	const struct timespec pause = { .tv_nsec = 10000000 };
	struct equation *all;

	if (!count || (argc == 3 && !lines)) {
		fputs("usage: cubic_calc MIB [LINES]\n", stderr);
		return 2;
	}
	all = aligned_alloc(LINE, count * LINE);
	if (!all) {
		fputs("cubic_calc: no memory for that\n", stderr);
		return 1;
	}
	for (uint64_t i = 0; i < count; i++)
		all[i] = (struct equation){ .a = 1, .b = -(double)(i % 97), .c = (double)(i % 31) - 15, .d = i % 13 };
	puts("ready");
	fflush(stdout);
	for (;;)
		for (uint64_t i = 0; i < count; i++) {
			for (int time = 0; time < TIMES; time++) {
				solve(&all[i]);
				found += all[i].real;
				asm volatile("" : : "r"(found) : "memory");
			}
			if (lines && i % lines == lines - 1)
				nanosleep(&pause, NULL);
		}
}
