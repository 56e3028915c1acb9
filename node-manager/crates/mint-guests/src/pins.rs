// SPDX-License-Identifier: Apache-2.0
//! A domain's XML whose vCPUs are kept to CPUs from the first instruction on.

use mint_types::CpuSet;

use crate::domain::{Domain, DomainError, VcpuPin};
use crate::marks::mark;
use crate::prepare::put;

/// Keeps vCPUs to CPUs of the host, those that the XML leaves free alone: its owner's wish is one. What it keeps is marked
/// as not its owner's ([`crate::marks`]).
///
/// # Arguments
/// * `cpus` - of each vCPU, by its number.
///
/// # Errors
/// When it is no XML of a domain.
pub fn keep_to(xml: &str, cpus: &[CpuSet]) -> Result<String, DomainError> {
    let pins = Domain::parse(xml)?.vcpu_pins;
    let (mut lines, mut kept) = (String::new(), Vec::new());
    for (vcpu, cpus) in (0_u32..).zip(cpus) {
        if !cpus.is_empty() && !pins.iter().any(|pin| pin.vcpu == vcpu) {
            lines += &format!("<vcpupin vcpu='{vcpu}' cpuset='{cpus}'/>");
            kept.push(VcpuPin { vcpu, cpus: cpus.clone() });
        }
    }
    if lines.is_empty() {
        return Ok(xml.to_owned());
    }
    put(&put(xml, "cputune", &lines)?, "metadata", &mark(&kept, true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::tests::WEB;
    use crate::marks::owners;

    fn pins(xml: &str) -> Vec<(u32, String)> {
        let pins = Domain::parse(xml).unwrap().vcpu_pins;
        pins.iter().map(|pin| (pin.vcpu, pin.cpus.to_string())).collect()
    }

    fn sets(lists: &[&str]) -> Vec<CpuSet> {
        lists.iter().map(|list| CpuSet::try_from((*list).to_owned()).unwrap()).collect()
    }

    #[test]
    fn vcpus_without_a_wish_are_kept_to_cpus() {
        let free = "<domain type='kvm'><name>a</name><memory>1024</memory><vcpu>3</vcpu></domain>";
        let kept = keep_to(free, &sets(&["1-2", "", "4"])).unwrap();
        assert_eq!(pins(&kept), [(0, "1-2".into()), (2, "4".into())]);
        assert!(owners(&kept, &Domain::parse(&kept).unwrap()).is_empty());
        // again: they are kept already
        assert_eq!(keep_to(&kept, &sets(&["7", "", "7"])).unwrap(), kept);
        assert_eq!(pins(&keep_to(&kept, &sets(&["7", "8"])).unwrap())[2], (1, "8".into()));
        assert_eq!(keep_to(free, &[]).unwrap(), free);
    }

    #[test]
    fn owners_wish_stays() {
        assert!(!pins(WEB).is_empty());
        assert_eq!(keep_to(WEB, &sets(&["7", "7"])).unwrap(), WEB);
        assert!(keep_to("<domain", &sets(&["1"])).is_err());
    }
}
