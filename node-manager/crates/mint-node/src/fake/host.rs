// SPDX-License-Identifier: Apache-2.0
//! What a node's `/proc` and `/sys` tell, and what its nodes are given to boot with.

use std::ops::Range;

use mint_host::Host;
use mint_image::{Bundle, BundleError, BundleFile};
use mint_types::{Bdf, BlockPages, Load, NodeId, NodeName, PagesOfKind};

use super::FakeMachine;
use super::state::{BLOCK_BYTES, EBUSY};

impl Host for FakeMachine {
    fn driver(&self, bdf: Bdf) -> Option<String> {
        self.lock().drivers.get(&bdf).cloned()
    }

    fn users(&self, bdf: Bdf) -> Vec<String> {
        self.lock().users.get(&bdf).cloned().unwrap_or_default()
    }

    fn group_peers(&self, bdf: Bdf) -> Vec<Bdf> {
        self.lock().groups.get(&bdf).cloned().unwrap_or_default()
    }

    fn pinned_vcpus(&self, apic_id: u32) -> Vec<String> {
        let pinned = self.lock().with_guests.contains(&apic_id);
        pinned.then(|| "vCPU 0 of guest demo".to_owned()).into_iter().collect()
    }

    fn block_pages(&self, phys: Range<u64>, timed_out: bool) -> Option<BlockPages> {
        let pages = self.lock().pages.get(&phys.start).cloned()?;
        Some(BlockPages { timed_out, ..pages })
    }

    fn is_movable(&self, block: u32) -> bool {
        !self.lock().pinned.contains_key(&block)
    }

    fn immovable(&self, phys: Range<u64>) -> Option<Vec<PagesOfKind>> {
        let block = u32::try_from(phys.start / BLOCK_BYTES).ok()?;
        Some(self.lock().immovable(block).unwrap_or_default())
    }

    fn load(&self) -> Load {
        Load { uptime_ms: 1000, cpu_busy_ms: 250, cpu_idle_ms: 750, ..Load::default() }
    }

    fn unbind(&self, bdf: Bdf) -> std::io::Result<()> {
        self.fuse.act();
        self.doom.reached();
        let mut state = self.lock();
        if state.faults.contains(&format!("unbind {bdf}")) {
            return Err(std::io::Error::from_raw_os_error(EBUSY));
        }
        state.drivers.remove(&bdf);
        Ok(())
    }

    fn bind(&self, bdf: Bdf, driver: Option<&str>) -> std::io::Result<()> {
        self.fuse.act();
        self.doom.reached();
        self.lock().drivers.insert(bdf, driver.unwrap_or("probed").into());
        Ok(())
    }
}

impl Bundle for FakeMachine {
    fn files(&self, node: NodeId, name: &NodeName) -> Result<Vec<BundleFile>, BundleError> {
        if node == NodeId::ZERO {
            return Ok(Vec::new());
        }
        let data = format!("name = \"{name}\"\nid = {node}\n").into_bytes();
        Ok(vec![BundleFile { name: "node.toml".into(), data }])
    }
}
