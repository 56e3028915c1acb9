// SPDX-License-Identifier: Apache-2.0
//! `mint-sim`: simulates the experiments of a paper on layouts, and prints what comes of them.

use std::error::Error;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use mint_sim::{CASES, Machine, csv, fit, report};

/// What layout policies would do to guests that are moved, simulated.
#[derive(Parser)]
#[command(name = "mint-sim")]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Print all tables, in Markdown.
    Table,
    /// Write a file for each case: what each guest gets done, second by second.
    Csv {
        /// Where to; it is made if there is none.
        folder: PathBuf,
    },
}

fn main() -> Result<(), Box<dyn Error>> {
    match Args::parse().what {
        What::Table => print!("{}", report()?),
        What::Csv { folder } => {
            let machine = fit(&CASES[0], &Machine::default())?;
            std::fs::create_dir_all(&folder)?;
            for case in CASES {
                let file = folder.join(format!("case-{}.csv", case.name));
                std::fs::write(file, csv(&case, &machine)?)?;
            }
        }
    }
    Ok(())
}
