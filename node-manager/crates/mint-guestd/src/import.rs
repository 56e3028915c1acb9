// SPDX-License-Identifier: Apache-2.0
//! A disk image becomes a guest of this node: checked whole, copied under another name, and
//! there only once all of it is.

use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mint_api::{ErrorBody, ErrorCode, ImportRequest, Line, UPLOAD_FOLDER, VmView};
use mint_guests::facts::Facts;
use mint_guests::guest::{Firmware, GuestRequest, Network, memory_bytes_max};
use mint_guests::{Description, Failure, Guest, seed, xml};
use mint_serve::lines::Lines;
use mint_types::{Refusal, RefusalCode, format_bytes};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use tracing::{info, warn};

use crate::app::{App, Moving};
use crate::facts::HostFiles;
use crate::image::Image;
use crate::own;

/// Files of imports that are not over; those of a daemon that died are deleted.
const UNFINISHED: &str = ".mint-import-";
/// libvirt's own pool, where guests' disks are.
const POOL: &str = "/var/lib/libvirt/images";
/// An image that was sent, and to which nothing was added for so long, is nobody's.
const SENT_WITHIN: Duration = Duration::from_secs(600);
/// The largest that cloud-init is told.
const USER_DATA_BYTES_MAX: usize = 1 << 20;

/// An import that can begin.
pub(crate) struct Import {
    request: ImportRequest,
    image: Image,
    guest: Guest,
    /// Below the root that tests choose.
    disk: PathBuf,
    seed: Option<PathBuf>,
    pool: PathBuf,
    _upload: Upload,
    /// No other import makes a guest of this name as long as this is here.
    _making: Moving,
}

/// An image that was sent for one import; it goes with this.
struct Upload(Option<PathBuf>);

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            if let Err(error) = fs::remove_file(path) {
                warn!(path = %path.display(), %error, "an image that was sent stays");
            }
        }
    }
}

/// Deletes what imports have left whose daemon or client died.
pub(crate) fn tidy(host: &HostFiles) {
    let unfinished = |entry: &DirEntry| entry.file_name().to_string_lossy().starts_with(UNFINISHED);
    // what still grows is being sent
    let abandoned = |entry: &DirEntry| {
        let written = entry.metadata().and_then(|found| found.modified());
        written.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > SENT_WITHIN))
    };
    let gone = |folder: &str, is_left: &dyn Fn(&DirEntry) -> bool| {
        let entries = fs::read_dir(host.path(folder)).into_iter().flatten().flatten();
        for path in entries.filter(|entry| is_left(entry)).map(|entry| entry.path()) {
            info!(path = %path.display(), "left of an import that was not finished: deleted");
            _ = fs::remove_file(path);
        }
    };
    gone(POOL, &unfinished);
    gone(UPLOAD_FOLDER, &abandoned);
}

impl Import {
    /// Looks whether the image can become a guest. Changes nothing.
    ///
    /// # Errors
    /// With every reason why it cannot.
    pub async fn prepare(app: &Arc<App>, request: ImportRequest) -> Result<Self, ErrorBody> {
        let upload = upload(app, &request)?;
        let making = app.begin(&format!("import {}", request.name)).ok_or_else(|| {
            let text = format!("vm {} is being made already", request.name);
            let refusal =
                Refusal::new(RefusalCode::VmBusy, format_args!("vm {}", request.name), text)
                    .hint("wait for the end of that");
            ErrorBody::refused(vec![refusal])
        })?;
        let node = Facts::new(app.host.path("/")).describe().map_err(failure)?;
        let source = app.host.path(&request.image);
        let vm = &request.name;
        let file = |end: &str| node.pool_path.join(format!("{vm}{end}")).display().to_string();
        let (disk, seed) = (file(".raw"), request.user_data.as_ref().map(|_| file("-seed.img")));
        let mut refusals = Refusals { vm: vm.clone(), all: Vec::new() };

        refusals.size(&request, &node);
        let known = vm.clone();
        let taken = app.ask(move |hypervisor| Ok(hypervisor.guest(&known).is_ok())).await?;
        if taken {
            let text = format!("{} has a guest {vm} already", node.name);
            refusals.add(RefusalCode::VmNameTaken, text, "give it another name");
        }
        for path in [Some(&disk), seed.as_ref()].into_iter().flatten() {
            if app.host.path(path).exists() {
                let text = format!("{} has a file {path} already", node.name);
                refusals.add(RefusalCode::VmDiskTaken, text, "give it another name");
            }
        }
        let is_file = fs::metadata(&source).is_ok_and(|found| found.is_file());
        let image = if is_file { Some(Image::of(&source).await?) } else { None };
        match &image {
            Some(image) => refusals.image(&request, image, &source, app.host.free_bytes(POOL)),
            None => {
                let text = format!("there is no file {} on {}", request.image, node.name);
                refusals.add(RefusalCode::VmDiskMissing, text, "name an image that is there");
            }
        }
        let (Some(image), true) = (image, refusals.all.is_empty()) else {
            return Err(ErrorBody::refused(refusals.all));
        };

        let guest = GuestRequest {
            vcpus: request.vcpus.to_string(),
            memory: request.memory_bytes.to_string(),
            disk: Some(disk.clone()),
            seed: seed.clone(),
            is_pinned: false,
            network: Network::Bridge,
            firmware: if request.uefi { Firmware::Uefi } else { Firmware::Bios },
            has_agent: true,
            ..GuestRequest::new(vm)
        };
        let guest = guest.on(&node).map_err(failure)?;
        Ok(Self {
            image,
            guest,
            disk: app.host.path(&disk),
            seed: seed.map(|path| app.host.path(&path)),
            pool: app.host.path(POOL),
            request,
            _upload: upload,
            _making: making,
        })
    }

    /// Copies the image, defines the guest, and gives it; else nothing of it is left.
    ///
    /// # Errors
    /// What could not be done.
    pub async fn carry_out(self, app: &App, lines: &Lines) -> Result<VmView, ErrorBody> {
        let (name, image) = (self.request.name.clone(), &self.image);
        let bytes = self.request.disk_bytes.unwrap_or(image.virtual_bytes);
        let text = format!(
            "vm {name}: {} ({}, {} of {}) becomes {}",
            self.request.image,
            image.format,
            format_bytes(image.actual_bytes),
            format_bytes(image.virtual_bytes),
            self.disk.display()
        );
        info!("{text}");
        lines.send(&Line::Progress(text)).await;
        let unfinished = self.pool.join(format!("{UNFINISHED}{name}"));
        let made = self.make(app, &unfinished, bytes, lines).await;
        _ = fs::remove_file(&unfinished);
        made?;
        own::show(app, name).await
    }

    async fn make(
        &self,
        app: &App,
        unfinished: &Path,
        bytes: u64,
        lines: &Lines,
    ) -> Result<(), ErrorBody> {
        let source = app.host.path(&self.request.image);
        self.image.copy(&source, unfinished, lines).await?;
        let grown = fs::OpenOptions::new().write(true).open(unfinished);
        let grown = grown.and_then(|file| file.set_len(bytes).and_then(|()| file.sync_all()));
        grown.map_err(|error| self.not_made(&self.disk, &error))?;
        put(unfinished, &self.disk).map_err(|error| self.not_made(&self.disk, &error))?;
        let defined = self.define(app).await;
        if defined.is_err() {
            for path in [Some(&self.disk), self.seed.as_ref()].into_iter().flatten() {
                _ = fs::remove_file(path);
            }
        }
        defined
    }

    async fn define(&self, app: &App) -> Result<(), ErrorBody> {
        if let (Some(path), Some(user_data)) = (&self.seed, &self.request.user_data) {
            let name = &self.request.name;
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let made = seed::image(name, &format!("{name}-{}", now.as_nanos()), user_data);
            let made = made.and_then(|bytes| fs::write(path, bytes));
            made.map_err(|error| self.not_made(path, &error))?;
        }
        let xml = xml::domain(&self.guest);
        app.call(move |hypervisor| hypervisor.define(&xml)).await
    }

    fn not_made(&self, path: &Path, error: &io::Error) -> ErrorBody {
        let text = format!("vm {}: cannot make {}: {error}", self.request.name, path.display());
        ErrorBody::new(ErrorCode::Failed, text)
    }
}

/// Gives a file its name, unless something else has it.
fn put(from: &Path, to: &Path) -> io::Result<()> {
    Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
}

/// The image, if it was sent for this alone.
fn upload(app: &App, request: &ImportRequest) -> Result<Upload, ErrorBody> {
    let path = Path::new(&request.image);
    let bad = |text: String| Err(ErrorBody::new(ErrorCode::BadRequest, text));
    if !path.is_absolute() {
        return bad(format!("the image's path must be absolute, not '{}'", request.image));
    }
    if !request.is_upload {
        return Ok(Upload(None));
    }
    // nothing else is ever deleted
    match path.parent() {
        Some(folder) if folder == Path::new(UPLOAD_FOLDER) && path.file_name().is_some() => {
            Ok(Upload(Some(app.host.path(&request.image))))
        }
        _ => bad(format!("'{}' was not sent: it is not in {UPLOAD_FOLDER}", request.image)),
    }
}

fn failure(failure: Failure) -> ErrorBody {
    match failure {
        Failure::Usage(text) => ErrorBody::new(ErrorCode::BadRequest, text),
        Failure::Failed(text) | Failure::Refused(text) => ErrorBody::new(ErrorCode::Failed, text),
    }
}

/// Reasons against an import.
struct Refusals {
    vm: String,
    all: Vec<Refusal>,
}

impl Refusals {
    fn add(&mut self, code: RefusalCode, text: String, hint: &str) {
        self.all.push(Refusal::new(code, format_args!("vm {}", self.vm), text).hint(hint));
    }

    /// Against what the node has.
    fn size(&mut self, request: &ImportRequest, node: &Description) {
        let cpus = node.cpus.numbers().len();
        if usize::try_from(request.vcpus).map_or(true, |vcpus| vcpus > cpus) {
            let text = format!(
                "vm {} wants {} vCPUs, and {} has {cpus} CPUs",
                self.vm, request.vcpus, node.name
            );
            self.add(RefusalCode::CpuShort, text, "ask for fewer, or give the node more cores");
        }
        let most = memory_bytes_max(node);
        if request.memory_bytes > most {
            let text = format!(
                "vm {} wants {}, and guests of {} can have {}",
                self.vm,
                format_bytes(request.memory_bytes),
                node.name,
                format_bytes(most)
            );
            self.add(RefusalCode::MemoryShort, text, "ask for less, or give the node more memory");
        }
    }

    /// Against the image.
    fn image(&mut self, request: &ImportRequest, image: &Image, path: &Path, free_bytes: u64) {
        let name = &request.image;
        if let Some(why) = image.unfit(path) {
            let text = format!("{name} is not taken: {why}");
            let hint = "make it one file: qemu-img convert -O qcow2";
            self.add(RefusalCode::VmDiskMissing, text, hint);
        }
        if request.disk_bytes.is_some_and(|bytes| bytes < image.virtual_bytes) {
            let text = format!(
                "{name} is a disk of {}, which cannot be made smaller",
                format_bytes(image.virtual_bytes)
            );
            self.add(RefusalCode::VmDiskShort, text, "leave --disk out, or ask for more");
        }
        // compressed ones grow; no more than the disk they are
        let most = image.actual_bytes.min(image.virtual_bytes);
        if most > free_bytes {
            let text = format!(
                "{name} has {}, and {POOL} has {} free",
                format_bytes(most),
                format_bytes(free_bytes)
            );
            self.add(RefusalCode::VmDiskShort, text, "make room there");
        }
        let told = request.user_data.as_ref().map_or(0, String::len);
        if told > USER_DATA_BYTES_MAX {
            let text =
                format!("cloud-init's user data has {told} bytes, more than {USER_DATA_BYTES_MAX}");
            self.add(RefusalCode::VmDiskShort, text, "let it fetch the rest");
        }
    }
}
