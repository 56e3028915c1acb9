// SPDX-License-Identifier: Apache-2.0
//! Tables for people, in Markdown.

use std::fmt::Write;

use crate::bounds::bounds;
use crate::case::{CASES, Case};
use crate::error::SimError;
use crate::figures::Figures;
use crate::fit::fit;
use crate::machine::Machine;

/// Ratios of latencies, in tenths, for which losses are told.
const FAR: std::ops::RangeInclusive<u32> = 13..=22;
/// Speeds of relocations for which recoveries are told, bytes a second.
const MOVE_BYTES_S: [f64; 5] = [0.2e9, 0.35e9, 0.5e9, 1e9, 2e9];
/// Places in [`CASES`] of those of which L tells losses and recoveries.
const TOLD: [usize; 3] = [0, 2, 4];

/// All tables.
///
/// # Errors
/// When no constants can be fitted, or a case cannot be simulated.
pub fn report() -> Result<String, SimError> {
    let machine = fit(&CASES[0], &Machine::default())?;
    let mut text = String::new();
    cases(&mut text, &machine)?;
    sensitivity(&mut text, &machine)?;
    let limits = bounds(&CASES[0], &machine)?;
    let figures = Figures::of(&CASES[0], &machine)?;
    line(&mut text, "\nSimulated: what the guest of case 1-1 loses, by where it is.\n");
    line(
        &mut text,
        "| by lot, mean of 100 | by default | best vCPUs, memory by default | Simple |",
    );
    line(&mut text, "| --- | --- | --- | --- |");
    let each = [limits.random, figures.loss, limits.best_vcpus, figures.left_before];
    line(&mut text, &format!("| {} |", each.map(percent).join(" | ")));
    Ok(text)
}

/// L beside what is simulated.
fn cases(text: &mut String, machine: &Machine) -> Result<(), SimError> {
    let (cycles, speed) = (machine.miss_cycles, machine.move_bytes_s / 1e9);
    line(
        text,
        &format!(
            "Simulated. Fitted to case 1-1 alone: a local miss takes {cycles:.1} cycles, and {speed:.3} GB/s are \
             relocated. A far one takes {:.1} times as long (not fitted).\n",
            f64::from(machine.far) / 10.0
        ),
    );
    line(
        text,
        "| case | loss: L | simulated | points | recovery: L | simulated | difference | price of a resident: L | \
         simulated |",
    );
    line(text, &format!("|{}", " --- |".repeat(9)));
    let all = CASES.iter().map(|case| Ok((case, Figures::of(case, machine)?)));
    let all: Vec<(&Case, Figures)> = all.collect::<Result<_, SimError>>()?;
    for (case, is) in &all {
        let said = case.paper;
        let points = said.loss.map(|loss| format!("{:+.1}", 100.0 * (is.loss - loss)));
        let seconds = |said: usize| format!("{:+} s", is.recovery_s as f64 - said as f64);
        let cells = [
            format!("{} ({}, {})", case.name, case.policy, case.incoming.name),
            or_dash(said.loss.map(percent)),
            percent(is.loss),
            or_dash(points),
            or_dash(said.recovery_s.map(|seconds| format!("{seconds} s"))),
            format!("{} s", is.recovery_s),
            or_dash(said.recovery_s.map(seconds)),
            or_dash(said.price.map(percent)),
            percent(is.price),
        ];
        line(text, &format!("| {} |", cells.join(" | ")));
    }
    line(text, "\nSimulated: what is moved, and what it comes to.\n");
    line(
        text,
        "| case | moves: after | before | relocated after it has come | others' memory that goes before | loss in the \
         end: after | before | first second of before, to its last |",
    );
    line(text, &format!("|{}", " --- |".repeat(8)));
    for (case, is) in &all {
        let bytes = |bytes: u64| {
            format!("{:.2} GB, {:.1} s", bytes as f64 / 1e9, bytes as f64 / machine.move_bytes_s)
        };
        let cells = [
            case.name.to_owned(),
            is.moves_after.to_string(),
            is.moves_before.to_string(),
            bytes(is.relocated_bytes),
            bytes(is.evicted_bytes),
            percent(is.left_after),
            percent(is.left_before),
            percent(is.first_second),
        ];
        line(text, &format!("| {} |", cells.join(" | ")));
    }
    Ok(())
}

/// How much hangs on constants that nobody has measured.
fn sensitivity(text: &mut String, machine: &Machine) -> Result<(), SimError> {
    let told = || TOLD.map(|at| CASES[at].name);
    let head = |what: &str| {
        let each = told().map(|name| format!("{name}: loss | recovery"));
        format!("| {what} | {} |\n|{}", each.join(" | "), " --- |".repeat(1 + 2 * TOLD.len()))
    };
    let row = |name: String, machine: &Machine| -> Result<String, SimError> {
        let mut cells = vec![name];
        for at in TOLD {
            let is = Figures::of(&CASES[at], machine)?;
            cells.extend([percent(is.loss), format!("{} s", is.recovery_s)]);
        }
        Ok(format!("| {} |", cells.join(" | ")))
    };
    line(text, "\nSimulated: the same with another ratio of far to local latency.\n");
    line(text, &head("ratio"));
    for far in FAR {
        let name = format!("{:.1}", f64::from(far) / 10.0);
        line(text, &row(name, &Machine { far, ..*machine })?);
    }
    line(text, "\nSimulated: the same with another speed of relocations.\n");
    line(text, &head("GB/s"));
    for move_bytes_s in MOVE_BYTES_S {
        let name = format!("{:.2}", move_bytes_s / 1e9);
        line(text, &row(name, &Machine { move_bytes_s, ..*machine })?);
    }
    Ok(())
}

fn line(text: &mut String, line: &str) {
    // a string takes all that is written to it
    let _ = writeln!(text, "{line}");
}

fn percent(part: f64) -> String {
    // no -0.0
    format!("{:.1} %", 100.0 * part + 0.0)
}

fn or_dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "–".to_owned())
}
