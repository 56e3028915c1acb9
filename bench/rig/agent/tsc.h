/* SPDX-License-Identifier: Apache-2.0 */
/* mint-rig-agent --tsc-khz: how fast the TSC goes. */

#include <stdint.h>
#include <stdio.h>
#include <time.h>

/* A pair of readings of both clocks: of many, the one that took least time */
static void read_clocks(uint64_t *tsc, int64_t *ns)
{
	int64_t best = INT64_MAX;

	for (int i = 0; i < 1000; i++) {
		struct timespec a, b;
		uint64_t t;
		int64_t took;

		clock_gettime(CLOCK_MONOTONIC_RAW, &a);
		t = __builtin_ia32_rdtsc();
		clock_gettime(CLOCK_MONOTONIC_RAW, &b);
		took = (b.tv_sec - a.tv_sec) * 1000000000LL + b.tv_nsec - a.tv_nsec;
		if (took >= best)
			continue;
		best = took;
		*tsc = t;
		*ns = a.tv_sec * 1000000000LL + a.tv_nsec + took / 2;
	}
}

/*
 * QEMU's emulated TSC runs at the host's rate. A kernel that measures it while
 * its vCPU is held up by a busy host gets it wrong by a factor.
 */
static int print_tsc_khz(void)
{
	const struct timespec pause = { .tv_nsec = 200000000 };
	uint64_t tsc0, tsc1;
	int64_t ns0, ns1;

	read_clocks(&tsc0, &ns0);
	nanosleep(&pause, NULL);
	read_clocks(&tsc1, &ns1);
	printf("%llu\n", (unsigned long long)((tsc1 - tsc0) * 1000000.0 / (ns1 - ns0)));
	return 0;
}
