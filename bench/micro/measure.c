// SPDX-License-Identifier: Apache-2.0
/*
 * What the benchmarks run on nodes and in guests: static, so that it runs in
 * any image.
 *
 * usage: measure cpu SECONDS               million steps of integer work a second
 *        measure copy SECONDS              MB/s of memcpy over 64 MiB
 *        measure serve PORT                the other end of the next two, for ever
 *        measure send HOST PORT MIB        MB/s of one TCP stream, until all is received
 *        measure pingpong HOST PORT COUNT  median round trip of one byte, microseconds
 *        measure hotplug MIB               in a guest, for ever: CPUs that are plugged in are
 *                                          brought online; says "has CPUS all" (of MIB that are
 *                                          plugged in) and "has CPUS none" when that has changed
 *
 * Prints "measure WHAT NUMBER", but for the last. Exit: 0 done, 1 failed, 2 usage.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#define COPY_BYTES	(64 << 20)
#define CHUNK_BYTES	(1 << 18)

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void cpu(double seconds)
{
	double begin = now_s(), end;
	volatile uint64_t sink;
	uint64_t x = 88172645463325252, steps = 0;

	do {
		for (int i = 0; i < 1000000; i++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
		}
		steps++;
		end = now_s();
	} while (end - begin < seconds);
	sink = x;
	(void)sink;
	printf("measure cpu %.3f\n", steps / (end - begin));
}

static void copy(double seconds)
{
	char *from = malloc(COPY_BYTES), *to = malloc(COPY_BYTES);
	double begin, end;
	uint64_t rounds = 0;

	if (!from || !to)
		die("malloc");
	memset(from, 1, COPY_BYTES);
	memset(to, 2, COPY_BYTES);
	begin = now_s();
	do {
		memcpy(to, from, COPY_BYTES);
		from[rounds % COPY_BYTES] = to[0];
		rounds++;
		end = now_s();
	} while (end - begin < seconds);
	printf("measure copy %.1f\n", rounds * (COPY_BYTES / 1e6) / (end - begin));
}

static void without_delay(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

/* First byte: 'S' sink until the end, then answer; 'E' echo. */
static void serve(int port)
{
	static char buffer[CHUNK_BYTES];
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = htons(port) };
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (void *)&here, sizeof(here)) || listen(listener, 4))
		die("listen");
	for (;;) {
		int fd = accept(listener, NULL, NULL);
		char mode;
		ssize_t n;

		if (fd < 0 || read(fd, &mode, 1) != 1) {
			close(fd);
			continue;
		}
		without_delay(fd);
		while ((n = read(fd, buffer, sizeof(buffer))) > 0)
			if (mode == 'E' && write(fd, buffer, n) != n)
				break;
		if (mode == 'S' && write(fd, "k", 1) != 1)
			perror("answer");
		close(fd);
	}
}

static int reach(const char *host, int port, const char *mode)
{
	struct sockaddr_in there = { .sin_family = AF_INET, .sin_port = htons(port) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (!inet_aton(host, &there.sin_addr))
		exit(2);
	if (connect(fd, (void *)&there, sizeof(there)))
		die("connect");
	without_delay(fd);
	if (write(fd, mode, 1) != 1)
		die("write");
	return fd;
}

static void send_stream(const char *host, int port, uint64_t mib)
{
	static char buffer[CHUNK_BYTES];
	int fd = reach(host, port, "S");
	uint64_t left = mib << 20;
	double begin = now_s();
	char answer;

	while (left) {
		ssize_t n = write(fd, buffer, left < sizeof(buffer) ? left : sizeof(buffer));

		if (n <= 0)
			die("write");
		left -= n;
	}
	shutdown(fd, SHUT_WR);
	if (read(fd, &answer, 1) != 1)
		die("answer");
	printf("measure send %.1f\n", mib * 1.048576 / (now_s() - begin));
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void pingpong(const char *host, int port, int count)
{
	int fd = reach(host, port, "E");
	double *taken = calloc(count, sizeof(*taken));
	char byte = 0;

	for (int i = 0; i < count; i++) {
		double begin = now_s();

		if (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1)
			die("round trip");
		taken[i] = now_s() - begin;
	}
	qsort(taken, count, sizeof(*taken), by_size);
	printf("measure pingpong %.1f\n", taken[count / 2] * 1e6);
}

static uint64_t total_bytes(void)
{
	struct sysinfo info;

	sysinfo(&info);
	return (uint64_t)info.totalram * info.mem_unit;
}

static bool begins(const char *event, const char *with)
{
	return !strncmp(event, with, strlen(with));
}

/* As udev would */
static void bring_online(int cpu)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/online", cpu);
	fd = open(path, O_WRONLY);
	if (fd < 0 || write(fd, "1", 1) != 1)
		perror(path);
	close(fd);
}

static void hotplug(uint64_t mib)
{
	static const char cpu[] = "add@/devices/system/cpu/cpu";
	struct sockaddr_nl all = { .nl_family = AF_NETLINK, .nl_groups = 1 };
	int fd = socket(AF_NETLINK, SOCK_DGRAM, NETLINK_KOBJECT_UEVENT);
	uint64_t without = total_bytes();
	int cpus, cpus_told = sysconf(_SC_NPROCESSORS_ONLN), blocks = 0;
	bool full = false, full_told = false;
	char event[4096];
	ssize_t n;

	if (fd < 0 || bind(fd, (void *)&all, sizeof(all)))
		die("uevents");
	while ((n = recv(fd, event, sizeof(event) - 1, 0)) > 0) {
		event[n] = 0;
		if (begins(event, cpu))
			bring_online(atoi(event + strlen(cpu)));
		blocks += begins(event, "add@/devices/system/memory/") - begins(event, "remove@/devices/system/memory/");
		if (strstr(event, "/devices/system/memory/"))
			full = blocks && (full || total_bytes() >= without + (mib << 20));
		cpus = sysconf(_SC_NPROCESSORS_ONLN);
		if (cpus == cpus_told && full == full_told)
			continue;
		/* Each byte is two exits on an emulated serial port: not many, and not with every event. */
		printf("has %d %s\n", cpus, full ? "all" : "none");
		fflush(stdout);
		cpus_told = cpus;
		full_told = full;
	}
	die("uevents");
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	signal(SIGPIPE, SIG_IGN);
	if (!strcmp(what, "cpu") && argc == 3)
		cpu(atof(argv[2]));
	else if (!strcmp(what, "copy") && argc == 3)
		copy(atof(argv[2]));
	else if (!strcmp(what, "serve") && argc == 3)
		serve(atoi(argv[2]));
	else if (!strcmp(what, "send") && argc == 5)
		send_stream(argv[2], atoi(argv[3]), strtoull(argv[4], NULL, 10));
	else if (!strcmp(what, "pingpong") && argc == 5)
		pingpong(argv[2], atoi(argv[3]), atoi(argv[4]));
	else if (!strcmp(what, "hotplug") && argc == 3)
		hotplug(strtoull(argv[2], NULL, 10));
	else
		return fprintf(stderr, "usage: measure cpu|copy|serve|send|pingpong|hotplug ...\n"), 2;
	return 0;
}
