/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What count.c uses of QEMU's interface for TCG plugins, version 7 (QEMU 11.1 has it): Debian
 * packages no header of it. Named and typed as in QEMU's documentation of it.
 *
 * QEMU refuses a plugin whose qemu_plugin_version is not among those it knows, and says
 * which these are. Version 7 gave callbacks their last argument, so no older one will do.
 */
#include <stddef.h>
#include <stdint.h>

/* A test gives another. */
#ifndef PLUGIN_VERSION
#define PLUGIN_VERSION	7
#endif
#define PLUGIN_EXPORT	__attribute__((visibility("default")))

struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_scoreboard;

/* A counter of each vCPU's own: a place in the rows of a scoreboard. */
typedef struct {
	struct qemu_plugin_scoreboard *score;
	size_t offset;
} qemu_plugin_u64;

enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };
enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };

/* A block of code is translated; an instruction is about to be executed */
typedef void (*tb_trans_cb_t)(struct qemu_plugin_tb *tb, void *data);
typedef void (*insn_exec_cb_t)(unsigned int vcpu, void *data);

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, tb_trans_cb_t cb, void *data);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn, insn_exec_cb_t cb,
					    enum qemu_plugin_cb_flags flags, void *data);
void qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(struct qemu_plugin_insn *insn, enum qemu_plugin_op op,
							 qemu_plugin_u64 entry, uint64_t operand);

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *insn, void *to, size_t bytes);

struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t row_bytes);
uint64_t qemu_plugin_u64_get(qemu_plugin_u64 entry, unsigned int vcpu);
