// SPDX-License-Identifier: Apache-2.0
/*
 * Five faults of QEMU's x86 emulator, each shown by a machine with nothing else on it.
 *
 * The first CPU runs an SVM guest COUNT times. The command line is "FAULT COUNT":
 *
 * twice  an interrupt is injected into the guest, whose interrupts are closed, while
 *        another CPU takes a card's memory off the memory map and puts it back. Counted
 *        is how often the guest's handler is entered.
 * flag   the guest has nested paging, and a page of its own where the host has another
 *        one; the other CPUs restore their FPU's state meanwhile. Either sees its own.
 * lost   the guest has a virtual interrupt pending; another CPU sends interrupts, each
 *        after the last one came. None may stay away.
 * priority  the guest has a virtual interrupt pending, and writes its task priority (CR8).
 *        QEMU lives on.
 * busy   the guest has 32 bits, and a TSS that is busy, as KVM loads it; its program calls
 *        its kernel. QEMU lives on.
 *
 * And one that a plugin could make, which answers instructions itself (pmu.c); without it there is
 * nothing to be seen:
 *
 * counter  a performance counter is written and read, interrupts closed. They are closed still.
 *
 * A line on the serial port says how it ended, and QEMU's exit status (isa-debug-exit).
 */
#include <stdint.h>

#include "faults.h"

/* What is written to isa-debug-exit; QEMU's exit status is twice that, and one. */
enum { NONE = 16, TWICE, FLAG, LOST, HUNG, UNABLE };
/* AMD's counters; what is written into one, and the flags that say whether interrupts are open, and traps */
#define COUNTER		"0xc0010004"
#define COUNTED		0x12345
#define OPEN_FLAGS	0x300

#define DEBUG_EXIT	0xf4
#define SERIAL		0x3f8
#define INJECTED	0x40
#define IPI		0x50
#define VIRTUAL		0x60
#define CALL		0x70
#define HOST_PAGE	0x1051
#define GUEST_PAGE	0x6e57
/* A first CPU that gets no further for so many ticks has hung: some 20 s. */
#define HUNG_TSC	(1ull << 36)
/* An interrupt that is not there when so many guests have run is lost. */
#define LOST_RUNS	1000
/* Turns of a loop before the next one is sent: about as long as a guest lives. */
#define MOMENTS		2048

/* Memory that no cache of the host holds as a whole. */
#define FAR		0x800000
#define FAR_BYTES	(16u << 20)
#define STRIDE		4160

/* Of the VMCB. */
enum {
	INTERCEPT_1 = 0x0c, INTERCEPT_2 = 0x10, ASID = 0x58, TLB_CTL = 0x5c, INT_CTL = 0x60, EXIT_CODE = 0x70,
	NESTED_CTL = 0x90, EVENT_INJ = 0xa8, NESTED_CR3 = 0xb0,
	ES = 0x400, CS = 0x410, SS = 0x420, DS = 0x430, GDTR = 0x460, IDTR = 0x480, TR = 0x490,
	CPL = 0x4cb, GUEST_EFER = 0x4d0, CR4 = 0x548, CR3 = 0x550, CR0 = 0x558, DR7 = 0x560, DR6 = 0x568,
	RFLAGS = 0x570, RIP = 0x578, RSP = 0x5d8, PAT = 0x668,
};
#define FLUSH_ALL	1
#define EXIT_VMMCALL	0x81
#define EVENT_VALID	(1u << 31)
#define V_IRQ		(1u << 8)
#define V_IGN_TPR	(1u << 20)
#define V_INTR_MASKING	(1u << 24)

#define MSR_EFER	0xc0000080
#define EFER_SVME	(1u << 12)
#define MSR_HSAVE	0xc0010117
#define MSR_PAT		0x277

struct table {
	uint16_t limit;
	uint64_t base;
} __attribute__((packed));

extern const struct table gdt_pointer, idt_pointer;
extern const char trampoline[], trampoline_end[];
extern const char injected_entry[], guest_stop[], guest_look[], guest_priority[], guest_program[], guest_kernel[], ipi_entry[], exception_entry[];
extern uint64_t host_pml4[];
extern uint32_t start_info;
extern volatile uint32_t cpus;
void run_guest(void *vmcb);

/* start.S counts in them. */
volatile uint32_t deliveries, received, guest_saw;
uint64_t idt[512] __attribute__((aligned(16)));

static uint8_t vmcb[4096] __attribute__((aligned(4096)));
static uint8_t hsave[4096] __attribute__((aligned(4096)));
static uint8_t guest_stack[4096] __attribute__((aligned(4096)));
static uint64_t nested_pml4[512] __attribute__((aligned(4096)));
static uint64_t nested_pdpt[512] __attribute__((aligned(4096)));
static uint64_t nested_pd[512] __attribute__((aligned(4096)));
static const char *fault;
static volatile uint32_t runs, go;

static inline void outb(uint16_t port, uint8_t value)
{
	asm volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static inline void outl(uint16_t port, uint32_t value)
{
	asm volatile("outl %0, %1" : : "a"(value), "Nd"(port));
}

static inline uint32_t inl(uint16_t port)
{
	uint32_t value;

	asm volatile("inl %1, %0" : "=a"(value) : "Nd"(port));
	return value;
}

static inline uint64_t rdmsr(uint32_t msr)
{
	uint32_t low, high;

	asm volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(msr));
	return (uint64_t)high << 32 | low;
}

static inline void wrmsr(uint32_t msr, uint64_t value)
{
	asm volatile("wrmsr" : : "c"(msr), "a"((uint32_t)value), "d"((uint32_t)(value >> 32)));
}

static inline uint64_t tsc(void)
{
	uint32_t low, high;

	asm volatile("rdtsc" : "=a"(low), "=d"(high));
	return (uint64_t)high << 32 | low;
}

static inline void relax(void)
{
	asm volatile("pause" : : : "memory");
}

static void say(const char *text)
{
	for (; *text; text++)
		outb(SERIAL, *text);
}

static void say_number(uint32_t number)
{
	if (number >= 10)
		say_number(number / 10);
	outb(SERIAL, '0' + number % 10);
}

static void __attribute__((noreturn)) end(int code, const char *text)
{
	say(fault ? fault : "");
	say(": ");
	say_number(runs);
	say(" runs, ");
	say_number(received);
	say(" interrupts: ");
	say(text);
	say("\n");
	for (;;)
		outb(DEBUG_EXIT, code);
}

void unexpected(void)
{
	end(UNABLE, "an exception that nobody asked for");
}

static volatile uint32_t *apic(uint32_t offset)
{
	return (volatile uint32_t *)(uintptr_t)(0xfee00000 + offset);
}

static void send(uint32_t to, uint32_t command)
{
	*apic(0x310) = to << 24;
	*apic(0x300) = command;
}

static void wait_tsc(uint64_t ticks)
{
	for (uint64_t from = tsc(); tsc() - from < ticks;)
		relax();
}

/* The interrupt gate of a vector. */
static void gate(int vector, const char *entry)
{
	uint64_t address = (uintptr_t)entry;

	idt[2 * vector] = (address & 0xffff) | 0x08 << 16 | 0x8eull << 40 | (address >> 16 & 0xffff) << 48;
	idt[2 * vector + 1] = address >> 32;
}

static void put(int offset, uint64_t value)
{
	*(volatile uint64_t *)(vmcb + offset) = value;
}

static void put32(int offset, uint32_t value)
{
	*(volatile uint32_t *)(vmcb + offset) = value;
}

static void put_segment(int offset, uint16_t selector, uint16_t attributes)
{
	put(offset, (uint64_t)0xffffffff << 32 | attributes << 16 | selector);
}

static void put_table(int offset, const struct table *table)
{
	put32(offset + 4, table->limit);
	put(offset + 8, table->base);
}

/* A guest of the host's own state and code, with nested paging. */
static void prepare_guest(void)
{
	uint64_t cr0, cr4;

	nested_pml4[0] = (uintptr_t)nested_pdpt | 7;
	nested_pdpt[0] = (uintptr_t)nested_pd | 7;
	for (uint64_t i = 1; i < 4; i++)
		nested_pdpt[i] = i << 30 | 0x87;
	for (uint64_t i = 0; i < 512; i++)
		nested_pd[i] = i << 21 | 0x87;
	nested_pd[LOOK_AT >> 21] = (LOOK_AT + (1 << 21)) | 0x87;

	asm("mov %%cr0, %0" : "=r"(cr0));
	asm("mov %%cr4, %0" : "=r"(cr4));
	put32(INTERCEPT_1, 1u << 31);		/* shutdown */
	put32(INTERCEPT_2, 3);			/* VMRUN, VMMCALL */
	put32(ASID, 1);
	put(NESTED_CTL, 1);
	put(NESTED_CR3, (uintptr_t)nested_pml4);
	put_segment(CS, 0x08, 0xa9b);
	put_segment(DS, 0x10, 0xc93);
	put_segment(ES, 0x10, 0xc93);
	put_segment(SS, 0x10, 0xc93);
	put_table(GDTR, &gdt_pointer);
	put_table(IDTR, &idt_pointer);
	put(GUEST_EFER, rdmsr(MSR_EFER));
	put(CR0, cr0);
	put(CR3, (uintptr_t)host_pml4);
	put(CR4, cr4);
	put(DR6, 0xffff0ff0);
	put(DR7, 0x400);
	put(PAT, rdmsr(MSR_PAT));
}

/* Interrupts are closed in it, unless it opens them. */
static void run(const char *entry)
{
	put(RFLAGS, 2);
	put(RIP, (uintptr_t)entry);
	put(RSP, (uintptr_t)guest_stack + sizeof(guest_stack));
	run_guest(vmcb);
	runs++;
}

static int exited_as_asked(void)
{
	return *(volatile uint64_t *)(vmcb + EXIT_CODE) == EXIT_VMMCALL;
}

static void run_twice(void)
{
	deliveries = 0;
	put32(INT_CTL, V_INTR_MASKING);
	put32(EVENT_INJ, EVENT_VALID | INJECTED);
	run(guest_stop);
	if (!exited_as_asked() || !deliveries)
		end(UNABLE, "the guest did not do what it is for");
	if (deliveries > 1)
		end(TWICE, "an injected interrupt came twice");
}

static void run_flag(void)
{
	volatile uint32_t *page = (volatile uint32_t *)LOOK_AT;

	guest_saw = 0;
	put32(INT_CTL, V_INTR_MASKING);
	run(guest_look);
	if (*page == GUEST_PAGE)
		end(FLAG, "the host is in the guest's paging");
	if (guest_saw == HOST_PAGE)
		end(FLAG, "the guest is in the host's paging");
	if (!exited_as_asked() || guest_saw != GUEST_PAGE)
		end(FLAG, "the guest did not do what it is for");
}

static void run_lost(void)
{
	put32(INT_CTL, V_INTR_MASKING | V_IGN_TPR | V_IRQ);
	put32(INT_CTL + 4, VIRTUAL);
	/* QEMU empties its TLB: many stores, just before it notes the virtual interrupt. */
	put32(TLB_CTL, FLUSH_ALL);
	run(guest_stop);
	if (!exited_as_asked())
		end(UNABLE, "the guest did not do what it is for");
	asm volatile("sti; nop; nop; cli" : : : "memory");
}

static void run_priority(void)
{
	put32(INT_CTL, V_INTR_MASKING | V_IRQ);
	put32(INT_CTL + 4, VIRTUAL);
	run(guest_priority);
	if (!exited_as_asked())
		end(UNABLE, "the guest did not do what it is for");
}

/* From a program of 32 bits to its kernel, by the stack that the TSS names. */
static void run_busy(void)
{
	static uint32_t gates[2 * (CALL + 1)] __attribute__((aligned(8))), tss[26];
	static uint8_t kernel_stack[256] __attribute__((aligned(16)));
	uint32_t kernel = (uintptr_t)guest_kernel;

	gates[2 * CALL] = 0x18 << 16 | (kernel & 0xffff);
	gates[2 * CALL + 1] = (kernel & 0xffff0000) | 0xee00;
	tss[1] = (uintptr_t)kernel_stack + sizeof(kernel_stack);
	tss[2] = 0x10;
	put_table(IDTR, &(struct table){ sizeof(gates) - 1, (uintptr_t)gates });
	put_segment(TR, 0x30, 0x08b);
	put32(TR + 4, sizeof(tss) - 1);
	put(TR + 8, (uintptr_t)tss);
	put_segment(CS, 0x23, 0xcfb);
	put_segment(DS, 0x2b, 0xcf3);
	put_segment(ES, 0x2b, 0xcf3);
	put_segment(SS, 0x2b, 0xcf3);
	*(volatile uint8_t *)(vmcb + CPL) = 3;
	put(GUEST_EFER, EFER_SVME);
	put(CR0, 0x11);
	put(CR4, 0);
	put32(INT_CTL, V_INTR_MASKING);
	/* VMRUN leaves TR as it is, and the host never uses its own */
	asm volatile("vmload %%rax" : : "a"(vmcb) : "memory");
	run(guest_program);
	if (!exited_as_asked())
		end(UNABLE, "the guest did not do what it is for");
}

/*
 * Flags are loaded, which begins a block; what they follow from is another instruction then, whose operand
 * has the bits of those that are closed.
 */
#define COUNTER_FLAGS(before, instruction) ({						\
	uint64_t flags_ = 2;								\
	uint32_t low_ = COUNTED, high_ = 0, sum_ = 0;					\
	asm volatile("movl $" before ", %%ecx; pushq %0; popfq; addl %4, %3; " instruction "; pushfq; popq %0"	\
		     : "+r"(flags_), "+a"(low_), "+d"(high_), "+r"(sum_) : "r"(OPEN_FLAGS) : "ecx", "memory");	\
	value = low_;									\
	flags_; })

static void run_counter(void)
{
	uint32_t value;
	uint64_t flags = COUNTER_FLAGS(COUNTER, "wrmsr");

	flags |= COUNTER_FLAGS(COUNTER, "rdmsr");
	if (value != COUNTED)
		end(UNABLE, "there is no counter");
	flags |= COUNTER_FLAGS("0", "rdpmc");
	if (value != COUNTED)
		end(UNABLE, "there is no counter");
	if (flags & OPEN_FLAGS)
		end(FLAG, "a counter leaves other flags");
	runs++;
}

/* Another CPU calls it again and again: does the first one get on? */
static void watch(void)
{
	static uint64_t since;
	static uint32_t seen;

	if (seen != runs || !since) {
		seen = runs;
		since = tsc();
	} else if (tsc() - since > HUNG_TSC) {
		end(HUNG, "the first CPU hangs");
	}
}

/* Its configuration address, as port 0xcf8 takes it. */
static uint32_t card_with_memory(void)
{
	for (uint32_t device = 0; device < 256; device++) {
		uint32_t address = 1u << 31 | device << 8;

		outl(0xcf8, address);
		if (inl(0xcfc) == 0xffffffff)
			continue;
		outl(0xcf8, address | 0x0c);
		if (inl(0xcfc) >> 16 & 0x7f)
			continue;	/* a bridge */
		outl(0xcf8, address | 4);
		if (!(inl(0xcfc) & 2))
			continue;
		for (uint32_t bar = 0x10; bar < 0x28; bar += 4) {
			outl(0xcf8, address | bar);
			if (inl(0xcfc) > 0xfffff && !(inl(0xcfc) & 1))
				return address;
		}
	}
	end(UNABLE, "no card with memory");
}

static void disturb_twice(void)
{
	uint32_t command;

	outl(0xcf8, card_with_memory() | 4);
	command = inl(0xcfc) & 0xffff;
	for (;;) {
		outl(0xcfc, command & ~2u);
		outl(0xcfc, command);
		watch();
	}
}

static void disturb_flag(uint32_t cpu)
{
	static uint8_t states[MAX_CPUS][32];
	volatile uint8_t *far = (volatile uint8_t *)FAR;
	uint8_t *state = states[cpu];
	uint32_t at = cpu * (FAR_BYTES / MAX_CPUS);

	asm volatile("fnstenv (%0)" : : "r"(state) : "memory");
	for (;;) {
		/*
		 * FXRSTOR and XRSTOR end in the same place; this one comes there soonest.
		 * Behind a store that the host's cache has not, the next ones wait: what
		 * QEMU has read meanwhile gets old.
		 */
		for (int i = 0; i < 10000; i++) {
			far[at = (at + STRIDE) % FAR_BYTES] = 1;
			asm volatile("fldenv (%0)" : : "r"(state) : "memory");
		}
		if (cpu == 1)
			watch();
	}
}

static void disturb_lost(void)
{
	for (uint32_t sent = 1, random = 1;; sent++) {
		uint32_t first;

		/* At any moment of the guest's life, not always at the same. */
		random = random * 1103515245 + 12345;
		for (uint32_t i = (random >> 16) % MOMENTS; i; i--)
			asm volatile("");
		send(0, 0x4000 | IPI);
		for (first = runs; received != sent;) {
			/* Looked at again: this CPU may have stood still since. */
			if (runs - first > LOST_RUNS && received != sent)
				end(LOST, "an interrupt was lost");
			watch();
		}
	}
}

static void first_cpu(void)
{
	const char *word = *(const char **)(uintptr_t)(start_info + 24);
	uint32_t a = 0x80000001, c = 0, count = 0;

	for (int vector = 0; vector < 256; vector++)
		gate(vector, exception_entry);
	gate(INJECTED, injected_entry);
	gate(IPI, ipi_entry);

	fault = *word == 't' ? "twice" : *word == 'f' ? "flag" : *word == 'l' ? "lost" :
		*word == 'p' ? "priority" : *word == 'b' ? "busy" :
		*word == 'c' ? "counter" : (const char *)0;
	while (*word && *word != ' ')
		word++;
	while (*word == ' ')
		word++;
	for (; *word >= '0' && *word <= '9'; word++)
		count = count * 10 + *word - '0';
	if (!fault || !count)
		end(UNABLE, "-append 'twice|flag|lost|priority|busy|counter COUNT'");
	asm("cpuid" : "+a"(a), "+c"(c) : : "rbx", "rdx");
	if (!(c & 4))
		end(UNABLE, "this CPU has no SVM");

	/* No interrupt of the board's: the firmware left its timer on. */
	outb(0x21, 0xff);
	outb(0xa1, 0xff);
	wrmsr(MSR_EFER, rdmsr(MSR_EFER) | EFER_SVME);
	wrmsr(MSR_HSAVE, (uintptr_t)hsave);
	*(volatile uint32_t *)LOOK_AT = HOST_PAGE;
	*(volatile uint32_t *)(LOOK_AT + (1 << 21)) = GUEST_PAGE;
	prepare_guest();

	for (int i = 0; i < trampoline_end - trampoline; i++)
		((volatile char *)TRAMPOLINE)[i] = trampoline[i];
	*apic(0xf0) = 0x1ff;
	send(0, 0xc4500);			/* INIT to all others */
	wait_tsc(1 << 25);
	send(0, 0xc4600 | TRAMPOLINE >> 12);	/* SIPI */
	wait_tsc(1 << 28);
	if (cpus < 2)
		end(UNABLE, "one CPU only");
	go = 1;

	while (runs < count) {
		if (*fault == 't')
			run_twice();
		else if (*fault == 'f')
			run_flag();
		else if (*fault == 'p')
			run_priority();
		else if (*fault == 'b')
			run_busy();
		else if (*fault == 'c')
			run_counter();
		else
			run_lost();
	}
	if (*fault == 'l' && received < count / 1000)
		end(UNABLE, "hardly an interrupt came");
	end(NONE, "no fault");
}

void run_cpu(uint32_t cpu)
{
	if (!cpu)
		first_cpu();
	while (!go)
		relax();
	if (*fault == 'f')
		disturb_flag(cpu);
	if (cpu == 1 && *fault == 't')
		disturb_twice();
	if (cpu == 1 && *fault == 'l')
		disturb_lost();
	for (;;)
		asm volatile("cli; hlt");
}
