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

all: kernel kexec rust images ## build everything

# The order matters (setup installs what the others run), and the rig's
# pytest comes last, so that its summary is the last line: hence sub-makes.
ifdef T
test:
	@$(MAKE) setup
	@$(MAKE) rig-test T='$(T)'
else
test: ## every test layer, the rig included (T=NAME: only the rig tests of that name)
	@$(MAKE) setup
	@$(MAKE) check
	@$(MAKE) rig-test
endif

check: lint kernel-check rust-check images-check kexec-check rig-check ## everything that needs no rig: lint, formats, unit tests

clean: ## remove what was built (caches stay)
	rm -rf -- $(BUILD)

distclean: clean ## remove what was built, and the caches
	rm -rf -- $(MINT_CACHE)
