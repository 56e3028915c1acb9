# SPDX-License-Identifier: Apache-2.0
# mintd, mint-guestd, mintctl, and the commands for guests. cargo decides by itself what is to be done.
.PHONY: rust rust-check rust-fmt fuzz

RUST_DIR := node-manager
# In the tree's build folder, not beside the sources; the others build in the cache (scripts/mirror.sh).
CARGO := cd $(RUST_DIR) && CARGO_TARGET_DIR=$(BUILD)/cargo cargo

rust: ## build mintd, mint-guestd, mintctl, mint-kvm-config, mint-guest (build/bin)
	@sh $(RUST_DIR)/scripts/build.sh

rust-check: ## format, lints and unit tests of the Rust code
	@sh $(RUST_DIR)/scripts/check.sh

fuzz: ## feed damaged input to all that reads foreign bytes, 10 minutes (FUZZ_S=seconds)
	@export MINT_FUZZ_S=$(or $(FUZZ_S),600); $(CARGO) test --locked --release --package mint-fuzz --test targets --test intents --test guests -- --nocapture

rust-fmt: ## format the Rust code
	@$(CARGO) fmt
