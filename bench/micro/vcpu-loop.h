/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a vCPU of paging.c runs: it writes to pages, and compares what it finds in them with what
 * it wrote last.
 */
#ifndef VCPU_LOOP_H
#define VCPU_LOOP_H

#include <stddef.h>
#include <stdint.h>

/* What a vCPU tells; its layout is known to the loop. */
struct told {
	uint32_t rounds, page, found[3], expected;
};

/*
 * 32 bits, flat, no paging. esi: its pages; edi: what they hold; ecx: how many, less one; ebx:
 * a random number; esp: its struct told. Ends with an OUT when a page holds something else.
 */
extern const unsigned char loop_begin[], loop_end[];
asm(".pushsection .rodata\n"
    ".code32\n"
    "loop_begin:\n"
    "1:	imul $1664525, %ebx, %ebx\n"
    "	add $1013904223, %ebx\n"
    "	mov %ebx, %eax\n"
    "	shr $8, %eax\n"
    "	and %ecx, %eax\n"
    "	mov %eax, %edx\n"
    "	shl $12, %edx\n"
    "	add %esi, %edx\n"
    "	mov (%edi,%eax,4), %ebp\n"
    "	cmp %ebp, (%edx)\n"
    "	jne 2f\n"
    "	cmp %ebp, 2048(%edx)\n"
    "	jne 2f\n"
    "	cmp %ebp, 4092(%edx)\n"
    "	jne 2f\n"
    "	inc %ebp\n"
    "	mov %ebp, (%edx)\n"
    "	mov %ebp, 2048(%edx)\n"
    "	mov %ebp, 4092(%edx)\n"
    "	mov %ebp, (%edi,%eax,4)\n"
    "	incl (%esp)\n"
    "	jmp 1b\n"
    "2:	mov %eax, 4(%esp)\n"
    "	mov %ebp, 20(%esp)\n"
    "	mov (%edx), %eax\n"
    "	mov %eax, 8(%esp)\n"
    "	mov 2048(%edx), %eax\n"
    "	mov %eax, 12(%esp)\n"
    "	mov 4092(%edx), %eax\n"
    "	mov %eax, 16(%esp)\n"
    "	mov $0x10, %dx\n"
    "	out %al, (%dx)\n"
    "	hlt\n"
    "loop_end:\n"
    ".code64\n"
    ".popsection\n");
_Static_assert(offsetof(struct told, expected) == 20, "the loop knows where it is");

#endif /* VCPU_LOOP_H */
