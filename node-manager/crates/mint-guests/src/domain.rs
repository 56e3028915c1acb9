// SPDX-License-Identifier: Apache-2.0
//! What a domain's XML says of the parts that matter to where it can run. Whatever else is in
//! it is left alone: users define domains with virsh, virt-install or virt-manager.

use std::collections::BTreeSet;

use mint_types::CpuSet;
use quick_xml::Reader;
use quick_xml::events::Event;
use serde::Deserialize;

/// Longest XML that is read: libvirt's own is some ten KiB.
const XML_BYTES_MAX: usize = 1 << 20;
/// In its metadata: its memory is split over several hosts ([`crate::split`]).
pub(crate) const MEMORY_ELEMENT: &str = "mint:memory";
/// Longest list of CPUs.
const CPU_LIST_BYTES_MAX: usize = 4096;

/// A domain's XML cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DomainError {
    /// It is longer than any that libvirt makes.
    #[error("the domain's XML has {0} bytes: more than 1 MiB is not read")]
    TooLong(usize),
    /// It is no XML, or lacks what every domain has.
    #[error("the domain's XML cannot be read: {0}")]
    Unreadable(String),
}

/// A vCPU, or all of a kind of threads, and the host's CPUs that it may run on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VcpuPin {
    /// Number of the vCPU.
    pub vcpu: u32,
    /// The host's CPUs.
    pub cpus: CpuSet,
}

/// A disk of a guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disk {
    /// What the guest calls it, e.g. `vda`.
    pub target: String,
    /// `file`, `block`, `network`, `volume`, …
    pub kind: String,
    /// File or device of the host; none of an empty drive, or where it has no path.
    pub path: Option<String>,
    /// Whether the guest only reads it.
    pub is_readonly: bool,
    /// Whether other guests use it at the same time.
    pub is_shareable: bool,
}

/// A network card of a guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Card {
    /// `network`, `bridge`, `user`, `direct`, `hostdev`, …
    pub kind: String,
    /// Name of the network, bridge or device of the host that it is on.
    pub source: Option<String>,
}

/// A domain, as far as it matters to where it can run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Domain {
    /// `kvm`, `qemu`, …
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its UUID; none where libvirt is to choose one.
    pub uuid: Option<String>,
    /// Memory that it has at most.
    pub memory_bytes: u64,
    /// Whether its memory is of the host's huge pages.
    pub has_huge_pages: bool,
    /// vCPUs that are pinned.
    pub vcpu_pins: Vec<VcpuPin>,
    /// Machine type; empty: libvirt's default.
    pub machine: String,
    /// Its `<cpu>` element.
    pub cpu_xml: Option<String>,
    /// Whether its CPU is the host's, whatever that is.
    pub is_host_cpu: bool,
    /// Files of the host that it boots from: firmware, kernel, initrd.
    pub boot_files: Vec<String>,
    /// File of its own that its firmware keeps settings in.
    pub nvram: Option<String>,
    /// Disks.
    pub disks: Vec<Disk>,
    /// Network cards.
    pub cards: Vec<Card>,
    /// The host's devices that are passed through, in words.
    pub passed: Vec<String>,
    /// The host's folders that it sees.
    pub folders: Vec<String>,
    /// Other parts whose state stays on the host, in words.
    pub tied: Vec<&'static str>,
    /// Whether its memory is split over several hosts ([`crate::split`]).
    pub is_split: bool,
}

impl Domain {
    /// Reads a domain's XML.
    ///
    /// # Errors
    /// When it is too long, no XML, or lacks what every domain has.
    pub fn parse(xml: &str) -> Result<Self, DomainError> {
        if xml.len() > XML_BYTES_MAX {
            return Err(DomainError::TooLong(xml.len()));
        }
        let unreadable = |why: &dyn std::fmt::Display| DomainError::Unreadable(why.to_string());
        let read: XmlDomain = quick_xml::de::from_str(xml).map_err(|error| unreadable(&error))?;
        let memory_bytes = bytes(&read.memory).ok_or_else(|| unreadable(&"its memory"))?;
        let largest = read.max_memory.as_ref().and_then(bytes).unwrap_or(0);
        let mut vcpu_pins = Vec::new();
        for pin in read.cputune.unwrap_or_default().pins {
            let cpus = cpu_set(&pin.cpuset).ok_or_else(|| unreadable(&"the CPUs of a vcpupin"))?;
            vcpu_pins.push(VcpuPin { vcpu: pin.vcpu, cpus });
        }
        let os = read.os.unwrap_or_default();
        let (template, nvram) = os.nvram.map_or((None, None), Nvram::files);
        let files = [os.loader, os.kernel, os.initrd].into_iter().flatten();
        let boot_files = files.map(|path| path.text.trim().to_owned()).chain(template);
        let cpu_mode = read.cpu.and_then(|cpu| cpu.mode).unwrap_or_default();
        let devices = read.devices.unwrap_or_default();
        let mut passed: Vec<String> = devices.hostdevs.iter().map(HostDevice::words).collect();
        let cards: Vec<Card> = devices.interfaces.into_iter().map(Card::from).collect();
        passed.extend(
            cards.iter().filter(|card| card.kind == "hostdev").map(|_| "a network function".into()),
        );
        let mut tied = Vec::new();
        if devices.tpms.iter().any(|tpm| tpm.backend.as_ref().is_some_and(Backend::is_local)) {
            tied.push("an emulated TPM");
        }
        if !devices.shmems.is_empty() {
            tied.push("memory shared with other guests (shmem)");
        }
        let is_split = element(xml, &["domain", "metadata", MEMORY_ELEMENT]).is_some();
        let backing = read.memory_backing.unwrap_or_default();
        Ok(Self {
            kind: read.kind,
            name: read.name.trim().to_owned(),
            uuid: read.uuid.map(|uuid| uuid.trim().to_owned()),
            memory_bytes: memory_bytes.max(largest),
            has_huge_pages: backing.hugepages.is_some(),
            vcpu_pins,
            machine: os.kind.and_then(|kind| kind.machine).unwrap_or_default(),
            cpu_xml: element(xml, &["domain", "cpu"]).map(str::to_owned),
            is_host_cpu: ["host-passthrough", "maximum"].contains(&cpu_mode.as_str()),
            boot_files: boot_files.collect(),
            nvram,
            disks: devices.disks.into_iter().map(Disk::from).collect(),
            cards,
            passed,
            folders: devices
                .filesystems
                .into_iter()
                .map(|folder| folder.source.and_then(Source::path).unwrap_or_default())
                .collect(),
            tied,
            is_split,
        })
    }
}

/// CPUs as libvirt writes them: numbers, ranges, and `^N` for one that is not meant.
pub(crate) fn cpu_set(text: &str) -> Option<CpuSet> {
    if text.len() > CPU_LIST_BYTES_MAX {
        return None;
    }
    let (mut meant, mut but) = (BTreeSet::new(), BTreeSet::new());
    for part in text.split(',').map(str::trim) {
        match part.strip_prefix('^') {
            Some(one) => _ = but.insert(one.parse::<u32>().ok()?),
            None => meant.extend(part.parse::<CpuSet>().ok()?.iter()),
        }
    }
    Some(meant.difference(&but).copied().collect())
}

/// The terminal of a running guest's first serial console, e.g. `/dev/pts/3`; nothing when it has
/// none that is a terminal of its host, or the text is no XML.
pub fn terminal(xml: &str) -> Option<String> {
    let console = element(xml, &["domain", "devices", "console"])?;
    let mut reader = Reader::from_str(console);
    loop {
        match reader.read_event().ok()? {
            Event::Start(tag) | Event::Empty(tag) if tag.name().as_ref() == b"source" => {
                let path = tag.try_get_attribute("path").ok()??;
                let path = path.unescape_value().ok()?.into_owned();
                return Some(path).filter(|path| is_terminal(path));
            }
            Event::Eof => return None,
            _ => {}
        }
    }
}

/// What devpts has, and nothing that leads elsewhere.
fn is_terminal(path: &str) -> bool {
    path.strip_prefix("/dev/pts/").is_some_and(|number| number.parse::<u32>().is_ok())
}

/// The first element with that path of names, from the document's own on, as it stands in the
/// text; nothing when there is none, or the text is no XML.
pub fn element<'xml>(xml: &'xml str, path: &[&str]) -> Option<&'xml str> {
    let mut reader = Reader::from_str(xml);
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut began = None;
    let is_it = |names: &[Vec<u8>]| {
        names.iter().map(Vec::as_slice).eq(path.iter().map(|name| name.as_bytes()))
    };
    loop {
        let at = usize::try_from(reader.buffer_position()).ok()?;
        match reader.read_event().ok()? {
            Event::Start(tag) => {
                names.push(tag.name().as_ref().to_vec());
                if is_it(&names) {
                    began.get_or_insert(at);
                }
            }
            Event::Empty(tag) => {
                names.push(tag.name().as_ref().to_vec());
                if is_it(&names) {
                    return xml.get(at..usize::try_from(reader.buffer_position()).ok()?);
                }
                names.pop();
            }
            Event::End(_) => {
                if let Some(began) = began.filter(|_| is_it(&names)) {
                    return xml.get(began..usize::try_from(reader.buffer_position()).ok()?);
                }
                names.pop()?;
            }
            Event::Eof => return None,
            _ => {}
        }
    }
}

/// A size with its unit, which is KiB where none is said.
fn bytes(size: &Size) -> Option<u64> {
    let number: u64 = size.text.trim().parse().ok()?;
    let unit = match size.unit.as_deref().unwrap_or("KiB") {
        "b" | "bytes" => 1,
        "KB" => 1_000,
        "k" | "K" | "KiB" => 1 << 10,
        "MB" => 1_000_000,
        "M" | "MiB" => 1 << 20,
        "GB" => 1_000_000_000,
        "G" | "GiB" => 1 << 30,
        "TB" => 1_000_000_000_000,
        "T" | "TiB" => 1 << 40,
        _ => return None,
    };
    number.checked_mul(unit)
}

#[derive(Deserialize)]
struct XmlDomain {
    #[serde(rename = "@type")]
    kind: String,
    name: String,
    uuid: Option<String>,
    memory: Size,
    #[serde(rename = "maxMemory")]
    max_memory: Option<Size>,
    #[serde(rename = "memoryBacking")]
    memory_backing: Option<MemoryBacking>,
    cputune: Option<CpuTune>,
    os: Option<Os>,
    cpu: Option<Cpu>,
    devices: Option<Devices>,
}

#[derive(Deserialize)]
struct Size {
    #[serde(rename = "@unit")]
    unit: Option<String>,
    #[serde(rename = "$text", default)]
    text: String,
}

#[derive(Deserialize, Default)]
struct MemoryBacking {
    hugepages: Option<Any>,
}

#[derive(Deserialize)]
struct Any {}

#[derive(Deserialize, Default)]
struct CpuTune {
    #[serde(rename = "vcpupin", default)]
    pins: Vec<Pin>,
}

#[derive(Deserialize)]
struct Pin {
    #[serde(rename = "@vcpu")]
    vcpu: u32,
    #[serde(rename = "@cpuset")]
    cpuset: String,
}

#[derive(Deserialize, Default)]
struct Os {
    #[serde(rename = "type")]
    kind: Option<OsType>,
    loader: Option<PathText>,
    nvram: Option<Nvram>,
    kernel: Option<PathText>,
    initrd: Option<PathText>,
}

#[derive(Deserialize)]
struct PathText {
    #[serde(rename = "$text", default)]
    text: String,
}

#[derive(Deserialize)]
struct Nvram {
    #[serde(rename = "@template")]
    template: Option<String>,
    source: Option<Source>,
    #[serde(rename = "$text", default)]
    text: String,
}

impl Nvram {
    /// What it is made of where it is not there yet, and itself.
    fn files(self) -> (Option<String>, Option<String>) {
        let path = self.source.and_then(Source::path).unwrap_or(self.text);
        (self.template, Some(path.trim().to_owned()).filter(|path| !path.is_empty()))
    }
}

#[derive(Deserialize)]
struct OsType {
    #[serde(rename = "@machine")]
    machine: Option<String>,
}

#[derive(Deserialize)]
struct Cpu {
    #[serde(rename = "@mode")]
    mode: Option<String>,
}

#[derive(Deserialize, Default)]
struct Devices {
    #[serde(rename = "disk", default)]
    disks: Vec<XmlDisk>,
    #[serde(rename = "interface", default)]
    interfaces: Vec<Interface>,
    #[serde(rename = "hostdev", default)]
    hostdevs: Vec<HostDevice>,
    #[serde(rename = "filesystem", default)]
    filesystems: Vec<Filesystem>,
    #[serde(rename = "tpm", default)]
    tpms: Vec<Tpm>,
    #[serde(rename = "shmem", default)]
    shmems: Vec<Any>,
}

#[derive(Deserialize)]
struct XmlDisk {
    #[serde(rename = "@type")]
    kind: Option<String>,
    source: Option<Source>,
    target: Option<Target>,
    readonly: Option<Any>,
    shareable: Option<Any>,
}

#[derive(Deserialize)]
struct Target {
    #[serde(rename = "@dev")]
    dev: Option<String>,
}

#[derive(Deserialize)]
struct Source {
    #[serde(rename = "@file")]
    file: Option<String>,
    #[serde(rename = "@dev")]
    dev: Option<String>,
    #[serde(rename = "@dir")]
    dir: Option<String>,
    #[serde(rename = "@network")]
    network: Option<String>,
    #[serde(rename = "@bridge")]
    bridge: Option<String>,
    address: Option<Address>,
}

impl Source {
    fn path(self) -> Option<String> {
        self.file.or(self.dev).or(self.dir)
    }
}

#[derive(Deserialize)]
struct Address {
    #[serde(rename = "@domain")]
    domain: Option<String>,
    #[serde(rename = "@bus")]
    bus: Option<String>,
    #[serde(rename = "@slot")]
    slot: Option<String>,
    #[serde(rename = "@function")]
    function: Option<String>,
}

#[derive(Deserialize)]
struct Interface {
    #[serde(rename = "@type")]
    kind: Option<String>,
    source: Option<Source>,
}

#[derive(Deserialize)]
struct HostDevice {
    #[serde(rename = "@type")]
    kind: Option<String>,
    source: Option<Source>,
}

impl HostDevice {
    /// E.g. `pci 0000:03:00.0`.
    fn words(&self) -> String {
        let kind = self.kind.as_deref().unwrap_or("host");
        let address = self.source.as_ref().and_then(|source| source.address.as_ref());
        let Some(address) = address else { return format!("a {kind} device") };
        let part = |part: &Option<String>, digits: usize| {
            let text = part.as_deref().unwrap_or("0").trim_start_matches("0x");
            format!("{text:0>digits$}")
        };
        format!(
            "{kind} {}:{}:{}.{}",
            part(&address.domain, 4),
            part(&address.bus, 2),
            part(&address.slot, 2),
            part(&address.function, 1)
        )
    }
}

#[derive(Deserialize)]
struct Filesystem {
    source: Option<Source>,
}

#[derive(Deserialize)]
struct Tpm {
    backend: Option<Backend>,
}

#[derive(Deserialize)]
struct Backend {
    #[serde(rename = "@type")]
    kind: Option<String>,
}

impl Backend {
    fn is_local(&self) -> bool {
        self.kind.as_deref() == Some("emulator")
    }
}

impl From<XmlDisk> for Disk {
    fn from(disk: XmlDisk) -> Self {
        Self {
            target: disk.target.and_then(|target| target.dev).unwrap_or_default(),
            kind: disk.kind.unwrap_or_else(|| "file".to_owned()),
            path: disk.source.and_then(Source::path),
            is_readonly: disk.readonly.is_some(),
            is_shareable: disk.shareable.is_some(),
        }
    }
}

impl From<Interface> for Card {
    fn from(card: Interface) -> Self {
        let source = card.source.and_then(|source| source.network.or(source.bridge).or(source.dev));
        Self { kind: card.kind.unwrap_or_default(), source }
    }
}

#[cfg(test)]
#[path = "tests/domain.rs"]
pub(crate) mod tests;
