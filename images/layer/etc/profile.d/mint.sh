# SPDX-License-Identifier: Apache-2.0
# Which node a shell is on is the first thing to know.
PS1='\u@\h:\w\$ '
export LIBVIRT_DEFAULT_URI=qemu:///system
