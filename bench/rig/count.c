// SPDX-License-Identifier: Apache-2.0
/*
 * A plugin of QEMU's emulator: counts the instructions of each vCPU, and writes down the
 * count of the one that comes to a marker (marker.h).
 *
 * usage: qemu-system-x86_64 -plugin count.so,out=FILE ...
 *
 * One line a marker, appended to FILE (or a pipe): "VCPU NUMBER COUNT", in decimal. COUNT
 * is of that vCPU alone, whatever ran on it (node, guest, any ring); markers are not
 * counted. An instruction counts when it begins: once more if it faults and is begun
 * again, one for up to 65536 turns of a REP, and none while a vCPU sleeps.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "marker.h"
#include "plugin.h"

PLUGIN_EXPORT int qemu_plugin_version = PLUGIN_VERSION;

static qemu_plugin_u64 counts;
static int out;

/* One write a line: whole lines also from several threads at once. */
static void at_marker(unsigned int vcpu, void *number)
{
	char line[64];
	int bytes = snprintf(line, sizeof(line), "%u %" PRIuPTR " %" PRIu64 "\n", vcpu, (uintptr_t)number,
			     qemu_plugin_u64_get(counts, vcpu));

	if (write(out, line, bytes) != bytes)
		perror("mint-count: a marker is lost");
}

static bool is_marker(const struct qemu_plugin_insn *insn, uint32_t *number)
{
	static const uint8_t nop[] = { 0x0f, 0x1f, 0x84, 0x00 };
	uint8_t bytes[MARKER_BYTES];
	uint32_t displacement;

	if (qemu_plugin_insn_size(insn) != sizeof(bytes) ||
	    qemu_plugin_insn_data(insn, bytes, sizeof(bytes)) != sizeof(bytes) || memcmp(bytes, nop, sizeof(nop)))
		return false;
	memcpy(&displacement, bytes + sizeof(nop), sizeof(displacement));
	*number = displacement & 0xffff;
	return (displacement & ~0xffffu) == MARKER_MAGIC;
}

static void translated(struct qemu_plugin_tb *tb, void *unused)
{
	uint32_t number;

	(void)unused;
	for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);

		/* One by one, not by the block: that may be left in its middle. */
		if (is_marker(insn, &number))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, at_marker, QEMU_PLUGIN_CB_NO_REGS,
							       (void *)(uintptr_t)number);
		else
			qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(insn, QEMU_PLUGIN_INLINE_ADD_U64,
									    counts, 1);
	}
}

PLUGIN_EXPORT int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv)
{
	(void)info;
	if (argc != 1 || strncmp(argv[0], "out=", 4)) {
		fputs("mint-count: one argument: out=FILE\n", stderr);
		return -1;
	}
	out = open(argv[0] + 4, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	if (out < 0) {
		perror(argv[0] + 4);
		return -1;
	}
	counts.score = qemu_plugin_scoreboard_new(sizeof(uint64_t));
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated, NULL);
	return 0;
}
