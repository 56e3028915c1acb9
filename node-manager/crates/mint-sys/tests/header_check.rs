// SPDX-License-Identifier: Apache-2.0
//! Layouts of `uapi.rs` against the C header: a C program that prints sizes,
//! offsets and ioctl numbers is compiled with it. The header comes out of the patch
//! series, which needs no kernel tree; `MINT_UAPI_HEADER` names another one.

use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

use mint_sys::uapi;

const HEADER: &str = "include/uapi/linux/mint.h";

/// The header as the whole series leaves it, written into `folder`.
fn header_of_the_series(folder: &Path) -> PathBuf {
    let patches = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../kernel/mint-patches");
    let series =
        std::fs::read_to_string(patches.join("series")).expect("the series is in the tree");
    let names = series.lines().map(str::trim);
    for name in names.filter(|name| !name.is_empty() && !name.starts_with('#')) {
        let applied = Command::new("git")
            .args(["apply", "--unsafe-paths", "--whitespace=nowarn"])
            .arg(format!("--include={HEADER}"))
            .arg(patches.join(name))
            // not the repository that we may be in
            .env("GIT_CEILING_DIRECTORIES", folder.parent().expect("a folder of /tmp"))
            .current_dir(folder)
            .output()
            .expect("git is needed here: make setup");
        assert!(applied.status.success(), "{name}: {}", String::from_utf8_lossy(&applied.stderr));
    }
    folder.join(HEADER)
}

#[test]
fn layouts_match_the_header() {
    let rows: &[(&str, u64)] = &[
        ("sizeof(struct mint_info)", size_of::<uapi::Info>() as u64),
        ("offsetof(struct mint_info, node)", offset_of!(uapi::Info, node) as u64),
        (
            "offsetof(struct mint_info, mem_block_bytes)",
            offset_of!(uapi::Info, mem_block_bytes) as u64,
        ),
        ("offsetof(struct mint_info, boot_id)", offset_of!(uapi::Info, boot_id) as u64),
        ("offsetof(struct mint_info, intent_bytes)", offset_of!(uapi::Info, intent_bytes) as u64),
        ("sizeof(struct mint_intent)", size_of::<uapi::Intent>() as u64),
        ("offsetof(struct mint_intent, slot)", offset_of!(uapi::Intent, slot) as u64),
        ("offsetof(struct mint_intent, buf)", offset_of!(uapi::Intent, buf) as u64),
        ("offsetof(struct mint_intent, holder)", offset_of!(uapi::Intent, holder) as u64),
        ("offsetof(struct mint_intent, seq)", offset_of!(uapi::Intent, seq) as u64),
        ("MINT_INTENTF_HELD", uapi::INTENTF_HELD.into()),
        ("MINT_INTENTF_OURS", uapi::INTENTF_OURS.into()),
        ("MINT_INTENTF_LIVE", uapi::INTENTF_LIVE.into()),
        ("sizeof(struct mint_resource)", size_of::<uapi::ResourceEntry>() as u64),
        ("offsetof(struct mint_resource, owner)", offset_of!(uapi::ResourceEntry, owner) as u64),
        ("offsetof(struct mint_resource, flags)", offset_of!(uapi::ResourceEntry, flags) as u64),
        (
            "offsetof(struct mint_resource, hw_class)",
            offset_of!(uapi::ResourceEntry, hw_class) as u64,
        ),
        ("offsetof(struct mint_resource, phys)", offset_of!(uapi::ResourceEntry, phys) as u64),
        ("sizeof(struct mint_resources)", size_of::<uapi::Resources>() as u64),
        ("offsetof(struct mint_resources, entries)", offset_of!(uapi::Resources, entries) as u64),
        (
            "offsetof(struct mint_resources, entry_bytes)",
            offset_of!(uapi::Resources, entry_bytes) as u64,
        ),
        ("MINT_RESOURCE_BYTES_1", size_of::<uapi::ResourceEntry>() as u64),
        ("MINT_EVENT_BYTES_1", size_of::<uapi::EventRecord>() as u64),
        ("sizeof(struct mint_node)", size_of::<uapi::Node>() as u64),
        ("offsetof(struct mint_node, heartbeat)", offset_of!(uapi::Node, heartbeat) as u64),
        ("offsetof(struct mint_node, boot_cpu)", offset_of!(uapi::Node, boot_cpu) as u64),
        ("offsetof(struct mint_node, name)", offset_of!(uapi::Node, name) as u64),
        ("offsetof(struct mint_node, release)", offset_of!(uapi::Node, release) as u64),
        ("offsetof(struct mint_node, reason)", offset_of!(uapi::Node, reason) as u64),
        ("sizeof(struct mint_move)", size_of::<uapi::Move>() as u64),
        ("offsetof(struct mint_move, timeout_ms)", offset_of!(uapi::Move, timeout_ms) as u64),
        ("offsetof(struct mint_move, reason)", offset_of!(uapi::Move, reason) as u64),
        ("sizeof(struct mint_kill)", size_of::<uapi::Kill>() as u64),
        ("offsetof(struct mint_kill, parked)", offset_of!(uapi::Kill, parked) as u64),
        ("offsetof(struct mint_kill, fenced)", offset_of!(uapi::Kill, fenced) as u64),
        ("sizeof(struct mint_console)", size_of::<uapi::Console>() as u64),
        ("offsetof(struct mint_console, buf)", offset_of!(uapi::Console, buf) as u64),
        ("offsetof(struct mint_console, boots)", offset_of!(uapi::Console, boots) as u64),
        ("sizeof(struct mint_vmcore)", size_of::<uapi::Vmcore>() as u64),
        ("offsetof(struct mint_vmcore, fd)", offset_of!(uapi::Vmcore, fd) as u64),
        ("offsetof(struct mint_vmcore, bytes)", offset_of!(uapi::Vmcore, bytes) as u64),
        ("sizeof(struct mint_event)", size_of::<uapi::EventRecord>() as u64),
        ("offsetof(struct mint_event, node)", offset_of!(uapi::EventRecord, node) as u64),
        ("offsetof(struct mint_event, lost)", offset_of!(uapi::EventRecord, lost) as u64),
        ("MINT_ABI_VERSION", uapi::ABI_VERSION.into()),
        ("MINT_NODE_MAX", mint_types::NODE_MAX.into()),
        ("MINT_NODE_ANY", uapi::NODE_ANY.into()),
        ("MINT_NODE_NONE", uapi::NODE_NONE.into()),
        ("MINT_NAME_BYTES", uapi::NAME_BYTES as u64),
        ("MINT_RESF_PARKED", uapi::RESF_PARKED.into()),
        ("MINT_RESF_VF", uapi::RESF_VF.into()),
        ("MINT_MOVE_NO_ONLINE", uapi::MOVE_NO_ONLINE.into()),
        ("MINT_KEXEC_FILE_FLAG", uapi::KEXEC_FILE_MINT),
        ("MINT_KEXEC_NODE_SHIFT", uapi::KEXEC_NODE_SHIFT.into()),
        ("MINT_IOC_INFO", uapi::IOC_INFO),
        ("MINT_IOC_RESOURCES", uapi::IOC_RESOURCES),
        ("MINT_IOC_NODE_GET", uapi::IOC_NODE_GET),
        ("MINT_IOC_NODE_CREATE", uapi::IOC_NODE_CREATE),
        ("MINT_IOC_NODE_DESTROY", uapi::IOC_NODE_DESTROY),
        ("MINT_IOC_NODE_START", uapi::IOC_NODE_START),
        ("MINT_IOC_NODE_KILL", uapi::IOC_NODE_KILL),
        ("MINT_IOC_CLAIM", uapi::IOC_CLAIM),
        ("MINT_IOC_RELEASE", uapi::IOC_RELEASE),
        ("MINT_IOC_CONSOLE_READ", uapi::IOC_CONSOLE_READ),
        ("MINT_IOC_CONSOLE_WRITE", uapi::IOC_CONSOLE_WRITE),
        ("MINT_IOC_NODE_SHUTDOWN", uapi::IOC_NODE_SHUTDOWN),
        ("MINT_IOC_NODE_VMCORE", uapi::IOC_NODE_VMCORE),
        ("MINT_IOC_INTENT_WRITE", uapi::IOC_INTENT_WRITE),
        ("MINT_IOC_INTENT_READ", uapi::IOC_INTENT_READ),
        ("MINT_IOC_INTENT_TAKE", uapi::IOC_INTENT_TAKE),
    ];
    let folder = std::env::temp_dir().join(format!("mint-header-check-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let given = std::env::var_os("MINT_UAPI_HEADER").map(PathBuf::from);
    let header = given.unwrap_or_else(|| header_of_the_series(&folder));
    let header = header.display();
    let source = folder.join("check.c");
    let program = folder.join("check");
    let mut text = format!("#include <stddef.h>\n#include <stdio.h>\n#include \"{header}\"\n");
    text.push_str("int main(void) {\n");
    for (expression, _) in rows {
        text.push_str(&format!("printf(\"%llu\\n\", (unsigned long long)({expression}));\n"));
    }
    text.push_str("return 0; }\n");
    std::fs::write(&source, text).unwrap();
    let compiled = Command::new("cc").arg("-o").arg(&program).arg(&source).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&program).output().unwrap();
    let lines: Vec<u64> =
        String::from_utf8(output.stdout).unwrap().lines().map(|l| l.parse().unwrap()).collect();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(lines.len(), rows.len());
    for ((expression, ours), theirs) in rows.iter().zip(lines) {
        assert_eq!(*ours, theirs, "{expression}: uapi.rs has {ours}, the header {theirs}");
    }
}
