// SPDX-License-Identifier: Apache-2.0
//! Policies by their names.

use mint_types::LayoutPolicy;

use crate::asymsched::AsymSched;
use crate::brm::Brm;
use crate::carrefour::Carrefour;
use crate::dino::Dino;
use crate::policy::Policy;
use crate::simple::Simple;

/// Lots are the same each time: a plan that is shown is the one that is made.
const SEED: u64 = 1;

/// A policy that has seen nothing yet, with the constants that its authors' programs have.
pub fn policy(name: LayoutPolicy) -> Box<dyn Policy + Send> {
    match name {
        LayoutPolicy::Simple => Box::new(Simple::default()),
        LayoutPolicy::Dino => Box::new(Dino::default()),
        LayoutPolicy::Asymsched => Box::new(AsymSched::default()),
        LayoutPolicy::Carrefour => Box::new(Carrefour),
        LayoutPolicy::Brm => Box::new(Brm::new(SEED)),
    }
}

#[cfg(test)]
#[path = "tests/choice.rs"]
mod tests;
