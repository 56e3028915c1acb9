/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What count.c and pmu.c use of QEMU's interface for TCG plugins, version 7 (QEMU 11.1 has it): Debian
 * packages no header of it. Named and typed as in QEMU's documentation of it.
 *
 * QEMU refuses a plugin whose qemu_plugin_version is not among those it knows, and says
 * which these are. Version 7 gave callbacks their last argument, so no older one will do.
 */
#include <stdbool.h>
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
/* What a callback does with the CPU's registers; the last may go on at another instruction, too */
enum qemu_plugin_cb_flags {
	QEMU_PLUGIN_CB_NO_REGS,
	QEMU_PLUGIN_CB_R_REGS,
	QEMU_PLUGIN_CB_RW_REGS,
	QEMU_PLUGIN_CB_RW_REGS_PC,
};

/* GLib's, which QEMU is linked with */
typedef struct {
	uint8_t *data;
	unsigned int len;
} GByteArray;

typedef struct {
	char *data;
	unsigned int len;
} GArray;

GByteArray *g_byte_array_new(void);
GByteArray *g_byte_array_set_size(GByteArray *array, unsigned int bytes);

struct qemu_plugin_register;
typedef struct {
	struct qemu_plugin_register *handle;
	const char *name;
	const char *feature;
	bool is_readonly;
} qemu_plugin_reg_descriptor;

/* Of a memory access: which ones; what it is told of one */
enum qemu_plugin_mem_rw { QEMU_PLUGIN_MEM_R = 1, QEMU_PLUGIN_MEM_W, QEMU_PLUGIN_MEM_RW };
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_plugin_hwaddr;

/* A block of code is translated; an instruction is about to be executed */
typedef void (*tb_trans_cb_t)(struct qemu_plugin_tb *tb, void *data);
typedef void (*insn_exec_cb_t)(unsigned int vcpu, void *data);
/* Memory was accessed */
typedef void (*vcpu_mem_cb_t)(unsigned int vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *data);
/* A vCPU is there; called in its thread */
typedef void (*vcpu_init_cb_t)(unsigned int vcpu, void *data);

void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, tb_trans_cb_t cb, void *data);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn, insn_exec_cb_t cb,
					    enum qemu_plugin_cb_flags flags, void *data);
void qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(struct qemu_plugin_insn *insn, enum qemu_plugin_op op,
							 qemu_plugin_u64 entry, uint64_t operand);

void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *insn, vcpu_mem_cb_t cb, enum qemu_plugin_cb_flags flags,
				      enum qemu_plugin_mem_rw which, void *data);

void qemu_plugin_register_vcpu_init_cb(uint64_t id, vcpu_init_cb_t cb, void *data);
void qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(struct qemu_plugin_tb *tb, enum qemu_plugin_op op,
						       qemu_plugin_u64 entry, uint64_t operand);

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *insn, void *to, size_t bytes);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
/* Where QEMU itself has the instruction's bytes; NULL where that is not RAM */
void *qemu_plugin_insn_haddr(const struct qemu_plugin_insn *insn);

/* Of an access, in its callback; NULL: nothing is known of it */
const struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(qemu_plugin_meminfo_t info, uint64_t vaddr);
bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr *where);
uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *where);

/* Of the vCPU whose callback this is; a GArray of qemu_plugin_reg_descriptor, the caller's */
GArray *qemu_plugin_get_registers(void);
bool qemu_plugin_read_register(struct qemu_plugin_register *handle, GByteArray *appended_to);
bool qemu_plugin_write_register(struct qemu_plugin_register *handle, GByteArray *value);
void qemu_plugin_set_pc(uint64_t vaddr) __attribute__((noreturn));

struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t row_bytes);
uint64_t qemu_plugin_u64_get(qemu_plugin_u64 entry, unsigned int vcpu);
