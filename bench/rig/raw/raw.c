// SPDX-License-Identifier: Apache-2.0
/*
 * Asks /dev/mint directly, as no daemon would: one call, with its answer in
 * words that a test reads.
 *
 * usage: raw release|claim cpu|mem|pci ID NODE     ID in decimal or 0x...
 *        raw kill NODE [BOOTS [AFTER_US]]
 *        raw start|destroy|get NODE
 *        raw await NODE STATE COMMAND [NODE...]     as soon as NODE's state (a number) is STATE
 *        raw flood INTERFACE FRAMES                so many broadcasts
 *        raw rows cpu|mem|pci COUNT BYTES          COUNT resources of BYTES each; 0: as a caller
 *                                                  who knows of no such size
 *        raw events BYTES ROOM                     a node comes and goes, and one read of ROOM
 *                                                  bytes of events of BYTES each; 0: as above
 *        raw sized NODE BYTES FILL                 "get" with a structure of BYTES, what the
 *                                                  kernel does not know of it filled with FILL
 * Prints "errno=N" and the fields that the call gives; the last three a second
 * line, too, all bytes of the buffer in hex: before the call they were UNTOUCHED,
 * and GUARD_BYTES follow that the call was told nothing of. Exit: 0 whatever the
 * kernel answered, 1 no call was made, 2 usage.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <linux/mint.h>
#include <net/if.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* How long "await" looks for the state */
#define AWAIT_S		120
#define FRAME_BYTES	1500
#define UNTOUCHED	0xa5
#define GUARD_BYTES	64

static int device;

static int fail(const char *what)
{
	perror(what);
	return 1;
}

static int usage(void)
{
	fprintf(stderr, "usage: raw release|claim|kill|start|destroy|get|await|flood|rows|events|sized ...: see its source\n");
	return 2;
}

static unsigned int number(const char *text)
{
	return (unsigned int)strtoul(text, NULL, 0);
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int call(unsigned long request, void *arg)
{
	return ioctl(device, request, arg) ? errno : 0;
}

/* 3: there is no such kind */
static unsigned int kind_of(const char *word)
{
	static const char *const kinds[] = { "cpu", "mem", "pci" };
	unsigned int kind = 0;

	while (kind < 3 && strcmp(kinds[kind], word))
		kind++;
	return kind;
}

/* Memory for a call to write to, and what must stay behind it */
static unsigned char *buffer(size_t bytes)
{
	unsigned char *to = malloc(bytes + GUARD_BYTES);

	if (to)
		memset(to, UNTOUCHED, bytes + GUARD_BYTES);
	return to;
}

static int give_buffer(const unsigned char *from, size_t bytes)
{
	for (size_t i = 0; i < bytes + GUARD_BYTES; i++)
		printf("%02x", from[i]);
	putchar('\n');
	return 0;
}

static int rows(unsigned int kind, unsigned int count, unsigned int bytes)
{
	size_t all = (size_t)count * (bytes ?: MINT_RESOURCE_BYTES_1);
	unsigned char *to = buffer(all);
	struct mint_resources r = {
		.size = bytes ? sizeof(r) : offsetof(struct mint_resources, entry_bytes),
		.kind = kind, .count = count, .entries = (uintptr_t)to, .entry_bytes = bytes,
	};

	if (kind == 3)
		return usage();
	if (!to)
		return fail("malloc");
	int error = call(MINT_IOC_RESOURCES, &r);

	printf("errno=%d count=%u\n", error, r.count);
	return give_buffer(to, all);
}

static int events(unsigned int bytes, size_t room)
{
	struct mint_event_size s = { .size = sizeof(s), .event_bytes = bytes };
	struct mint_node n = { .size = sizeof(n), .node = MINT_NODE_ANY, .name = "raw" };
	unsigned char *to = buffer(room);

	if (!to)
		return fail("malloc");
	int error = bytes ? call(MINT_IOC_EVENT_SIZE, &s) : 0;
	ssize_t got = 0;

	if (!error && (call(MINT_IOC_NODE_CREATE, &n) || call(MINT_IOC_NODE_DESTROY, &n)))
		return fail("MINT_IOC_NODE_CREATE, MINT_IOC_NODE_DESTROY");
	if (!error) {
		got = read(device, to, room);
		error = got < 0 ? errno : 0;
	}
	printf("errno=%d got=%ld\n", error, (long)got);
	return give_buffer(to, room);
}

static int sized(unsigned int node, unsigned int bytes, unsigned int fill)
{
	unsigned char *to = buffer(bytes);
	unsigned int words[2] = { bytes, node };

	if (!to)
		return fail("malloc");
	if (bytes < sizeof(words))
		return usage();
	memset(to, 0, bytes);
	if (bytes > sizeof(struct mint_node))
		memset(to + sizeof(struct mint_node), (int)fill, bytes - sizeof(struct mint_node));
	memcpy(to, words, sizeof(words));
	int error = call(MINT_IOC_NODE_GET, to);

	printf("errno=%d known=%zu\n", error, sizeof(struct mint_node));
	return give_buffer(to, bytes);
}

static int move(const char *verb, char **words)
{
	struct mint_move m = { .size = sizeof(m), .kind = kind_of(words[0]),
			       .id = number(words[1]), .node = number(words[2]) };

	if (m.kind == 3)
		return usage();
	int error = call(*verb == 'c' ? MINT_IOC_CLAIM : MINT_IOC_RELEASE, &m);

	printf("errno=%d reason=%u owner=%u\n", error, m.reason, m.owner);
	return 0;
}

static int kill_node(unsigned int node, unsigned int boots)
{
	struct mint_kill k = { .size = sizeof(k), .node = node, .boots = boots };
	int error = call(MINT_IOC_NODE_KILL, &k);

	printf("errno=%d parked=%u cpus=%u fenced=%u\n", error, k.parked, k.cpus, k.fenced);
	return 0;
}

static int node_call(const char *verb, unsigned int node)
{
	struct mint_node n = { .size = sizeof(n), .node = node };
	unsigned long request = !strcmp(verb, "start") ? MINT_IOC_NODE_START :
				!strcmp(verb, "destroy") ? MINT_IOC_NODE_DESTROY : MINT_IOC_NODE_GET;
	int error = call(request, &n);

	printf("errno=%d state=%u boots=%u\n", error, n.state, n.boots);
	return 0;
}

static int await(unsigned int node, unsigned int state)
{
	double end = seconds() + AWAIT_S;
	struct mint_node n;

	do {
		n = (struct mint_node){ .size = sizeof(n), .node = node };
		if (call(MINT_IOC_NODE_GET, &n))
			return fail("MINT_IOC_NODE_GET");
		if (n.state == state)
			return 0;
	} while (seconds() < end);
	fprintf(stderr, "node %u is in state %u, never in %u\n", node, n.state, state);
	return 1;
}

static int flood(const char *interface, unsigned long frames)
{
	struct sockaddr_ll to = { .sll_family = AF_PACKET, .sll_halen = 6,
				  .sll_addr = { 255, 255, 255, 255, 255, 255 } };
	unsigned char frame[FRAME_BYTES] = { 255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 0x88, 0xb5 };
	int wire = socket(AF_PACKET, SOCK_RAW, 0);
	unsigned long sent = 0;

	if (wire < 0)
		return fail("socket");
	to.sll_ifindex = (int)if_nametoindex(interface);
	if (!to.sll_ifindex)
		return fail(interface);
	memset(frame + 14, 0xa5, sizeof(frame) - 14);
	for (double end = seconds() + AWAIT_S; sent < frames && seconds() < end;)
		if (sendto(wire, frame, sizeof(frame), 0, (struct sockaddr *)&to, sizeof(to)) > 0)
			sent++;
		else
			usleep(100);
	printf("sent=%lu\n", sent);
	return 0;
}

static int run(int argc, char **argv)
{
	const char *verb = argv[0];

	if ((!strcmp(verb, "release") || !strcmp(verb, "claim")) && argc == 4)
		return move(verb, argv + 1);
	if (!strcmp(verb, "kill") && argc >= 2 && argc <= 4) {
		if (argc == 4)
			usleep(number(argv[3]));
		return kill_node(number(argv[1]), argc > 2 ? number(argv[2]) : 0);
	}
	if ((!strcmp(verb, "start") || !strcmp(verb, "destroy") || !strcmp(verb, "get")) && argc == 2)
		return node_call(verb, number(argv[1]));
	if (!strcmp(verb, "rows") && argc == 4)
		return rows(kind_of(argv[1]), number(argv[2]), number(argv[3]));
	if (!strcmp(verb, "events") && argc == 3)
		return events(number(argv[1]), number(argv[2]));
	if (!strcmp(verb, "sized") && argc == 4)
		return sized(number(argv[1]), number(argv[2]), number(argv[3]));
	if (!strcmp(verb, "await") && argc >= 4)
		return await(number(argv[1]), number(argv[2])) ?: run(argc - 3, argv + 3);
	return usage();
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return usage();
	if (!strcmp(argv[1], "flood") && argc == 4)
		return flood(argv[2], number(argv[3]));
	device = open("/dev/mint", O_RDWR | O_CLOEXEC);
	if (device < 0)
		return fail("/dev/mint");
	return run(argc - 1, argv + 1);
}
