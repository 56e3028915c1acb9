/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What programs of this folder share that take KEY=VALUE words: the words, how they end,
 * a clock, and markers by number. PROGRAM and USAGE are defined before it is included.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../rig/marker.h"

/* Words whose value is a number from least to most, and those whose value is a text. */
struct number {
	const char *key;
	uint64_t *value, least, most;
};

struct text {
	const char *key, **value;
};

static void __attribute__((noreturn, format(printf, 1, 2))) usage(const char *why, ...)
{
	va_list list;

	va_start(list, why);
	fputs(PROGRAM ": ", stderr);
	vfprintf(stderr, why, list);
	fputs("\nusage: " USAGE "\n", stderr);
	exit(2);
}

static void __attribute__((noreturn, format(printf, 1, 2))) die(const char *why, ...)
{
	va_list list;

	va_start(list, why);
	fputs(PROGRAM ": ", stderr);
	vfprintf(stderr, why, list);
	fputs("\n", stderr);
	exit(1);
}

static uint64_t to_number(const char *key, const char *text)
{
	char *end;
	uint64_t value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno)
		usage("%s=%s: a number is wanted", key, text);
	return value;
}

/* One word; both tables end with an entry without a key. */
static void take(const char *word, const struct number *numbers, const struct text *texts)
{
	const char *value = strchr(word, '=');
	size_t length = value ? (size_t)(value - word) : 0;

	for (const struct number *n = numbers; value && n->key; n++) {
		if (strlen(n->key) != length || strncmp(n->key, word, length))
			continue;
		*n->value = to_number(n->key, value + 1);
		if (*n->value < n->least || *n->value > n->most)
			usage("%s: from %" PRIu64 " to %" PRIu64, word, n->least, n->most);
		return;
	}
	for (const struct text *t = texts; value && t->key; t++) {
		if (strlen(t->key) == length && !strncmp(t->key, word, length)) {
			*t->value = value + 1;
			return;
		}
	}
	usage("%s: no such setting", word);
}

static inline uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

#define MARK_CASE(n)	case n: MARKER(n); break;
static __attribute__((noinline, unused)) void mark(unsigned int number)
{
	switch (number) {
	MARK_CASE(0) MARK_CASE(1) MARK_CASE(2) MARK_CASE(3) MARK_CASE(4) MARK_CASE(5) MARK_CASE(6) MARK_CASE(7)
	MARK_CASE(8) MARK_CASE(9) MARK_CASE(10) MARK_CASE(11) MARK_CASE(12) MARK_CASE(13) MARK_CASE(14) MARK_CASE(15)
	MARK_CASE(16) MARK_CASE(17) MARK_CASE(18) MARK_CASE(19) MARK_CASE(20) MARK_CASE(21) MARK_CASE(22) MARK_CASE(23)
	MARK_CASE(24) MARK_CASE(25) MARK_CASE(26) MARK_CASE(27) MARK_CASE(28) MARK_CASE(29) MARK_CASE(30) MARK_CASE(31)
	}
}

/* The places of reads; the state is not 0. */
static inline uint64_t random_of(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}
