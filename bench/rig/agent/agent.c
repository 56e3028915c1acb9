// SPDX-License-Identifier: Apache-2.0
/*
 * The rig's hands inside a node: runs commands that the test program on the
 * host sends, to node 0 through a virtio-serial port, to other nodes over mint0.
 * Static, so that it runs in any image, one with no libraries included.
 *
 * usage: mint-rig-agent [PORT-NAME | DEVICE]      (default mint.exec)
 *        mint-rig-agent --listen INTERFACE PORT   (TCP, on that interface only)
 *        mint-rig-agent --stdio                   (of a real server: rig/bootstrap.py)
 *        mint-rig-agent --tsc-khz                 (on the host: its TSC's rate)
 *
 * Protocol, both directions (bench/rig/channel.py is the other end): frames of
 *   u8 'M', u8 version, u8 type, u8 flags, le32 job, le32 length, payload
 * Several jobs run at a time; the host chooses their numbers. Output is sent
 * as it comes. A job's EXIT is its last frame. Each TCP connection has a process
 * and jobs of its own; jobs are killed at its end, and at that of standard input.
 *
 * Exit: 0 no such port here (not a node of the rig), or the connection ended; 1 the
 * port failed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tsc.h"

#define VERSION		1
#define HEADER_BYTES	12
#define FRAME_MAX	(1 << 20)
#define JOBS_MAX	64
#define STDIN_MAX	(64 << 20)	/* waiting for one job */

enum type {
	/* from the host */
	RUN	= 1,	/* le32 limit in ms (0: none), then the command for sh -c; flags: RUN_* */
	INPUT	= 2,	/* bytes for its stdin; none: end of file */
	KILL	= 3,	/* u8 signal, to the job's whole session */
	SIZE	= 4,	/* le16 rows, le16 columns, of a job with a terminal */
	PING	= 5,	/* answered by HELLO */
	/* to the host */
	HELLO	= 16,	/* first frame: boot id of this kernel */
	OUTPUT	= 17,	/* of stdout */
	ERROR	= 18,	/* of stderr */
	EXIT	= 19,	/* le32 exit status (128+n: signal n); flags: EXIT_TIMEOUT */
};

#define RUN_TERMINAL	1	/* give it a terminal; all its output is OUTPUT */
#define RUN_INPUT	2	/* INPUT will come; without it stdin is /dev/null */
#define EXIT_TIMEOUT	1	/* killed at its limit */
#define GONE_MS		5000	/* for the rest of a killed job to be gone */

struct job {
	int used, terminal, timed_out, eof_wanted, killed, status;
	uint32_t id;
	pid_t pid;
	int in, out, err;		/* -1: closed */
	int64_t deadline_ms;		/* 0: none */
	int64_t gone_by_ms;		/* its first process has ended; 0: it has not */
	char *pending;			/* for stdin */
	size_t pending_bytes;
};

static struct job jobs[JOBS_MAX];
static int port, port_out;	/* one descriptor, but for --stdio */
static int is_connection;	/* port is one: it has an end */

static void kill_job(struct job *j, int signal_number);

static void die(const char *what)
{
	if (is_connection) { /* its other end is gone */
		for (struct job *j = jobs; j < jobs + JOBS_MAX; j++)
			if (j->used)
				kill_job(j, SIGKILL);
		exit(0);
	}
	fprintf(stderr, "mint-rig-agent: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static void put32(unsigned char *p, uint32_t v)
{
	p[0] = v, p[1] = v >> 8, p[2] = v >> 16, p[3] = v >> 24;
}

static uint32_t get32(const unsigned char *p)
{
	return p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24;
}

/* The port is non-blocking for reading's sake; a full queue means the host is slow. */
static void write_all(const void *data, size_t bytes)
{
	const char *p = data;

	while (bytes) {
		ssize_t n = write(port_out, p, bytes);

		if (n > 0) {
			p += n, bytes -= n;
		} else if (n < 0 && errno == EAGAIN) {
			struct pollfd wait = { .fd = port_out, .events = POLLOUT };

			poll(&wait, 1, 100);
		} else if (n < 0 && errno != EINTR) {
			die("write to the port");
		}
	}
}

static void send_frame(int type, int flags, uint32_t id, const void *data, uint32_t bytes)
{
	unsigned char header[HEADER_BYTES] = { 'M', VERSION, type, flags };

	put32(header + 4, id);
	put32(header + 8, bytes);
	write_all(header, sizeof(header));
	write_all(data, bytes);
}

static void send_exit(uint32_t id, int status, int flags)
{
	unsigned char payload[4];

	put32(payload, status);
	send_frame(EXIT, flags, id, payload, sizeof(payload));
}

static void send_hello(void)
{
	char boot[64] = "";
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, boot, sizeof(boot));

	close(fd);
	send_frame(HELLO, 0, 0, boot, n > 0 ? n : 0);
}

/* All that a job started; just itself while it has no session of its own yet. */
static void kill_job(struct job *j, int signal_number)
{
	if (signal_number == SIGKILL)
		j->killed = 1;
	if (kill(-j->pid, signal_number) && !j->gone_by_ms)
		kill(j->pid, signal_number);
}

static struct job *find(uint32_t id)
{
	for (struct job *j = jobs; j < jobs + JOBS_MAX; j++)
		if (j->used && j->id == id)
			return j;
	return NULL;
}

static void shut(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void child(const char *command, int in, int out, int err)
{
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	if (in >= 0) {
		setsid();
		dup2(in, 0), dup2(out, 1), dup2(err, 2);
	}
	execl("/bin/sh", "sh", "-c", command, (char *)NULL);
	_exit(127);
}

static void refuse(uint32_t id, const char *what)
{
	char text[128];
	int n = snprintf(text, sizeof(text), "mint-rig-agent: %s: %s\n", what, strerror(errno));

	send_frame(ERROR, 0, id, text, n);
	send_exit(id, 126, 0);
}

static void run(uint32_t id, int flags, const unsigned char *payload, uint32_t bytes)
{
	uint32_t limit_ms = get32(payload);
	int in[2] = { -1, -1 }, out[2] = { -1, -1 }, err[2] = { -1, -1 }, terminal = -1;
	struct job *j = jobs;
	char *command;

	while (j < jobs + JOBS_MAX && j->used)
		j++;
	if (j == jobs + JOBS_MAX) {
		errno = EAGAIN;
		return refuse(id, "too many jobs at a time");
	}
	command = strndup((const char *)payload + 4, bytes - 4);
	*j = (struct job){ .used = 1, .id = id, .in = -1, .out = -1, .err = -1 };
	if (flags & RUN_TERMINAL) {
		struct winsize size = { .ws_row = 24, .ws_col = 80 };

		j->terminal = 1;
		j->pid = forkpty(&terminal, NULL, NULL, &size);
		if (!j->pid)
			child(command, -1, -1, -1);
		j->out = terminal;
		j->in = fcntl(terminal, F_DUPFD_CLOEXEC, 0);
	} else {
		if (flags & RUN_INPUT) {
			if (pipe2(in, O_CLOEXEC))
				die("pipe");
		} else {
			in[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
		}
		if (pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC))
			die("pipe");
		j->pid = fork();
		if (!j->pid)
			child(command, in[0], out[1], err[1]);
		shut(&in[0]), shut(&out[1]), shut(&err[1]);
		j->in = in[1], j->out = out[0], j->err = err[0];
	}
	free(command);
	if (j->pid < 0) {
		shut(&j->in), shut(&j->out), shut(&j->err);
		j->used = 0;
		return refuse(id, "fork");
	}
	if (j->in >= 0)
		fcntl(j->in, F_SETFL, O_NONBLOCK);
	fcntl(j->out, F_SETFD, FD_CLOEXEC);
	fcntl(j->out, F_SETFL, O_NONBLOCK);
	if (j->err >= 0)
		fcntl(j->err, F_SETFL, O_NONBLOCK);
	if (limit_ms)
		j->deadline_ms = now_ms() + limit_ms;
}

static void feed(struct job *j)
{
	while (j->pending_bytes) {
		ssize_t n = write(j->in, j->pending, j->pending_bytes);

		if (n < 0) {
			if (errno == EAGAIN || errno == EINTR)
				return;
			j->pending_bytes = 0;	/* it does not want more */
			break;
		}
		memmove(j->pending, j->pending + n, j->pending_bytes -= n);
	}
	free(j->pending);
	j->pending = NULL;
	if (j->eof_wanted) {
		if (j->terminal) /* one end of file among several users of it; fails if they are gone */
			(void)!write(j->in, "\004", 1);
		shut(&j->in);
	}
}

static void input(struct job *j, const void *data, uint32_t bytes)
{
	char *grown;

	if (j->in < 0)
		return;
	if (!bytes)
		j->eof_wanted = 1;
	grown = j->pending_bytes + bytes > STDIN_MAX ? NULL
		: realloc(j->pending, j->pending_bytes + bytes + 1);
	if (!grown) {
		kill_job(j, SIGKILL);
		return;
	}
	memcpy(grown + j->pending_bytes, data, bytes);
	j->pending = grown;
	j->pending_bytes += bytes;
	feed(j);
}

static void act(const unsigned char *header, const unsigned char *payload, uint32_t bytes)
{
	int type = header[2], flags = header[3];
	uint32_t id = get32(header + 4);
	struct job *j = find(id);

	if (type == PING)
		send_hello();
	else if (type == RUN && bytes >= 4 && !j)
		run(id, flags, payload, bytes);
	else if (type == INPUT && j)
		input(j, payload, bytes);
	else if (type == KILL && j && bytes == 1)
		kill_job(j, payload[0]);
	else if (type == SIZE && j && j->terminal && j->out >= 0 && bytes == 4) {
		struct winsize size = { .ws_row = payload[0] | payload[1] << 8,
					.ws_col = payload[2] | payload[3] << 8 };

		ioctl(j->out, TIOCSWINSZ, &size);
	}
}

static void read_port(void)
{
	static unsigned char buffer[HEADER_BYTES + FRAME_MAX];
	static size_t have;
	ssize_t n = read(port, buffer + have, sizeof(buffer) - have);

	if (n <= 0) {
		/* No host at the other end: nothing tells when it is back. */
		if (n == 0 && is_connection)
			die("end of the connection");
		else if (n == 0)
			usleep(100000);
		else if (errno != EAGAIN && errno != EINTR)
			die("read from the port");
		return;
	}
	have += n;
	while (have >= HEADER_BYTES) {
		uint32_t bytes = get32(buffer + 8);

		if (buffer[0] != 'M' || buffer[1] != VERSION || bytes > FRAME_MAX) {
			/* Rest of a frame whose host went away: look for the next one. */
			memmove(buffer, buffer + 1, --have);
			continue;
		}
		if (have < HEADER_BYTES + bytes)
			break;
		act(buffer, buffer + HEADER_BYTES, bytes);
		have -= HEADER_BYTES + bytes;
		memmove(buffer, buffer + HEADER_BYTES + bytes, have);
	}
}

/* False at end of file. */
static int forward(struct job *j, int *fd, int type)
{
	static char buffer[65536];
	ssize_t n;

	if (*fd < 0)
		return 0;
	n = read(*fd, buffer, sizeof(buffer));
	if (n > 0) {
		send_frame(type, 0, j->id, buffer, n);
		return 1;
	}
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	shut(fd);	/* a terminal says EIO when its last user is gone */
	return 0;
}

/*
 * What it left in the background may hold its output open for ever: take what
 * is there now, then end.
 */
static void end(struct job *j)
{
	while (forward(j, &j->out, OUTPUT))
		;
	while (forward(j, &j->err, ERROR))
		;
	shut(&j->in), shut(&j->out), shut(&j->err);
	free(j->pending);
	send_exit(j->id, j->status, j->timed_out ? EXIT_TIMEOUT : 0);
	j->used = 0;
}

/*
 * A job that ended by itself may leave daemons. Of one that was killed nothing
 * is left when its end is told: its caller may go on with what it used.
 */
static int is_going(const struct job *j, int64_t now)
{
	return j->killed && now < j->gone_by_ms && !kill(-j->pid, 0);
}

static void reap(void)
{
	int64_t now = now_ms();
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		for (struct job *j = jobs; j < jobs + JOBS_MAX; j++) {
			if (!j->used || j->gone_by_ms || j->pid != pid)
				continue;
			j->status = WIFSIGNALED(status) ? 128 + WTERMSIG(status)
							: WEXITSTATUS(status);
			j->deadline_ms = 0;
			j->gone_by_ms = now + GONE_MS;
			if (!is_going(j, now))
				end(j);
		}
	}
}

static int open_port(const char *name)
{
	char path[300], found[64];
	glob_t names;
	int fd = -1;

	if (name[0] == '/')
		return open(name, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	/* Not /dev/virtio-ports: that is udev's, and not every image has one. */
	if (glob("/sys/class/virtio-ports/*/name", 0, NULL, &names))
		return -1;
	for (size_t i = 0; i < names.gl_pathc; i++) {
		FILE *file = fopen(names.gl_pathv[i], "re");
		char *device = names.gl_pathv[i] + strlen("/sys/class/virtio-ports/");

		if (!file)
			continue;
		if (fscanf(file, "%63s", found) == 1 && !strcmp(found, name)) {
			device[strlen(device) - strlen("/name")] = 0;
			snprintf(path, sizeof(path), "/dev/%s", device);
			fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
		}
		fclose(file);
	}
	globfree(&names);
	return fd;
}

/* Returns in a process of its own for each connection, whose socket it gives. */
static int accept_each(const char *interface, int number)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(number) };
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1, fd;

	if (listener < 0 ||
	    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    setsockopt(listener, SOL_SOCKET, SO_BINDTODEVICE, interface, strlen(interface)) ||
	    bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 16))
		die(interface);
	signal(SIGCHLD, SIG_IGN); /* nobody waits for them */
	for (;;) {
		fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0) {
			usleep(100000);
			continue;
		}
		if (!fork())
			break;
		close(fd);
	}
	close(listener);
	signal(SIGCHLD, SIG_DFL);
	/* Small frames, and a peer that may be killed at any time. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	is_connection = 1;
	return fd;
}

/*
 * Away from 0 and 1: what a job leaves in the background must not hold the
 * connection open. They stay blocking, as others may share them: reads follow poll().
 */
static void take_stdio(void)
{
	int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);

	port = fcntl(0, F_DUPFD_CLOEXEC, 3);
	port_out = fcntl(1, F_DUPFD_CLOEXEC, 3);
	if (nothing < 0 || port < 0 || port_out < 0 || dup2(nothing, 0) < 0 || dup2(nothing, 1) < 0)
		die("standard input and output");
	is_connection = 1;
}

int main(int argc, char **argv)
{
	sigset_t set;
	int children;

	if (argc > 1 && !strcmp(argv[1], "--tsc-khz"))
		return print_tsc_khz();
	if (argc == 2 && !strcmp(argv[1], "--stdio")) {
		take_stdio();
	} else {
		port = argc == 4 && !strcmp(argv[1], "--listen") ? accept_each(argv[2], atoi(argv[3]))
			: open_port(argc > 1 ? argv[1] : "mint.exec");
		port_out = port;
	}
	if (port < 0)
		return 0;
	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
	children = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
	if (children < 0)
		die("signalfd");
	send_hello();
	for (;;) {
		struct pollfd fds[2 + 3 * JOBS_MAX];
		struct signalfd_siginfo signal_info;
		int64_t now = now_ms(), wait_ms = 60000;

		fds[0] = (struct pollfd){ .fd = port, .events = POLLIN };
		fds[1] = (struct pollfd){ .fd = children, .events = POLLIN };
		for (int i = 0; i < JOBS_MAX; i++) {
			struct job *j = &jobs[i];
			struct pollfd *p = &fds[2 + 3 * i];

			p[0] = p[1] = p[2] = (struct pollfd){ .fd = -1 };
			if (j->used && j->gone_by_ms && !is_going(j, now))
				end(j);
			if (!j->used)
				continue;
			if (j->gone_by_ms)
				wait_ms = wait_ms < 10 ? wait_ms : 10;
			p[0] = (struct pollfd){ .fd = j->out, .events = POLLIN };
			p[1] = (struct pollfd){ .fd = j->err, .events = POLLIN };
			if (j->pending_bytes)
				p[2] = (struct pollfd){ .fd = j->in, .events = POLLOUT };
			if (j->deadline_ms && now >= j->deadline_ms) {
				j->timed_out = 1;
				j->deadline_ms = 0;
				kill_job(j, SIGKILL);
			} else if (j->deadline_ms && j->deadline_ms - now < wait_ms) {
				wait_ms = j->deadline_ms - now;
			}
		}
		if (poll(fds, 2 + 3 * JOBS_MAX, wait_ms) < 0 && errno != EINTR)
			die("poll");
		if (fds[0].revents)
			read_port();
		for (int i = 0; i < JOBS_MAX; i++) {
			struct pollfd *p = &fds[2 + 3 * i];

			/* A job that started in read_port() was not polled for. */
			if (p[0].revents)
				forward(&jobs[i], &jobs[i].out, OUTPUT);
			if (p[1].revents)
				forward(&jobs[i], &jobs[i].err, ERROR);
			if (p[2].revents && jobs[i].in >= 0)
				feed(&jobs[i]);
		}
		if (fds[1].revents) {
			while (read(children, &signal_info, sizeof(signal_info)) > 0)
				;
			reap();
		}
	}
}
