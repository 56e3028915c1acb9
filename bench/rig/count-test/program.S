// SPDX-License-Identifier: Apache-2.0
/*
 * A machine's only program, without a kernel: known numbers of instructions between
 * markers, on two CPUs at the same time. Run by tests/test_count.py.
 *
 * QEMU starts the first CPU at start32 (PVH: 32 bits, flat, no paging), that one the other
 * at 0x8000. Memory is mapped as it is, by pages of 1 GiB. Interrupts are off.
 *
 * First CPU: label 0 around SPINS turns of a loop of 2; label 1 around instructions that
 * leave the emulated code (ports, CPUID, REP); label 2 around a fault.
 * Second CPU: label 3 around OTHER_SPINS turns; then it spins until the machine ends.
 */
#include "../marker.h"

#define SPINS		200000
#define OTHER_SPINS	300000
#define TRAMPOLINE	0x8000
#define PAGE_FAULT	14
#define NOT_MAPPED	0x100000000
#define STACK_BYTES	4096
/* isa-debug-exit: QEMU ends with twice this, and one. */
#define DEBUG_EXIT	0xf4
#define DONE		16

	.section .note.pvh, "a", @note
	.balign 4
	.long 4, 8, 18			# name, value, XEN_ELFNOTE_PHYS32_ENTRY
	.asciz "Xen"
	.quad start32

	.text
	.code32
	.globl start32
start32:
	cld
	xorl %edi, %edi			# this CPU's number
common32:
	lgdt gdt_pointer
	movl $0x20, %eax		# PAE
	movl %eax, %cr4
	movl $pml4, %eax
	movl %eax, %cr3
	movl $0xc0000080, %ecx		# EFER
	rdmsr
	orl $0x100, %eax		# LME
	wrmsr
	movl $0x80010033, %eax		# PG, WP, NE, ET, MP, PE
	movl %eax, %cr0
	ljmp $0x08, $start64

	.code64
start64:
	movw $0x10, %ax
	movw %ax, %ds
	movw %ax, %es
	movw %ax, %ss
	lidt idt_pointer
	testl %edi, %edi
	jnz other
	leaq stack + STACK_BYTES, %rsp
	movl $page_fault, %eax
	movw %ax, idt + PAGE_FAULT * 16
	shrl $16, %eax
	movw %ax, idt + PAGE_FAULT * 16 + 6

	movl $trampoline, %esi
	movl $TRAMPOLINE, %edi
	movl $trampoline_end - trampoline, %ecx
	rep movsb
	movl $0xfee00000, %ebx
	movl $0x1ff, 0xf0(%rbx)		# the local APIC is on
	movl $0xc4500, 0x300(%rbx)	# INIT to all others
	movl $10000000, %ecx
1:	decl %ecx
	jnz 1b
	movl $0xc4600 | TRAMPOLINE >> 12, 0x300(%rbx)	# SIPI
2:	pause
	cmpl $0, other_runs
	je 2b

	# 1 + 2 * SPINS
	MARKER(MARKER_BEGIN(0))
	movl $SPINS, %ecx
3:	decl %ecx
	jnz 3b
	MARKER(MARKER_END(0))

	# 10: REP is one
	movl $from, %esi
	movl $to, %edi
	MARKER(MARKER_BEGIN(1))
	movl $256, %ecx
	rep movsb
	inb $0x61, %al
	outb %al, $0x80
	xorl %eax, %eax
	cpuid
	call 4f
	jmp 5f
4:	nop
	ret
5:	MARKER(MARKER_END(1))

	# 5: a load that faults, the handler's 3, the load again
	movabsq $NOT_MAPPED, %rsi
	MARKER(MARKER_BEGIN(2))
	movl (%rsi), %eax
	MARKER(MARKER_END(2))

6:	cmpl $2, other_runs		# has done its own
	jne 6b
	movb $DONE, %al
	outb %al, $DEBUG_EXIT
7:	hlt
	jmp 7b

	# Page fault: maps it
page_fault:
	movq $0x83, pdpt + 4 * 8
	addq $8, %rsp			# the error code
	iretq

other:
	movl $1, other_runs
	MARKER(MARKER_BEGIN(3))
	movl $OTHER_SPINS, %ecx
1:	decl %ecx
	jnz 1b
	MARKER(MARKER_END(3))
	movl $2, other_runs
2:	incl %eax
	jmp 2b

	# Copied to 0x8000.
	.code16
trampoline:
	cli
	xorw %ax, %ax
	movw %ax, %ds
	lgdtl trampoline_gdt - trampoline + TRAMPOLINE
	movl %cr0, %eax
	orl $1, %eax
	movl %eax, %cr0
	ljmpl $0x18, $other32
trampoline_gdt:
	.word gdt_end - gdt - 1
	.long gdt
trampoline_end:

	.code32
other32:
	movw $0x10, %ax
	movw %ax, %ds
	movw %ax, %ss
	movl $1, %edi
	jmp common32

	.data
	.balign 16
gdt:
	.quad 0
	.quad 0x00af9b000000ffff	# 0x08: 64-bit code
	.quad 0x00cf93000000ffff	# 0x10: data
	.quad 0x00cf9b000000ffff	# 0x18: 32-bit code
gdt_end:
gdt_pointer:
	.word gdt_end - gdt - 1
	.quad gdt
idt_pointer:
	.word (PAGE_FAULT + 1) * 16 - 1
	.quad idt

	.balign 16
idt:
	.fill PAGE_FAULT * 2, 8, 0
	.word 0, 0x08, 0x8e00, 0	# the address: start64
	.quad 0

	.balign 4096
pml4:
	.quad pdpt + 0x3
	.fill 511, 8, 0
pdpt:
	.quad 0x00000083, 0x40000083, 0x80000083, 0xc0000083
	.fill 508, 8, 0

	.bss
	.balign 16
other_runs:
	.long 0
from:
	.fill 256
to:
	.fill 256
stack:
	.fill STACK_BYTES
	.section .note.GNU-stack, "", @progbits
