/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Markers, at which QEMU's plugin (count.c) writes down how many instructions that CPU
 * has executed. A marker is a NOP of 8 bytes (0f 1f 84 00 and a displacement) with a
 * displacement that nobody else uses: it does nothing on any CPU, in any ring, and is no
 * exit of a guest. Its low 16 bits are the marker's number.
 */
#define MARKER_BYTES	8
#define MARKER_MAGIC	0x4d6e0000

/* Numbers of the two ends of a stretch: those who run at the same time take other labels. */
#define MARKER_LABELS	16
#define MARKER_BEGIN(label)	(2 * (label))
#define MARKER_END(label)	(2 * (label) + 1)

#ifdef __ASSEMBLER__
#define MARKER(number)	nopl MARKER_MAGIC + number(%rax, %rax)
#else
/* number: a constant. Memory is as the program says it is, before and after. */
#define MARKER(number)	asm volatile("nopl %c0(%%rax,%%rax)" : : "i"(MARKER_MAGIC + (number)) : "memory")
#endif
