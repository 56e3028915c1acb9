// SPDX-License-Identifier: Apache-2.0
//! What plans ask beyond the ledger, answered by the kernel (dry runs), by procfs and sysfs,
//! by the images, and by peers.

use mint_host::Host;
use mint_image::{initrd, kernel_image};
use mint_plan::{Facts, Inventory, not_movable};
use mint_sys::SysError;
use mint_types::{Bdf, Kind, NodeId, NodeSpec, Refusal, RefusalCode, ResourceKey};

use crate::config::Config;
use crate::machine::Machine;
use crate::peers::Peers;

/// `MINT_REFUSE_DRIVER`: the plan unbinds the driver itself.
const REASON_DRIVER: u32 = 6;

/// The way out of [`RefusalCode::DeviceIommu`].
pub(crate) const IOMMU_OFF: &str = "boot node 0 with intel_iommu=off amd_iommu=off intremap=off \
                                    (docs/bare-metal.md)";

/// Where answers come from.
pub(crate) struct Answers<'a> {
    pub machine: &'a dyn Machine,
    pub host: &'a dyn Host,
    pub peers: &'a dyn Peers,
    pub config: &'a Config,
}

impl Facts for Answers<'_> {
    fn driver(&self, bdf: Bdf) -> Option<String> {
        self.host.driver(bdf)
    }

    fn users(&self, bdf: Bdf) -> Vec<String> {
        self.host.users(bdf)
    }

    fn group_peers(&self, bdf: Bdf) -> Vec<Bdf> {
        self.host.group_peers(bdf)
    }

    fn can_release(
        &self,
        inventory: &Inventory,
        key: ResourceKey,
        owner: NodeId,
    ) -> Result<(), Refusal> {
        let label = inventory.label(owner);
        let is_ours = owner == inventory.info.node;
        if key.kind == Kind::Memory && is_ours && !self.host.is_movable(key.id) {
            let phys = inventory.info.block_range(key.id);
            return Err(not_movable(key, &label, self.host.immovable(phys)));
        }
        if let (true, Some(refusal)) = (is_ours, has_guests(self.host, inventory, key)) {
            return Err(refusal);
        }
        match self.machine.release(key, owner, true) {
            Ok(()) => Ok(()),
            Err(SysError::Move { failure, .. })
                if key.kind == Kind::Device && failure.reason == REASON_DRIVER =>
            {
                Ok(())
            }
            Err(error) => Err(refused_by_kernel(key, &label, &error)),
        }
    }

    fn releasable(
        &self,
        peer: NodeId,
        keys: &[ResourceKey],
    ) -> Result<Vec<Result<(), Refusal>>, String> {
        self.peers.releasable(peer, keys).map_err(|error| error.to_string())
    }

    fn check_images(&self, spec: &NodeSpec, memory_bytes: u64) -> (Vec<String>, Vec<Refusal>) {
        let (mut notes, mut refusals) = (Vec::new(), Vec::new());
        if spec.start || spec.kernel.is_some() {
            let kernel = spec.kernel.as_ref().unwrap_or(&self.config.node.kernel);
            refusals.extend(kernel_image::check_kernel(kernel, memory_bytes).err());
        }
        if spec.start || spec.initrd.is_some() {
            let initrd = spec.initrd.as_ref().unwrap_or(&self.config.node.initrd);
            match initrd::check_initrd(initrd, memory_bytes) {
                Ok(initrd) => notes.extend(initrd.note),
                Err(refusal) => refusals.push(refusal),
            }
        }
        (notes, refusals)
    }
}

/// A core that is the only one on which a guest's vCPU may run: the kernel would
/// let that vCPU run anywhere, silently.
pub(crate) fn has_guests(
    host: &dyn Host,
    inventory: &Inventory,
    key: ResourceKey,
) -> Option<Refusal> {
    let core = inventory.find(key).filter(|core| core.key.kind == Kind::Cpu)?;
    let pinned = host.pinned_vcpus(core.hw_id);
    if pinned.is_empty() {
        return None;
    }
    let label = inventory.label(inventory.info.node);
    let text = format!("{key} of {label} has {} pinned to it", pinned.join(", "));
    let refusal = Refusal::new(RefusalCode::CpuPinned, key, text).owned_by(label);
    Some(refusal.hint(
        "give that vCPU other cores there (virsh vcpupin; mintctl node resize --evacuate does it), \
         or choose another core",
    ))
}

/// The kernel's own refusal in our words.
pub(crate) fn refused_by_kernel(key: ResourceKey, owner: &str, error: &SysError) -> Refusal {
    let refusal = match error {
        SysError::Move { failure, .. } => Refusal::new(
            failure.code(key.kind),
            key,
            format_args!("{key} of {owner} cannot be released: {failure}"),
        ),
        other => Refusal::new(
            RefusalCode::KernelRefused,
            key,
            format_args!("{key} of {owner} cannot be released: {other}"),
        ),
    };
    let hint = match refusal.code {
        RefusalCode::DeviceIommu => IOMMU_OFF,
        _ => "choose another one",
    };
    refusal.owned_by(owner).hint(hint)
}
