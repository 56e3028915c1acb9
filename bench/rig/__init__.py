# SPDX-License-Identifier: Apache-2.0
"""The rig: an emulated server (QEMU) on which Mint's tests and demo run.

machine    the server itself: QEMU's command line, start, end
channel    commands on a node, through the agent in node 0
console    the consoles of the nodes, as files
qmp        QEMU's monitor
mintctl    mintctl's JSON, and the ledger as it shows it
trace      QEMU's record of device accesses, checked against the ledger
kerneltext running kernels compared with their images
evaluation what bench/micro/eval.c prints
numa       on which NUMA node each page of a guest is
markers    instructions of each emulated CPU, counted by a plugin
plugin     plugins of the emulator
physical   where the machine's RAM is in its physical addresses
pinned     one emulated CPU alone on a host core
"""
