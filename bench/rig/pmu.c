// SPDX-License-Identifier: Apache-2.0
/*
 * A plugin of QEMU's emulator: the performance counters that it lacks. They are modelled: what they
 * count is what the emulator does.
 *
 * usage: qemu-system-x86_64 -plugin pmu.so[,speed=N][,caches=BYTES,node=CPUS:START-END[:...],node=...] ...
 *
 * Each vCPU gets the four counters of AMD's K7 and later (AMD64 APM, volume 2, 13.2: PerfEvtSel0-3 at
 * 0xc0010000, PerfCtr0-3 at 0xc0010004, and RDPMC): QEMU has none, and its RDMSR of them is answered
 * here. They count
 *	0xc0	retired instructions: when a block of them begins, so that the rest of one that is left
 *		in its middle is counted, too
 *	0x76	cycles: one an instruction
 *	0x43, 0x44	lines that the data cache gets, by their source: 0 without "caches". Of the unit
 *		masks memory's alone (0x08 of the CPU's own NUMA node, 0x40 of another); and of guests
 *		alone, as what the host does leaves no trace in a modelled cache (caches.c)
 * and 0 for all other events. With "speed" they count each instruction and each line that often: as on a
 * CPU that does in a second N times what the emulator does. The bits for guest and host alone (40 and
 * 41) are obeyed; user and system (16 and 17) are not: both count. A counter that overflows interrupts
 * nobody. A guest's own RDMSR is left alone: its hypervisor answers it.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "caches.h"
#include "plugin.h"

PLUGIN_EXPORT int qemu_plugin_version = PLUGIN_VERSION;

#define VCPUS		64
#define COUNTERS	4
#define COUNTER_BITS	48
#define SELECT0		0xc0010000u
#define COUNTER0	0xc0010004u
/* Bits of PerfEvtSel */
#define ENABLED		(1ull << 22)
#define GUEST_ONLY	(1ull << 40)
#define HOST_ONLY	(1ull << 41)
#define EVENT(select)	((unsigned int)(((select) & 0xff) | ((select) >> 24 & 0xf00)))
#define INSTRUCTIONS	0xc0
#define CYCLES		0x76
#define FILLS_ASKED	0x43
#define FILLS		0x44
#define UNIT_MASK(select) ((unsigned int)((select) >> 8 & 0xff))
/* Bytes of RDMSR, WRMSR and RDPMC; of VMRUN */
#define SHORT		2
#define VMRUN		3
/* Instructions after a VMRUN, where a guest's exits come to */
#define EXITS		16
#define PAGE		4096

struct counter {
	uint64_t select, base, at;	/* base: what it had when its select had counted "at" */
};

/* QEMU's: the CPU of this thread, and what loads its flags; mend.c's: where in it the CPU's own state is */
extern __thread char *current_cpu __attribute__((weak));
extern void cpu_load_eflags(void *env, int flags, int changed) __attribute__((weak));
extern const int32_t mint_env __attribute__((weak));

/* Changed by its own thread alone */
static struct vcpu {
	struct qemu_plugin_register *rax, *rcx, *rdx;
	GByteArray *bytes;
	struct counter counters[COUNTERS];
	bool in_guest;
	uint64_t entered, guests;	/* instructions: when it entered; of guests until then */
} vcpus[VCPUS];

static qemu_plugin_u64 counts;
static uint64_t speed = 1;
/* Of this thread; none or more than one if there is not one for each vCPU */
static _Thread_local struct vcpu *mine;
static _Thread_local unsigned int mine_count;
static const void *_Atomic exits[EXITS];
static pthread_mutex_t exits_lock = PTHREAD_MUTEX_INITIALIZER;

static void give_up(const char *why)
{
	fprintf(stderr, "mint-pmu: %s\n", why);
	abort();
}

static uint64_t get(struct vcpu *me, struct qemu_plugin_register *which)
{
	uint64_t value;

	g_byte_array_set_size(me->bytes, 0);
	if (!qemu_plugin_read_register(which, me->bytes) || me->bytes->len < sizeof(value))
		give_up("a register cannot be read");
	memcpy(&value, me->bytes->data, sizeof(value));
	return value;
}

static void set(struct vcpu *me, struct qemu_plugin_register *which, uint64_t value)
{
	g_byte_array_set_size(me->bytes, sizeof(value));
	memcpy(me->bytes->data, &value, sizeof(value));
	if (!qemu_plugin_write_register(which, me->bytes))
		give_up("a register cannot be written");
}

static void begin(unsigned int vcpu, void *unused)
{
	struct vcpu *me = &vcpus[vcpu];
	GArray *all = qemu_plugin_get_registers();
	qemu_plugin_reg_descriptor *one = (void *)all->data;

	(void)unused;
	if (vcpu >= VCPUS)
		give_up("too many vCPUs");
	mine = me;
	mine_count++;
	me->bytes = g_byte_array_new();
	for (unsigned int i = 0; i < all->len; i++) {
		if (!strcmp(one[i].name, "rax"))
			me->rax = one[i].handle;
		if (!strcmp(one[i].name, "rcx"))
			me->rcx = one[i].handle;
		if (!strcmp(one[i].name, "rdx"))
			me->rdx = one[i].handle;
	}
	if (!me->rax || !me->rcx || !me->rdx)
		give_up("a vCPU has no rax, rcx or rdx");
}

/* What a counter with this select has seen since the machine began. */
static uint64_t seen(unsigned int vcpu, uint64_t select)
{
	struct vcpu *me = &vcpus[vcpu];
	uint64_t all = qemu_plugin_u64_get(counts, vcpu);
	uint64_t guests = me->guests + (me->in_guest ? all - me->entered : 0);

	if (EVENT(select) == FILLS_ASKED || EVENT(select) == FILLS)
		return (select & HOST_ONLY) && !(select & GUEST_ONLY) ? 0 : caches_fills(vcpu, UNIT_MASK(select));
	if (EVENT(select) != INSTRUCTIONS && EVENT(select) != CYCLES)
		return 0;
	if ((select & GUEST_ONLY) && !(select & HOST_ONLY))
		return guests;
	if ((select & HOST_ONLY) && !(select & GUEST_ONLY))
		return all - guests;
	return all;
}

static uint64_t value(unsigned int vcpu, unsigned int number)
{
	struct counter *one = &vcpus[vcpu].counters[number];
	uint64_t more = one->select & ENABLED ? speed * (seen(vcpu, one->select) - one->at) : 0;

	return (one->base + more) & ((1ull << COUNTER_BITS) - 1);
}

static void begin_at(unsigned int vcpu, unsigned int number, uint64_t select, uint64_t base)
{
	vcpus[vcpu].counters[number] =
		(struct counter){ .select = select, .base = base, .at = seen(vcpu, select) };
}

/*
 * Goes on after an instruction that is done. QEMU knows what its flags follow from only at the end of a
 * block, and this is in the middle of one: an interrupt here would find any of them set, interrupts open,
 * too. So the arithmetic ones are cleared, which no compiler takes to outlive these instructions.
 */
static void go_on(void *insn)
{
	cpu_load_eflags(current_cpu + mint_env, 0, 0);
	qemu_plugin_set_pc((uintptr_t)insn + SHORT);
}

static void answer(unsigned int vcpu, uint64_t is, void *insn)
{
	set(&vcpus[vcpu], vcpus[vcpu].rax, (uint32_t)is);
	set(&vcpus[vcpu], vcpus[vcpu].rdx, is >> 32);
	go_on(insn);
}

static void at_rdmsr(unsigned int vcpu, void *insn)
{
	struct vcpu *me = &vcpus[vcpu];
	uint32_t which = me->in_guest ? 0 : (uint32_t)get(me, me->rcx);

	if (which >= SELECT0 && which < SELECT0 + COUNTERS)
		answer(vcpu, me->counters[which - SELECT0].select, insn);
	if (which >= COUNTER0 && which < COUNTER0 + COUNTERS)
		answer(vcpu, value(vcpu, which - COUNTER0), insn);
}

static void at_wrmsr(unsigned int vcpu, void *insn)
{
	struct vcpu *me = &vcpus[vcpu];
	uint32_t which = me->in_guest ? 0 : (uint32_t)get(me, me->rcx);
	unsigned int number = which & (COUNTERS - 1);
	uint64_t is;

	if (which < SELECT0 || which >= COUNTER0 + COUNTERS)
		return;
	is = (uint32_t)get(me, me->rax) | get(me, me->rdx) << 32;
	if (which < COUNTER0)
		begin_at(vcpu, number, is, value(vcpu, number));
	else
		begin_at(vcpu, number, me->counters[number].select, is);
	go_on(insn);
}

static void at_rdpmc(unsigned int vcpu, void *insn)
{
	struct vcpu *me = &vcpus[vcpu];
	uint32_t which = me->in_guest ? COUNTERS : (uint32_t)get(me, me->rcx);

	if (which < COUNTERS)
		answer(vcpu, value(vcpu, which), insn);
}

static void at_vmrun(unsigned int vcpu, void *unused)
{
	(void)unused;
	vcpus[vcpu].in_guest = true;
	vcpus[vcpu].entered = qemu_plugin_u64_get(counts, vcpu);
}

/* The block that has been counted already is the host's. */
static void at_exit_of_guest(unsigned int vcpu, void *instructions)
{
	struct vcpu *me = &vcpus[vcpu];

	if (me->in_guest)
		me->guests += qemu_plugin_u64_get(counts, vcpu) - me->entered - (uintptr_t)instructions;
	me->in_guest = false;
}

static void at_access(unsigned int vcpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *unused)
{
	const struct qemu_plugin_hwaddr *where;

	(void)unused;
	if (!vcpus[vcpu].in_guest)
		return;
	where = qemu_plugin_get_hwaddr(info, vaddr);
	if (where && !qemu_plugin_hwaddr_is_io(where))
		caches_access(vcpu, qemu_plugin_hwaddr_phys_addr(where));
}

/*
 * Whether a block that is translated may be a guest's: QEMU's own blocks are of one or the other, by a
 * flag of theirs (HF_GUEST_MASK), and it translates what the CPU is about to execute. A CPU that has
 * left its guest still passes for one in its first block.
 */
static bool may_be_guests(void)
{
	return mine_count != 1 || mine->in_guest;
}

/*
 * By where QEMU has it: a guest may have other code at the same address. Known before it is
 * translated, as a VMRUN is executed before what follows it.
 */
static bool is_exit(const void *place)
{
	for (int i = 0; i < EXITS; i++)
		if (place && atomic_load(&exits[i]) == place)
			return true;
	return false;
}

static void know_exit(const struct qemu_plugin_insn *vmrun)
{
	const char *place = qemu_plugin_insn_haddr(vmrun);
	int i = 0;

	if (!place || (qemu_plugin_insn_vaddr(vmrun) + VMRUN) % PAGE < VMRUN)
		give_up("a VMRUN is no RAM's, or at the end of a page");
	pthread_mutex_lock(&exits_lock);
	while (i < EXITS && atomic_load(&exits[i]) && atomic_load(&exits[i]) != place + VMRUN)
		i++;
	if (i == EXITS)
		give_up("there are too many VMRUNs");
	atomic_store(&exits[i], place + VMRUN);
	pthread_mutex_unlock(&exits_lock);
}

static void translated(struct qemu_plugin_tb *tb, void *unused)
{
	static const uint8_t vmrun[VMRUN] = { 0x0f, 0x01, 0xd8 };
	size_t count = qemu_plugin_tb_n_insns(tb);
	bool accesses = caches_are_there() && may_be_guests();
	uint8_t bytes[VMRUN];

	(void)unused;
	qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, QEMU_PLUGIN_INLINE_ADD_U64, counts, count);
	for (size_t i = 0; i < count; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		size_t size = qemu_plugin_insn_size(insn);
		void *vaddr = (void *)(uintptr_t)qemu_plugin_insn_vaddr(insn);
		insn_exec_cb_t cb = NULL;

		if (!i && is_exit(qemu_plugin_insn_haddr(insn)))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, at_exit_of_guest, QEMU_PLUGIN_CB_NO_REGS,
							       (void *)(uintptr_t)count);
		if (accesses)
			qemu_plugin_register_vcpu_mem_cb(insn, at_access, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW,
							 NULL);
		if (size != SHORT && size != VMRUN)
			continue;
		if (qemu_plugin_insn_data(insn, bytes, size) != size || bytes[0] != 0x0f)
			continue;
		if (size == VMRUN && !memcmp(bytes, vmrun, VMRUN)) {
			know_exit(insn);
			qemu_plugin_register_vcpu_insn_exec_cb(insn, at_vmrun, QEMU_PLUGIN_CB_NO_REGS, NULL);
			continue;
		}
		if (size == SHORT)
			cb = bytes[1] == 0x32 ? at_rdmsr :
			     bytes[1] == 0x30 ? at_wrmsr :
			     bytes[1] == 0x33 ? at_rdpmc : NULL;
		if (cb)
			qemu_plugin_register_vcpu_insn_exec_cb(insn, cb, QEMU_PLUGIN_CB_RW_REGS_PC, vaddr);
	}
}

static bool speed_argument(const char *argument)
{
	static const char name[] = "speed=";
	char *end;

	if (strncmp(argument, name, sizeof(name) - 1))
		return false;
	speed = strtoull(argument + sizeof(name) - 1, &end, 10);
	return speed && !*end;
}

PLUGIN_EXPORT int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv)
{
	const char *why;

	(void)info;
	if (!&mint_env || !mint_env || !cpu_load_eflags) {
		fputs("mint-pmu: this QEMU is not mended (mend.c), and its flags cannot be loaded\n", stderr);
		return -1;
	}
	for (int i = 0; i < argc; i++) {
		if (!speed_argument(argv[i]) && !caches_argument(argv[i])) {
			fprintf(stderr, "mint-pmu: %s: no argument, or one that makes no sense\n", argv[i]);
			return -1;
		}
	}
	why = caches_begin();
	if (why) {
		fprintf(stderr, "mint-pmu: %s\n", why);
		return -1;
	}
	counts.score = qemu_plugin_scoreboard_new(sizeof(uint64_t));
	qemu_plugin_register_vcpu_init_cb(id, begin, NULL);
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated, NULL);
	return 0;
}
