# SPDX-License-Identifier: Apache-2.0
.PHONY: lint

lint: ## shell scripts, licence lines, links in the documents
	@python3 mk/lint.py
