// SPDX-License-Identifier: Apache-2.0
//! Measures how long this node's CPUs wait for memory of each of its NUMA nodes, and how fast they read it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mint_api::{ErrorBody, ErrorCode, MeasureRequest, MeasureResult, NumaMeasured, NumaPair};
use mint_guests::numa::{self, HostNuma};
use mint_types::{NodeId, Refusal, RefusalCode, format_bytes};
use tracing::info;

use super::files::write;
use super::measured::{FILE, cpu_model, pairs, whole};
use super::reasons::now_s;
use crate::app::App;

const MIB: u64 = 1 << 20;
/// A buffer has so many times what the last-level cache has, within bounds: much of a smaller one would come from there.
const CACHES: u64 = 4;
const LEAST_BYTES: u64 = 64 * MIB;
const MOST_BYTES: u64 = 512 * MIB;
/// Of a NUMA node's free memory: guests and their QEMUs get more meanwhile.
const FREE_PART: u64 = 4;
/// For a pair of NUMA nodes, where there are few.
const EACH: Duration = Duration::from_millis(450);
/// For reading in all, where there are many.
const ALL: Duration = Duration::from_secs(30);
/// Whoever asked would not wait longer: mintd gives up after a minute.
const LIMIT: Duration = Duration::from_secs(50);

/// Measures it, or forgets what was measured. Plans go by that from then on.
///
/// # Errors
/// When guests are arranged or somebody measures already, a NUMA node has too little free memory, the kernel does not
/// give it, it takes too long, or the result cannot be written: then plans go by what they went by before.
pub(crate) async fn measure(
    app: &Arc<App>,
    request: MeasureRequest,
) -> Result<MeasureResult, ErrorBody> {
    let here = app.here().await?.id;
    let mib = checked(&request)?;
    let Ok(_changing) = app.layouts.changing.try_lock() else {
        let refusal = Refusal::new(
            RefusalCode::VmBusy,
            format_args!("layout of node {here}"),
            "guests are arranged anew, or NUMA nodes measured, already",
        );
        return Err(ErrorBody::refused(vec![refusal.hint("try again when that has ended")]));
    };
    let asked = app.clone();
    let done = app.call(move |_| {
        Ok(match request.forget {
            true => forget(&asked).map(|()| None),
            false => all(&asked, here, mib).map(Some),
        })
    });
    let measured = done.await??;
    app.layouts.told.forget();
    Ok(MeasureResult { node: here, measured })
}

/// How many MiB a user wants.
fn checked(request: &MeasureRequest) -> Result<Option<u64>, ErrorBody> {
    let mib = request.mib.map(u64::from);
    let bad = |text: String| Err(ErrorBody::new(ErrorCode::BadRequest, text));
    match mib {
        Some(_) if request.forget => bad("forget measures nothing: leave mib out".to_owned()),
        Some(mib) if !(1..=MOST_BYTES / MIB).contains(&mib) => {
            bad(format!("mib is {mib}: want 1 to {}", MOST_BYTES / MIB))
        }
        mib => Ok(mib),
    }
}

/// Blocks.
fn forget(app: &App) -> Result<(), ErrorBody> {
    match std::fs::remove_file(app.host.path(FILE)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let text = format!("{FILE} is not removed, and plans go by it: {error}");
            Err(ErrorBody::new(ErrorCode::Failed, text))
        }
        _ => Ok(()),
    }
}

/// Blocks.
fn all(app: &App, here: NodeId, mib: Option<u64>) -> Result<NumaMeasured, ErrorBody> {
    let (root, began) = (app.host.path("/"), Instant::now());
    let host = numa::read(&root);
    let time = each(pairs(&host).count());
    let failed = |text: String| {
        let body = ErrorBody::new(ErrorCode::Failed, text);
        body.hint("plans go by what they went by before: mintctl layout show")
    };
    let mut found = Vec::new();
    let cache = largest_cache(&root, &host);
    for memory in host.iter().filter(|one| one.has_memory) {
        let own: Vec<u32> = pairs(&host)
            .filter(|(_, of)| of.id == memory.id)
            .filter_map(|(cpus, _)| cpus.last_cpu())
            .collect();
        if own.is_empty() {
            continue;
        }
        // what is free now: it was some seconds since others were looked at
        let free = numa::read(&root).into_iter().find(|one| one.id == memory.id);
        let free_bytes = free.map_or(0, |one| one.free_bytes);
        let size =
            size(mib, cache, free_bytes).map_err(|least| short(here, memory, free_bytes, least))?;
        let mut buffer = app.layouts.meter.buffer(memory.id, size.bytes).map_err(|error| {
            failed(format!(
                "node {here} gets no {} of {}: {error}",
                format_bytes(size.bytes),
                memory.id
            ))
        })?;
        for (cpus, _) in pairs(&host).filter(|(_, of)| of.id == memory.id) {
            let Some(cpu) = cpus.last_cpu() else { continue };
            if began.elapsed() > LIMIT {
                return Err(failed(format!(
                    "node {here} has not measured its NUMA nodes within {} s: it is too busy",
                    LIMIT.as_secs()
                )));
            }
            let timed = buffer.read(cpu, time).map_err(|error| {
                failed(format!(
                    "CPU {cpu} of node {here} does not read memory of {}: {error}",
                    memory.id
                ))
            })?;
            found.push(NumaPair {
                cpus_of: cpus.id.0,
                memory_of: memory.id.0,
                cpu,
                buffer_bytes: size.bytes,
                may_be_cached: size.may_be_cached,
                latency_ns: timed.latency_ns,
                read_mb_s: whole(timed.read_mb_s),
            });
        }
    }
    if found.is_empty() {
        let text = format!(
            "node {here} has no NUMA nodes: its kernel names none in /sys/devices/system/node"
        );
        return Err(failed(text));
    }
    found.sort_by_key(|one| (one.cpus_of, one.memory_of));
    let measured = NumaMeasured {
        at_s: now_s(),
        cpu_model: cpu_model(&root),
        numas: host.iter().map(|one| one.id.0).collect(),
        pairs: found,
    };
    write(&app.host.path(FILE), &measured)
        .map_err(|error| failed(format!("what was measured is not written to {FILE}: {error}")))?;
    for one in &measured.pairs {
        let NumaPair { cpus_of, memory_of, latency_ns, read_mb_s, .. } = one;
        info!(cpus_of, memory_of, latency_ns, read_mb_s, "memory was measured");
    }
    Ok(measured)
}

/// How long CPUs read for each pair.
fn each(pairs: usize) -> Duration {
    EACH.min(ALL / u32::try_from(pairs.max(1)).unwrap_or(u32::MAX))
}

/// Of the CPUs that read. None where one is not known.
fn largest_cache(root: &Path, host: &[HostNuma]) -> Option<u64> {
    let cpus = host.iter().filter_map(HostNuma::last_cpu);
    let sizes = cpus.map(|cpu| numa::cache_bytes(root, cpu));
    sizes.collect::<Option<Vec<u64>>>()?.into_iter().max()
}

/// Of what CPUs read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Size {
    bytes: u64,
    may_be_cached: bool,
}

/// How much memory of a NUMA node CPUs read.
///
/// # Arguments
/// * `mib` - what a user wants.
/// * `cache_bytes` - what the largest last-level cache has.
/// * `free_bytes` - what is free of the NUMA node.
///
/// # Errors
/// With what is needed at least, when that is more than may be taken of what is free.
fn size(mib: Option<u64>, cache_bytes: Option<u64>, free_bytes: u64) -> Result<Size, u64> {
    let enough = cache_bytes.map_or(LEAST_BYTES, |bytes| bytes.saturating_mul(CACHES));
    let most = free_bytes / FREE_PART;
    let (least, bytes) = match mib {
        Some(mib) => (mib * MIB, mib * MIB),
        // whole MiB: large pages
        None => (LEAST_BYTES, enough.clamp(LEAST_BYTES, MOST_BYTES).min(most) / MIB * MIB),
    };
    if least > most {
        return Err(least);
    }
    Ok(Size { bytes, may_be_cached: bytes < enough })
}

fn short(here: NodeId, memory: &HostNuma, free_bytes: u64, least_bytes: u64) -> ErrorBody {
    let numa = memory.id;
    let text = format!(
        "{numa} of node {here} has {} free: it takes four times the {} that CPUs are to read",
        format_bytes(free_bytes),
        format_bytes(least_bytes)
    );
    let refusal =
        Refusal::new(RefusalCode::MemoryShort, format_args!("{numa} of node {here}"), text);
    ErrorBody::refused(vec![refusal.hint("move a guest away first, or have CPUs read less: --mib")])
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn cpus_read_several_times_what_caches_have_and_a_part_of_what_is_free() {
        let of = |mib, cache_mib: Option<u64>, free| {
            size(mib, cache_mib.map(|cache| cache * MIB), free)
                .map(|size| (size.bytes / MIB, size.may_be_cached))
                .map_err(|least| least / MIB)
        };
        assert_eq!(of(None, Some(32), 8 * GIB), Ok((128, false)));
        assert_eq!(of(None, Some(1), 8 * GIB), Ok((64, false)), "at least");
        assert_eq!(of(None, Some(384), 8 * GIB), Ok((512, true)), "at most");
        assert_eq!(of(None, None, 8 * GIB), Ok((64, false)), "nobody knows the cache");
        assert_eq!(of(None, Some(32), 403 * MIB), Ok((100, true)), "a quarter of what is free");
        assert_eq!(of(None, Some(32), 256 * MIB), Ok((64, true)));
        assert_eq!(of(None, Some(32), 255 * MIB), Err(64));
        assert_eq!(of(Some(4), Some(1), 16 * MIB), Ok((4, false)));
        assert_eq!(of(Some(4), None, 16 * MIB), Ok((4, true)));
        assert_eq!(of(Some(4), Some(32), 15 * MIB), Err(4));
    }

    #[test]
    fn many_pairs_are_read_as_long_as_few() {
        assert_eq!((each(0), each(4)), (EACH, EACH));
        assert_eq!(each(300), Duration::from_millis(100));
    }

    #[test]
    fn request_that_makes_no_sense_is_refused() {
        let of = |mib, forget| checked(&MeasureRequest { mib, forget }).map_err(|body| body.code);
        assert_eq!((of(None, true), of(Some(512), false)), (Ok(None), Ok(Some(512))));
        for (mib, forget) in [(0, false), (513, false), (4, true)] {
            assert_eq!(of(Some(mib), forget), Err(ErrorCode::BadRequest), "{mib} {forget}");
        }
    }
}
