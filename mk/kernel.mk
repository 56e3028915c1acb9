# SPDX-License-Identifier: Apache-2.0
# Kernel: kernel/README.md has the loop. Every script knows by content what is
# already built, so these targets always run and are quick when there is nothing
# to do.
.PHONY: kernel kernel-check kernel-deb deb-check patch-check patch-each $(addprefix kernel-,mint rt grown kunit lockdep kasan server off stock)

kernel: kernel-mint ## the nodes' kernel; images have PREEMPT_RT's, too, once `make kernel-rt` has built it

kernel-mint kernel-rt kernel-grown kernel-kunit kernel-lockdep kernel-kasan kernel-server kernel-off kernel-stock: kernel-%: ## one flavour: mint, rt, grown, kunit, lockdep, kasan, server, off, stock
	kernel/scripts/build $*

patch-check: ## the patch series: headers, style, applies exactly, round trip
	kernel/scripts/check

deb-check: ## the configuration of kernel-deb takes all that it asks for
	kernel/scripts/build-deb --only-config

kernel-check: patch-check deb-check

patch-each: ## builds every prefix of the series, Mint on and off (long)
	kernel/scripts/build-each

kernel-deb: ## kernel package for real servers (long; docs/bare-metal.md)
	kernel/scripts/build-deb
