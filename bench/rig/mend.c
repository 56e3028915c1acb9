// SPDX-License-Identifier: Apache-2.0
/*
 * Preloaded into the rig's QEMU: mends four faults of its x86 emulator that a
 * machine of several kernels with KVM guests meets (docs/testing.md tells them).
 *
 * Debian's QEMU exports its functions for its modules. Three of them get a jump to
 * what is here, each after a look at whether its code has the shape that is
 * known; one that is not exported gets another byte, where its code is found
 * once. If not, QEMU stays as it is. One line on stderr says which.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ANY 0x100	/* in a shape: whatever byte is there */

/* QEMU's: the CPU of this thread */
extern __thread char *current_cpu __attribute__((weak));

static void (*do_interrupt_all)(void *cpu, int vector, int is_int, int error_code, long next_eip,
				int is_hw);
static int32_t exception_index;	/* its place in a CPU's state */
static bool (*bql_locked)(void);
static void (*bql_lock_impl)(const char *file, int line);
static void (*bql_unlock)(void);
static char **accelerator;		/* where QEMU keeps what the accelerator does */
static int32_t handle_interrupt;	/* the place of a function in it */
/* For plugins: the place of an x86 CPU's own state in a CPU's; 0: not known. */
int32_t mint_env;

/* endbr64; mov %edx,%r9d; sub $ENV,%rdi; r8d = ecx = edx = 0; jmp do_interrupt_all */
static const uint16_t HARDIRQ[] = {
	0xf3, 0x0f, 0x1e, 0xfa, 0x41, 0x89, 0xd1, 0x48, 0x81, 0xef, ANY, ANY, ANY, ANY,
	0x45, 0x31, 0xc0, 0x31, 0xc9, 0x31, 0xd2, 0xe9, ANY, ANY, ANY, ANY,
};
/* endbr64; push and pop %rax; sub $8,%rsp; movl $-1,EXCEPTION_INDEX(%rdi) */
static const uint16_t LOOP_EXIT[] = {
	0xf3, 0x0f, 0x1e, 0xfa, 0x50, 0x58, 0x48, 0x83, 0xec, 0x08,
	0xc7, 0x87, ANY, ANY, ANY, ANY, 0xff, 0xff, 0xff, 0xff,
};
/* endbr64; sub $8,%rsp; mov FIRST_CPU(%rip),%rdi: enough bytes for a jump */
static const uint16_t CLEAR_IGNNE[] = {
	0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x83, 0xec, 0x08, 0x48, 0x8b, 0x3d, ANY, ANY, ANY, ANY,
};

/*
 * endbr64; sub $8,%rsp; call bql_locked; test %al,%al; je to the end;
 * mov ACCELERATOR(%rip),%rax; mov HANDLE_INTERRUPT(%rax),%rax; add $8,%rsp; jmp *%rax
 */
static const uint16_t INTERRUPT[] = {
	0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x83, 0xec, 0x08, 0xe8, ANY, ANY, ANY, ANY, 0x84, 0xc0,
	0x74, ANY, 0x48, 0x8b, 0x05, ANY, ANY, ANY, ANY, 0x48, 0x8b, 0x80, ANY, ANY, ANY, ANY,
	0x48, 0x83, 0xc4, 0x08, 0xff, 0xe0,
};

/*
 * In get_ss_esp_from_tss(), which looks for a TSS that is not busy: shr $8,%eax;
 * r13 = rdx; edx = ecx; ecx = eax; and $7,%ecx; cmp $1,%ecx; jne to the end of QEMU
 */
static const uint16_t TSS_TYPE[] = {
	0xc1, 0xe8, 0x08, 0x49, 0x89, 0xd5, 0x89, 0xca, 0x89, 0xc1, 0x83, 0xe1, 0x07,
	0x83, 0xf9, 0x01, 0x0f, 0x85,
};
#define TSS_MASK	12	/* where the 7 is */
#define BUSY		2	/* a TSS's type with this bit and without it */

/* What it does, and nothing is left in exception_index for the CPU's loop to deliver again. */
static void hardirq(void *env, int vector, int is_hw)
{
	(void)env;
	do_interrupt_all(current_cpu, vector, 0, 0, 0, is_hw);
	*(int32_t *)(current_cpu + exception_index) = -1;
}

/* IGNNE is for x87 errors reported as MS-DOS wants them; nothing here does. */
static void clear_ignne(void)
{
}

/* What it does, and whoever comes without the lock gets it, where QEMU would end. */
static void interrupt(void *cpu, int mask)
{
	bool is_ours = !bql_locked();

	if (is_ours)
		bql_lock_impl(__FILE__, __LINE__);
	(*(void (**)(void *, int))(*accelerator + handle_interrupt))(cpu, mask);
	if (is_ours)
		bql_unlock();
}

static int has_shape(const uint8_t *code, const uint16_t *shape, size_t bytes)
{
	for (size_t i = 0; code && i < bytes / sizeof(*shape); i++)
		if (shape[i] != ANY && shape[i] != code[i])
			return 0;
	return code != NULL;
}

struct found {
	uint8_t *code;
	int times;
};

/* Of the program itself, which comes first: where its code has the shape. */
static int find_tss_type(struct dl_phdr_info *program, size_t bytes, void *to)
{
	struct found *found = to;

	(void)bytes;
	for (int i = 0; i < program->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &program->dlpi_phdr[i];
		uint8_t *code = (uint8_t *)program->dlpi_addr + part->p_vaddr;

		if (part->p_type != PT_LOAD || !(part->p_flags & PF_X))
			continue;
		for (size_t at = 0; at + sizeof(TSS_TYPE) / sizeof(*TSS_TYPE) <= part->p_filesz; at++)
			if (code[at] == TSS_TYPE[0] && has_shape(code + at, TSS_TYPE, sizeof(TSS_TYPE))) {
				found->code = code + at;
				found->times++;
			}
	}
	return 1;
}

/* Changes code. */
static int put(uint8_t *code, const uint8_t *bytes, size_t count)
{
	uintptr_t page = sysconf(_SC_PAGESIZE);
	uintptr_t first = (uintptr_t)code & -page;
	size_t length = (uintptr_t)code + count - first;

	if (mprotect((void *)first, length, PROT_READ | PROT_WRITE | PROT_EXEC))
		return -1;
	memcpy(code, bytes, count);
	return mprotect((void *)first, length, PROT_READ | PROT_EXEC);
}

/* movabs $TO,%rax; jmp *%rax, after the endbr64 */
static int redirect(uint8_t *code, void (*to)(void))
{
	uint8_t jump[12] = { 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0 };

	memcpy(jump + 2, &to, sizeof(to));
	return put(code + 4, jump, sizeof(jump));
}

__attribute__((constructor)) static void mend(void)
{
	uint8_t *irq = dlsym(RTLD_DEFAULT, "do_interrupt_x86_hardirq");
	uint8_t *exit = dlsym(RTLD_DEFAULT, "cpu_loop_exit_noexc");
	uint8_t *ignne = dlsym(RTLD_DEFAULT, "cpu_clear_ignne");
	uint8_t *any = dlsym(RTLD_DEFAULT, "cpu_interrupt");
	uint8_t mask = 7 & ~BUSY;
	struct found tss = { 0 };
	int32_t way;

	*(void **)&do_interrupt_all = dlsym(RTLD_DEFAULT, "do_interrupt_all");
	*(void **)&bql_locked = dlsym(RTLD_DEFAULT, "bql_locked");
	*(void **)&bql_lock_impl = dlsym(RTLD_DEFAULT, "bql_lock_impl");
	*(void **)&bql_unlock = dlsym(RTLD_DEFAULT, "bql_unlock");
	if (!bql_locked || !bql_lock_impl || !bql_unlock || !has_shape(any, INTERRUPT, sizeof(INTERRUPT)))
		goto unknown;
	if (!dlsym(RTLD_DEFAULT, "current_cpu") || !has_shape(irq, HARDIRQ, sizeof(HARDIRQ)) ||
	    !has_shape(exit, LOOP_EXIT, sizeof(LOOP_EXIT)) ||
	    !has_shape(ignne, CLEAR_IGNNE, sizeof(CLEAR_IGNNE)))
		goto unknown;
	memcpy(&way, irq + 22, sizeof(way));
	if ((uint8_t *)(uintptr_t)do_interrupt_all != irq + 26 + way)
		goto unknown;
	memcpy(&exception_index, exit + 12, sizeof(exception_index));
	memcpy(&mint_env, irq + 10, sizeof(mint_env));
	dl_iterate_phdr(find_tss_type, &tss);
	if (tss.times != 1)
		goto unknown;
	memcpy(&way, any + 20, sizeof(way));
	accelerator = (char **)(any + 24 + way);
	memcpy(&handle_interrupt, any + 27, sizeof(handle_interrupt));
	if (redirect(irq, (void (*)(void))hardirq) || redirect(ignne, clear_ignne) ||
	    redirect(any, (void (*)(void))interrupt) || put(tss.code + TSS_MASK, &mask, 1)) {
		perror("qemu-mend: mprotect");
		return;
	}
	fputs("qemu-mend: mended\n", stderr);
	return;
unknown:
	fputs("qemu-mend: not the code that is known: left as it is\n", stderr);
}
