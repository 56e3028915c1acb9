# SPDX-License-Identifier: Apache-2.0
# Front door. `make demo` and `make test` need no other command first.
# Each part has its targets in mk/PART.mk; work is done by the parts' scripts.

BUILD ?= build
MINT_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/mint
JOBS ?= $(shell nproc)

# Absolute, because recipes change directory.
override BUILD := $(abspath $(BUILD))
override MINT_CACHE := $(abspath $(MINT_CACHE))
PYTHON := $(MINT_CACHE)/venv/bin/python
# rustup installs in the first, mkfs and its kind are in the second: not every
# shell has them on its path.
PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin
export BUILD MINT_CACHE JOBS PYTHON PATH

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
.PHONY: help all test check clean distclean

include $(sort $(wildcard mk/*.mk))

help: ## list the targets
	@sh mk/help.sh $(MAKEFILE_LIST)

# On a fresh machine any target may be the first: what runs a tool waits for
# setup, which only looks once everything is there.
NEEDS_SETUP := lint kernel-mint kernel-rt kernel-grown kernel-kunit kernel-lockdep kernel-kasan kernel-server \
	kernel-off kernel-stock kernel-deb deb-check patch-check patch-each rust rust-check rust-fmt kexec kexec-deb kexec-check kexec-import \
	images-check rig-check $(BUILD)/bin/mint-rig-agent \
	$(addprefix $(BUILD)/images/,node.squashfs fio load debian-guest.qcow2 other-systems node.initrd guest.initrd mint.squashfs rig.squashfs)
$(NEEDS_SETUP): | setup

all: kernel kernel-rt kexec rust images ## build everything

check: lint kernel-check rust-check images-check kexec-check rig-check ## everything that needs no rig: lint, formats, unit tests

# Sub-makes, because the order matters: what is found quickly comes first, and
# the rig's pytest last, so that its summary is the last line.
ifdef T
test: rig-test
else
test: ## every test layer, the rig included (T=NAME: only the rig tests of that name)
	@$(MAKE) -j$(JOBS) --output-sync=target check
	@$(MAKE) rig-test
endif

clean: ## remove what was built (caches stay)
	rm -rf -- $(BUILD)

distclean: clean ## remove what was built, and the caches
	rm -rf -- $(MINT_CACHE)
