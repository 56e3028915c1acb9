# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
#
# Sourced: how a node's disk is laid out. A GPT with p1 mint-node (the Debian root), p3
# mint-tools (Mint's layer), p4 mint-site (what one site adds; may be absent) and p2
# mint-upper (ext4: the node's writable layer and its guests' disks), in this order.
#
#   disk_mib NODE TOOLS SITE    prints how many MiB all but mint-upper take
#   write_disk IDS NODE TOOLS SITE TARGET MIB
#                               writes a disk of MIB in all to TARGET, which is there
#
# IDS is "random"; or "fixed": the same inputs give the same bytes, for disks of which no
# two meet. SITE is a squashfs, or "". sfdisk and mkfs.ext4 must be on the path.

squashfs_mib() { [ -z "$1" ] && echo 0 || echo $((($(stat -L -c %s "$1") + 1048575) >> 20)); }

# 1 MiB before for the table, and one after for its copy.
disk_mib() { echo $(($(squashfs_mib "$1") + $(squashfs_mib "$2") + $(squashfs_mib "$3") + 2)); }

# NUMBER START_MIB END_MIB NAME [, uuid=...]: a line for sfdisk
partition() { echo "$1: start=$(($2 * 2048)), size=$((($3 - $2) * 2048)), type=L, name=$4$5"; }

partition_table() {
	echo "label: gpt"
	echo "unit: sectors"
	fixed=4d494e54-0000-4000-8000-00000000000
	[ "$ids" = random ] || echo "label-id: ${fixed}0"
	uuid() { [ "$ids" = random ] || echo ", uuid=$fixed$1"; }
	partition 1 $node_start $tools_start mint-node "$(uuid 1)"
	partition 2 $upper_start $((upper_start + upper_mib)) mint-upper "$(uuid 2)"
	partition 3 $tools_start $site_start mint-tools "$(uuid 3)"
	[ -z "$site" ] || partition 4 $site_start $upper_start mint-site "$(uuid 6)"
}

write_disk() {
	ids=$1 node=$2 tools=$3 site=$4 target=$5
	node_start=1
	tools_start=$((node_start + $(squashfs_mib "$node")))
	site_start=$((tools_start + $(squashfs_mib "$tools")))
	upper_start=$((site_start + $(squashfs_mib "$site")))
	upper_mib=$(($6 - upper_start - 1))
	put_at() { dd if="$1" of="$target" bs=1M seek="$2" conv=notrunc,sparse status=none; }

	# What lay there would be found again: of a partition, a table's copy, an array.
	[ ! -b "$target" ] || wipefs --quiet --all "$target" || return 1
	partition_table | sfdisk --quiet --no-tell-kernel --no-reread "$target" || return 1
	put_at "$node" $node_start || return 1
	put_at "$tools" $tools_start || return 1
	[ -z "$site" ] || put_at "$site" $site_start || return 1
	# Everything is initialised here: a kernel that does it later in the background would
	# disturb what is measured on it.
	set -- -E "lazy_itable_init=0,lazy_journal_init=0,nodiscard,offset=$((upper_start << 20))"
	[ "$ids" = random ] || set -- -U 4d494e54-0000-4000-8000-000000000004 \
		-E "hash_seed=4d494e54-0000-4000-8000-000000000005,${2}"
	[ "$ids" = random ] || export E2FSPROGS_FAKE_TIME=1735689600
	mkfs.ext4 -q -F -L mint-upper -m 0 -N 65536 -J size=16 "$@" "$target" "${upper_mib}M"
}
