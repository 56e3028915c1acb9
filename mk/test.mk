# SPDX-License-Identifier: Apache-2.0
# The rig (bench/rig): an emulated server, its tests and benchmarks.
.PHONY: rig-agent rig-check rig-test test-debug soak bench demo up sh exec down

RIG := PYTHONPATH=bench $(PYTHON)

# The images carry it: tools layer and tiny initrds.
rig-agent: $(BUILD)/bin/mint-rig-agent $(BUILD)/layer/usr/lib/mint/rig-agent

$(BUILD)/images/capabilities.xml $(BUILD)/images/mint.squashfs: | rig-agent

$(BUILD)/bin/mint-rig-agent: bench/rig/agent/agent.c
	@mkdir -p $(@D)
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -static -o $@ $<

$(BUILD)/layer/usr/lib/mint/rig-agent: $(BUILD)/bin/mint-rig-agent
	@install -D $< $@

rig-check: rig-agent ## the rig's own tests, without a machine
	@$(RIG) -m pytest -q bench/rig/tests

# Scenarios want kernels that the images do not carry, too.
RIG_PARTS := images kernel-off kernel-stock rig-agent
PYTEST := $(RIG) -m pytest --durations=10 --junitxml=$(BUILD)/rig/results.xml bench/tests

# Not expanded by make: what the shell of the node is to see.
ifdef CMD
override CMD := $(value CMD)
export CMD
endif

demo: images ## see it: three OS nodes on one machine, a KVM guest on each
	@$(RIG) bench/demo.py

up: images ## start the emulated server in the background
	@$(RIG) -m rig.cli up

sh: ## a shell on a node of it (NODE=n, default 0)
	@$(RIG) -m rig.cli sh $(or $(NODE),0)

exec: ## run CMD='…' on NODE=n: its output and exit status
	@$(RIG) -m rig.cli exec $(or $(NODE),0)

down: ## end the emulated server
	@$(RIG) -m rig.cli down

rig-test: $(RIG_PARTS) ## scenarios on the emulated server (T=NAME: only these)
	@$(PYTEST) $(if $(T),-k '$(T)')

soak: $(RIG_PARTS) ## 100 node starts over 10 machine boots, kernels compared with their images
	@$(PYTEST) -k soak --soak-boots 10 --soak-starts 10

test-debug: $(RIG_PARTS) kernel-debug ## all scenarios on kernels with lockdep and KASAN
	@MINT_RIG_FLAVOUR=debug $(PYTEST) $(if $(T),-k '$(T)')

bench: images ## the figures of the README: node start, cost, mint0
	@$(RIG) bench/figures.py
