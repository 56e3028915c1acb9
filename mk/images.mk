# SPDX-License-Identifier: Apache-2.0
# Node and guest images, and the disk that the rig's machines boot from: the product's
# layers and the rig's own.

IMAGES_OUT := $(BUILD)/images
# What the node image is made of besides itself. IMAGES_ONLY=1 takes them as
# they lie under build/ instead of bringing them up to date first.
IMAGES_PARTS := $(if $(IMAGES_ONLY),,kernel kexec rust)

.PHONY: images images-check FORCE
.PHONY: $(IMAGES_PARTS)

images: $(IMAGES_OUT)/rig-disk.raw $(BUILD)/qemu ## build the node image, the guest image and the rig's disk

$(IMAGES_OUT)/node.squashfs: images/scripts/build-node images/scripts/check-libraries images/scripts/trixie-sources images/node/finish $(wildcard images/packages/*)
	@images/scripts/build-node $@

# The emulator of the rig, with the node image's libraries.
$(BUILD)/qemu: $(IMAGES_OUT)/node.squashfs images/scripts/fetch-qemu images/scripts/trixie-sources
	@images/scripts/fetch-qemu $< $@

$(IMAGES_OUT)/busybox: $(IMAGES_OUT)/node.squashfs
	@touch $@

$(IMAGES_OUT)/fio: images/scripts/build-fio images/scripts/trixie-sources
	@images/scripts/build-fio $@

$(IMAGES_OUT)/debian-guest.qcow2: images/scripts/build-debian-guest images/scripts/trixie-sources
	@images/scripts/build-debian-guest $@

$(IMAGES_OUT)/other-systems: $(IMAGES_OUT)/guest.initrd images/scripts/fetch-other-systems images/scripts/trixie-sources
	@images/scripts/fetch-other-systems $< $@

$(IMAGES_OUT)/programs.cpio: images/scripts/fetch-programs images/scripts/trixie-sources
	@images/scripts/fetch-programs $@

$(IMAGES_OUT)/load: images/guest/load.c
	@mkdir -p $(@D)
	gcc -std=gnu11 -Os -Wall -Wextra -Werror -static -s -o $@ $<

$(IMAGES_OUT)/node.initrd: $(IMAGES_OUT)/busybox images/init/init.initrd images/scripts/build-initrd images/scripts/pack-initrd
	@images/scripts/build-initrd $< $@

$(IMAGES_OUT)/guest.initrd: $(IMAGES_OUT)/busybox $(IMAGES_OUT)/fio $(IMAGES_OUT)/load images/init/init.guest images/init/udhcpc.guest images/scripts/build-guest images/scripts/pack-initrd
	@images/scripts/build-guest $< $(word 2,$^) $(word 3,$^) $@

# One boot of the image, when image or kernel version are new to the cache.
IMAGES_KERNEL := $(BUILD)/kernel/mint/bzImage
$(IMAGES_OUT)/capabilities.xml: $(IMAGES_OUT)/node.squashfs $(IMAGES_OUT)/node.initrd images/scripts/build-capabilities $(wildcard $(IMAGES_KERNEL)) | $(BUILD)/qemu $(IMAGES_PARTS)
	@[ ! -e $(IMAGES_KERNEL) ] || $(PYTHON) images/scripts/build-capabilities $(BUILD) $(IMAGES_KERNEL) $@

# Always asked: the script looks whether anything that goes into it changed.
$(IMAGES_OUT)/mint.squashfs: $(IMAGES_OUT)/node.initrd $(IMAGES_OUT)/guest.initrd $(IMAGES_OUT)/fio FORCE | $(IMAGES_OUT)/capabilities.xml $(IMAGES_PARTS)
	@images/scripts/build-tools-layer $(BUILD) $@

# The same: what only the rig's disks have.
$(IMAGES_OUT)/rig.squashfs: FORCE | rig-agent $(IMAGES_PARTS)
	@images/scripts/build-rig-layer $(BUILD) $@

$(IMAGES_OUT)/rig-disk.raw: $(IMAGES_OUT)/node.squashfs $(IMAGES_OUT)/mint.squashfs $(IMAGES_OUT)/rig.squashfs images/scripts/build-disk images/scripts/disk.sh
	@images/scripts/build-disk $< $(word 2,$^) $(word 3,$^) $@

images-check: $(if $(IMAGES_ONLY),,rust) $(addprefix $(IMAGES_OUT)/,node.squashfs node.initrd guest.initrd fio load) rig-agent ## check the images and the KVM host configuration
	@$(PYTHON) -m pytest -q -p no:cacheprovider images/tests kvm-host-config/tests
