# SPDX-License-Identifier: Apache-2.0
# The rig (bench/rig): an emulated server, its tests and benchmarks.
.PHONY: rig-agent rig-check rig-test test-debug test-lockdep test-kasan test-server soak evidence report report-draw report-tables page-in plan-time sim bench demo up sh exec down qemu-faults

RIG := PYTHONPATH=bench $(PYTHON)

# The rig's layer carries it, and tiny initrds.
rig-agent: $(BUILD)/bin/mint-rig-agent $(BUILD)/layer/usr/lib/mint/rig-agent $(BUILD)/bin/qemu-mend.so $(BUILD)/bin/qemu-count.so $(BUILD)/bin/qemu-pmu.so $(addprefix $(BUILD)/bin/mint-rig-,hold numa raw)

$(BUILD)/images/capabilities.xml: | rig-agent

$(BUILD)/bin/mint-rig-agent: bench/rig/agent/agent.c bench/rig/agent/tsc.h
	@mkdir -p $(@D)
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -static -o $@ $<

# Put onto nodes by a test.
$(BUILD)/bin/mint-rig-hold: bench/rig/hold/hold.c
$(BUILD)/bin/mint-rig-numa: bench/rig/numa/numa.c
$(BUILD)/bin/mint-rig-hold $(BUILD)/bin/mint-rig-numa:
	@mkdir -p $(@D)
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -static -o $@ $<

# The kernel's own headers, put together from its series.
UAPI := linux/mint.h linux/mint_memory.h
$(BUILD)/uapi/made: $(wildcard kernel/mint-patches/*)
	@rm -rf $(@D) && git init -q $(@D)
	@sed 's/#.*//' kernel/mint-patches/series | while read -r p; do for h in $(UAPI); do \
		! grep -qs "^diff --git a/include/uapi/$$h " "kernel/mint-patches/$$p" || \
		git -C $(@D) apply --include="include/uapi/$$h" "$(CURDIR)/kernel/mint-patches/$$p" || exit 1; done; done
	@ln -s include/uapi/linux $(@D)/linux && touch $@

# Put onto nodes by a test, too.
$(BUILD)/bin/mint-rig-raw: bench/rig/raw/raw.c $(BUILD)/uapi/made
	@mkdir -p $(@D)
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -static -I$(BUILD)/uapi -o $@ $<

# Preloaded into QEMU on the host.
$(BUILD)/bin/qemu-mend.so: bench/rig/mend.c
	@mkdir -p $(@D)
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -shared -fPIC -o $@ $<

# Of nodes and guests, and the host: benchmarks', here for their tests.
MICRO := $(addprefix $(BUILD)/bin/,eval scale victim aggressor paging torture turns misses malloc_access cubic_calc)
$(MICRO): $(BUILD)/bin/%: bench/micro/%.c bench/micro/words.h bench/micro/vcpu-loop.h bench/rig/marker.h $(BUILD)/uapi/made
	@mkdir -p $(@D)
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -static -idirafter $(BUILD)/uapi -o $@ $< -lm

# Loaded by it, where instructions are counted (rig.markers).
$(BUILD)/bin/qemu-count.so: bench/rig/count.c bench/rig/marker.h bench/rig/plugin.h
	@mkdir -p $(@D)
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -shared -fPIC -fvisibility=hidden -o $@ $<

# Loaded by it, where a test wants performance counters.
$(BUILD)/bin/qemu-pmu.so: bench/rig/pmu.c bench/rig/caches.c bench/rig/caches.h bench/rig/plugin.h
	@mkdir -p $(@D)
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -shared -fPIC -fvisibility=hidden -pthread -o $@ $(filter %.c,$^)

# A machine's only program, without a kernel: what QEMU's emulator does wrong.
QEMU_FAULTS := bench/rig/qemu-faults
$(BUILD)/bin/qemu-faults: $(wildcard $(QEMU_FAULTS)/*) bench/rig/marker.h
	@mkdir -p $(@D)
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -ffreestanding -fno-pic -fcf-protection=none -fno-stack-protector \
		-mno-red-zone -mgeneral-regs-only -nostdlib -static -no-pie -Wl,-T,$(QEMU_FAULTS)/link.ld \
		-Wl,--build-id=none,--no-warn-rwx-segments -o $@ $(QEMU_FAULTS)/start.S $(QEMU_FAULTS)/faults.c

# Another: known numbers of instructions between markers.
$(BUILD)/bin/count-test: bench/rig/count-test/program.S bench/rig/marker.h $(QEMU_FAULTS)/link.ld
	@mkdir -p $(@D)
	gcc -nostdlib -static -no-pie -Wl,-T,$(QEMU_FAULTS)/link.ld -Wl,--build-id=none,--no-warn-rwx-segments -o $@ $<

$(BUILD)/layer/usr/lib/mint/rig-agent: $(BUILD)/bin/mint-rig-agent
	@install -D $< $@

# What checks metrics in a test.
$(BUILD)/bin/promtool: bench/scripts/fetch-promtool | setup
	@$< $@

# Put onto a node by a test.
$(BUILD)/bin/stress-ng.tar.gz: bench/scripts/fetch-stress-ng $(BUILD)/images/node.squashfs
	@$< $(BUILD)/images/node.squashfs $@

rig-check: rig-agent $(addprefix $(BUILD)/bin/,qemu-faults count-test) $(MICRO) $(BUILD)/qemu ## the rig's own tests and the report's, without the server
	@$(RIG) -m pytest -q bench/rig/tests bench/report/tests
	@$(RIG) -m pytest -qq --collect-only bench/tests

qemu-faults: rig-agent $(BUILD)/bin/qemu-faults $(BUILD)/qemu ## minutes: has QEMU (MINT_RIG_QEMU) the faults that the rig's is mended of?
	@$(RIG) -m rig.qemu_faults

# Scenarios want kernels that the images do not carry, too. A soak's wants two more, one of them in the images:
# each takes as long to compile as the nodes' own.
RIG_PARTS := images kernel-off kernel-grown kernel-kunit rig-agent $(addprefix $(BUILD)/bin/,promtool stress-ng.tar.gz paging torture turns misses)
# Each run keeps its own results, for `make evidence`: the rule's name says which it is.
RUN_NAME = $(patsubst rig-test,test,$(@:test-%=%))
PYTEST = $(RIG) -m pytest -p rig.record --run-name=$(RUN_NAME) --run-part='$(T)' --durations=10 \
	--junitxml=$(BUILD)/rig/results-$(RUN_NAME)$(if $(T),.part).xml bench/tests

# Not expanded by make: what the shell of the node is to see.
ifdef CMD
override CMD := $(value CMD)
export CMD
endif

demo: images ## see it: three OS nodes on one machine, a KVM guest on each
	@$(RIG) bench/demo.py

up: images ## start the emulated server in the background (MACHINES=2: two, on one wire)
	@$(RIG) -m rig.cli up $(if $(MACHINES),--machines $(MACHINES))

sh: ## a shell on a node of it (NODE=n, default 0; of the second machine NODE=b/n)
	@$(RIG) -m rig.cli sh $(or $(NODE),0)

exec: ## run CMD='…' on NODE=n; a script that wants its exit status: bench/exec NODE COMMAND
	@$(RIG) -m rig.cli exec $(or $(NODE),0)

down: ## end the emulated server, or both
	@$(RIG) -m rig.cli down

rig-test: $(RIG_PARTS) ## scenarios on the emulated server (T=NAME: only these)
	@$(PYTEST) $(if $(T),-k '$(T)')

soak: kernel-rt kernel-stock $(RIG_PARTS) $(addprefix $(BUILD)/images/,debian-guest.qcow2 other-systems) ## 100 node starts, 1,400 moves, 50 kills amid moves, 200 amid moves of a guest, 100 splits, merges and moves of one in random order, 300 moves of guests round nodes and machines, 5 restarts of each node under its guests, 50 crashes, 10 restarts and 10 panics of node 0, 63 rounds of add and remove, 10 minutes of scribbling, and of pages that go and come, 10,000 orders of messages of places
	@$(PYTEST) --soak -m soak $(if $(T),-k '$(T)') \
		--moves 1400 --stress-rounds 50 --guest-kills 200 --split-kills 147 --split-moves 100 --circle-moves 300 --circle-guests 4 --rolling-rounds 5 --crashes 50 --node0-rounds 20 --rounds 63 --scribble-s 600 --paging-s 600 --page-moves 10000000 --page-kills 50
	@cd node-manager && MINT_ORDERS=10000 CARGO_TARGET_DIR=$(BUILD)/cargo cargo test --locked --quiet --package mint-guestd layout_orders

test-debug: ## all scenarios on kernels with lockdep, then on ones with KASAN
	@$(MAKE) test-lockdep
	@$(MAKE) test-kasan

test-lockdep test-kasan test-server: test-%: $(RIG_PARTS) kernel-% ## all scenarios on such kernels; server: Debian's configuration, as kernel-deb packs it
	@MINT_RIG_FLAVOUR=$* $(PYTEST) $(if $(T),-k '$(T)')

evidence: | setup ## docs/evidence.md: what was run on the rig, and how it ended
	@$(RIG) bench/evidence.py

# G='start moves': only these groups; QUICK=1: fewer machines and rounds; SEED=n: that order of turns.
REPORT = $(RIG) -m report.run $(if $(QUICK),--quick) $(if $(AT),--at '$(AT)')
# What is brought to a real server, which boots what it has.
BROUGHT := $(BUILD)/bin/mint-rig-agent $(BUILD)/images/guest.initrd $(BUILD)/images/fio

# 4: the rest takes another boot of the server, which the run has said. For make that is no failure.
report: $(if $(AT),$(BROUGHT),images $(BUILD)/images/programs.cpio kernel-stock) ## all figures, their goals, their pictures: build/report/index.html (G='start moves': these; QUICK=1: less; AT=root@server PLAN=FILE: on a real server)
	@$(REPORT) $(if $(PLAN),--plan '$(PLAN)') $(if $(SEED),--seed $(SEED)) $(G) || [ $$? -eq $(if $(AT),4,0) ]

report-draw: | setup ## the same, drawn again from what was measured (AT=root@server: there)
	@$(REPORT) --draw

report-tables: | setup ## fill the documents' made tables (TAKE=1: with what make report has measured)
	@$(RIG) -m report.tables $(if $(TAKE),$(BUILD)/report/summary.json)

page-in: | setup ## how fast pages come back from a memory server, on this host itself (docs/benchmarks.md)
	@cd node-manager && CARGO_TARGET_DIR=$(BUILD)/cargo cargo build --locked --release --quiet --package mint-pager --example page-in
	@$(PYTHON) bench/page_in.py $(BUILD)/cargo/release/examples/page-in

plan-time: | setup ## how long layout policies think about a large host, on this host itself (docs/benchmarks.md)
	@cd node-manager && CARGO_TARGET_DIR=$(BUILD)/cargo cargo run --locked --release --quiet --package mint-layout --example plan-time

sim: | setup ## what layout policies would do to guests that are moved, simulated (docs/benchmarks.md)
	@cd node-manager && CARGO_TARGET_DIR=$(BUILD)/cargo cargo run --locked --quiet --package mint-sim -- table

bench: report ## another name of report
