# SPDX-License-Identifier: Apache-2.0
.PHONY: kexec kexec-deb kexec-check kexec-import kexec-export

kexec: ## build/kexec/kexec: kexec with --mint-node
	@kexec-mint/scripts/build

kexec-deb: ## build/deb/kexec-tools_*.deb: the same as Debian's package
	@kexec-mint/scripts/build --deb

kexec-check: kexec kexec-deb ## check the kexec-tools series, try the binary and the package
	@kexec-mint/scripts/check
	@kexec-mint/tests/run

kexec-import: ## git tree of kexec-tools with the series, to work on: build/kexec/src
	@kexec-mint/scripts/import $(BUILD)/kexec/src

kexec-export: ## write the commits of build/kexec/src back as the series
	@kexec-mint/scripts/export $(BUILD)/kexec/src
