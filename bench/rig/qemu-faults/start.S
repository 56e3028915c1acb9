// SPDX-License-Identifier: Apache-2.0
/*
 * From power-on to faults.c, on each CPU; what an SVM guest runs; interrupts.
 *
 * QEMU starts the first CPU at start32 (PVH: 32 bits, flat, no paging), that one
 * the others at 0x8000. All of memory is mapped as it is, by pages of 1 GiB.
 */
#include "../marker.h"
#include "faults.h"

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
	movl %ebx, start_info
	xorl %edi, %edi			# this CPU's number
common32:
	lgdt gdt_pointer
	movl $0x620, %eax		# OSXMMEXCPT, OSFXSR, PAE
	movl %eax, %cr4
	movl $host_pml4, %eax
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
	movl %edi, %eax
	shll $12, %eax
	leaq stacks + 4096(%rax), %rsp
	fninit
	call run_cpu

	# Copied to 0x8000.
	.code16
	.globl trampoline, trampoline_end
trampoline:
	cli
	xorw %ax, %ax
	movw %ax, %ds
	lgdtl trampoline_gdt - trampoline + TRAMPOLINE
	movl %cr0, %eax
	orl $1, %eax
	movl %eax, %cr0
	ljmpl $0x18, $ap32
trampoline_gdt:
	.word gdt_end - gdt - 1
	.long gdt
trampoline_end:

	.code32
ap32:
	movw $0x10, %ax
	movw %ax, %ds
	movw %ax, %ss
	movl $1, %edi
	lock xaddl %edi, cpus
	cmpl $MAX_CPUS, %edi
	jb common32
1:	hlt
	jmp 1b

	.code64
	# void run_guest(struct vmcb *): until its #VMEXIT
	.globl run_guest
run_guest:
	pushq %rbx
	pushq %rbp
	pushq %r12
	pushq %r13
	pushq %r14
	pushq %r15
	movq %rdi, %rax
	clgi
	vmrun
	stgi
	popq %r15
	popq %r14
	popq %r13
	popq %r12
	popq %rbp
	popq %rbx
	ret

	# The guest that gets an interrupt: this is the handler. Nothing in it lets
	# QEMU leave the CPU's loop by itself.
	.globl injected_entry, guest_stop, guest_look, guest_priority, guest_program, guest_kernel
injected_entry:
	incl deliveries
	movl $GUEST_SPINS, %ecx
1:	decl %ecx
	jnz 1b
guest_stop:
	vmmcall

	# The guest that looks which page it sees. Its markers are for tests/test_count.py.
guest_look:
	MARKER(MARKER_BEGIN(4))
	movl LOOK_AT, %eax
	movl %eax, guest_saw
	MARKER(MARKER_END(4))
	vmmcall

	# The guest that writes its task priority.
guest_priority:
	xorl %eax, %eax
	movq %rax, %cr8
	vmmcall

	# The guest of 32 bits: a program, and the kernel that it calls.
	.code32
guest_program:
	int $0x70
guest_kernel:
	vmmcall
	.code64

	# The host's handler of an interrupt from another CPU.
	.globl ipi_entry, exception_entry
ipi_entry:
	pushq %rax
	incl received
	movl $APIC_EOI, %eax
	movl $0, (%rax)
	popq %rax
	iretq

exception_entry:
	call unexpected

	.data
	.balign 16
gdt:
	.quad 0
	.quad 0x00af9b000000ffff	# 0x08: 64-bit code
	.quad 0x00cf93000000ffff	# 0x10: data
	.quad 0x00cf9b000000ffff	# 0x18: 32-bit code
gdt_end:
	.globl gdt_pointer, idt_pointer
gdt_pointer:
	.word gdt_end - gdt - 1
	.quad gdt
idt_pointer:
	.word 256 * 16 - 1
	.quad idt

	.balign 4096
	.globl host_pml4
host_pml4:
	.quad host_pdpt + 0x3
	.fill 511, 8, 0
host_pdpt:
	.quad 0x00000083, 0x40000083, 0x80000083, 0xc0000083
	.fill 508, 8, 0

	.globl start_info, cpus
start_info:
	.long 0
cpus:
	.long 1

	.bss
	.balign 4096
stacks:
	.fill MAX_CPUS * 4096
	.section .note.GNU-stack, "", @progbits
