# SPDX-License-Identifier: Apache-2.0
.PHONY: lint

# F: what Python meets as an error when it runs: names that are not there, what is imported for nothing.
lint: ## shell scripts, licence lines, links in the documents, names in Python
	@python3 mk/lint.py
	@$(PYTHON) -m ruff check --quiet --no-cache --select F .
