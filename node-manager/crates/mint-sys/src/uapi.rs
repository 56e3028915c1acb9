// SPDX-License-Identifier: Apache-2.0
//! `include/uapi/linux/mint.h` in Rust. Sizes and offsets are asserted here
//! and compared with the C header by `tests/header_check.rs`.

#![expect(missing_docs, reason = "the header documents each field; two copies would drift")]

/// Version of the interface that this file describes.
pub const ABI_VERSION: u32 = 1;
pub const NODE_ANY: u32 = u32::MAX;
pub const NODE_NONE: u32 = 0xff;
pub const NAME_BYTES: usize = 32;

pub const KIND_CPU: u32 = 0;
pub const KIND_MEM: u32 = 1;
pub const KIND_PCI: u32 = 2;

pub const RESF_BOOT_CPU: u32 = 1 << 0;
pub const RESF_BRIDGE: u32 = 1 << 1;
pub const RESF_LEGACY: u32 = 1 << 2;
pub const RESF_MSI: u32 = 1 << 3;
pub const RESF_MSIX: u32 = 1 << 4;
pub const RESF_FLR: u32 = 1 << 5;
pub const RESF_PARKED: u32 = 1 << 6;
pub const RESF_VF: u32 = 1 << 7;
pub const RESF_FENCED: u32 = 1 << 8;

pub const MOVE_DRY_RUN: u32 = 1 << 0;
pub const MOVE_NO_ONLINE: u32 = 1 << 1;

/// `KEXEC_FILE_MINT` of <linux/kexec.h>.
pub const KEXEC_FILE_UNLOAD: u64 = 0x1;
pub const KEXEC_FILE_NO_INITRAMFS: u64 = 0x4;
pub const KEXEC_FILE_MINT: u64 = 0x10;
pub const KEXEC_NODE_SHIFT: u32 = 16;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Info {
    pub size: u32,
    pub abi_version: u32,
    pub area_version: u32,
    pub node: u32,
    pub node_max: u32,
    pub numa_nodes: u32,
    pub cpu_count: u32,
    pub mem_count: u32,
    pub pci_count: u32,
    pub tsc_khz: u32,
    pub mem_block_bytes: u64,
    pub area_phys: u64,
    pub area_bytes: u64,
    pub boot_id: u64,
    pub intent_slots: u32,
    pub intent_bytes: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ResourceEntry {
    pub kind: u32,
    pub id: u32,
    pub state: u32,
    pub owner: u32,
    pub target: u32,
    pub numa: u32,
    pub flags: u32,
    pub changes: u32,
    pub hw_id: u32,
    pub hw_class: u32,
    pub phys: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Resources {
    pub size: u32,
    pub kind: u32,
    pub first: u32,
    pub count: u32,
    pub entries: u64,
    /// Of one entry, in bytes; 0: what `ResourceEntry` had in the first kernel that gave any, as it still has here.
    /// A kernel that knows nothing of this field takes only 0.
    pub entry_bytes: u32,
    pub pad: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Node {
    pub size: u32,
    pub node: u32,
    pub state: u32,
    pub boots: u32,
    pub heartbeat: u64,
    pub state_change_ns: u64,
    pub cpus_online: u32,
    pub boot_cpu: u32,
    pub memory_bytes: u64,
    pub image_crc: u64,
    pub name: [u8; NAME_BYTES],
    pub release: [u8; 64],
    pub reason: [u8; 128],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Move {
    pub size: u32,
    pub kind: u32,
    pub id: u32,
    pub node: u32,
    pub flags: u32,
    pub timeout_ms: u32,
    pub owner: u32,
    pub reason: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Kill {
    pub size: u32,
    pub node: u32,
    pub timeout_ms: u32,
    pub flags: u32,
    pub parked: u32,
    pub cpus: u32,
    pub boots: u32,
    pub fenced: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Console {
    pub size: u32,
    pub node: u32,
    pub pos: u64,
    pub buf: u64,
    pub len: u32,
    pub boots: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Vmcore {
    pub size: u32,
    pub node: u32,
    pub flags: u32,
    pub fd: i32,
    pub bytes: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct EventRecord {
    pub seq: u64,
    pub time_ns: u64,
    pub node: u32,
    pub old_state: u32,
    pub new_state: u32,
    pub lost: u32,
}

pub const INTENTF_HELD: u32 = 1 << 0;
pub const INTENTF_OURS: u32 = 1 << 1;
pub const INTENTF_LIVE: u32 = 1 << 2;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Intent {
    pub size: u32,
    pub node: u32,
    pub slot: u32,
    pub flags: u32,
    pub buf: u64,
    pub len: u32,
    pub holder: u32,
    pub boots: u32,
    pub pad: u32,
    pub seq: u64,
}

const IOC_MAGIC: u64 = 0xbc;

/// `_IOWR(MINT_IOC_MAGIC, number, T)` of <asm-generic/ioctl.h>: direction 3,
/// size, type, number.
const fn iowr<T>(number: u64) -> u64 {
    let size = size_of::<T>() as u64;
    assert!(size < 1 << 14, "the size field of an ioctl has 14 bits");
    3 << 30 | size << 16 | IOC_MAGIC << 8 | number
}

pub const IOC_INFO: u64 = iowr::<Info>(1);
pub const IOC_RESOURCES: u64 = iowr::<Resources>(2);
pub const IOC_NODE_GET: u64 = iowr::<Node>(3);
pub const IOC_NODE_CREATE: u64 = iowr::<Node>(4);
pub const IOC_NODE_DESTROY: u64 = iowr::<Node>(5);
pub const IOC_NODE_START: u64 = iowr::<Node>(6);
pub const IOC_NODE_KILL: u64 = iowr::<Kill>(7);
pub const IOC_CLAIM: u64 = iowr::<Move>(8);
pub const IOC_RELEASE: u64 = iowr::<Move>(9);
pub const IOC_CONSOLE_READ: u64 = iowr::<Console>(10);
pub const IOC_CONSOLE_WRITE: u64 = iowr::<Console>(11);
pub const IOC_NODE_SHUTDOWN: u64 = iowr::<Node>(12);
pub const IOC_NODE_VMCORE: u64 = iowr::<Vmcore>(13);
pub const IOC_INTENT_WRITE: u64 = iowr::<Intent>(15);
pub const IOC_INTENT_READ: u64 = iowr::<Intent>(16);
pub const IOC_INTENT_TAKE: u64 = iowr::<Intent>(17);

impl Default for Node {
    fn default() -> Self {
        Self {
            size: 0,
            node: 0,
            state: 0,
            boots: 0,
            heartbeat: 0,
            state_change_ns: 0,
            cpus_online: 0,
            boot_cpu: 0,
            memory_bytes: 0,
            image_crc: 0,
            name: [0; NAME_BYTES],
            release: [0; 64],
            reason: [0; 128],
        }
    }
}

// No padding anywhere: every byte that goes to the kernel is one we wrote.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Info>() == 80 && offset_of!(Info, mem_block_bytes) == 40);
    assert!(size_of::<ResourceEntry>() == 48 && offset_of!(ResourceEntry, phys) == 40);
    assert!(size_of::<Resources>() == 32 && offset_of!(Resources, entry_bytes) == 24);
    assert!(size_of::<Node>() == 280 && offset_of!(Node, name) == 56);
    assert!(offset_of!(Node, release) == 88 && offset_of!(Node, reason) == 152);
    assert!(size_of::<Move>() == 32 && offset_of!(Move, reason) == 28);
    assert!(size_of::<Kill>() == 32 && offset_of!(Kill, fenced) == 28);
    assert!(size_of::<Console>() == 32 && offset_of!(Console, len) == 24);
    assert!(size_of::<Vmcore>() == 24 && offset_of!(Vmcore, bytes) == 16);
    assert!(size_of::<EventRecord>() == 32 && offset_of!(EventRecord, lost) == 28);
    assert!(size_of::<Intent>() == 48 && offset_of!(Intent, seq) == 40);
    assert!(IOC_INFO == 0xc050_bc01);
};
