# SPDX-License-Identifier: Apache-2.0
.PHONY: setup

setup: ## install what building and testing need (only what is missing; sudo only for that)
	@sh mk/setup.sh
