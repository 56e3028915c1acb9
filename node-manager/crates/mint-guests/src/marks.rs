// SPDX-License-Identifier: Apache-2.0
//! CPUs that a layout keeps a guest's vCPUs to, as its metadata has them: by them its owner's own wishes are told from
//! what the next layout may change.

use quick_xml::Reader;
use quick_xml::events::Event;

use crate::domain::{Domain, VcpuPin, cpu_set, element};

/// Namespace of the element in a domain's metadata.
pub const NAMESPACE: &str = "urn:mint:layout:1";
/// The prefix that stands for it there.
pub const PREFIX: &str = "mint";
/// The element.
pub(crate) const ELEMENT: &str = "mint:layout";
const PINS: &str = "pins";

/// vCPUs that a layout keeps to CPUs, whatever their owner has done since; none of a text that is no mark of ours.
pub fn marked(xml: &str) -> Vec<VcpuPin> {
    element(xml, &["domain", "metadata", ELEMENT]).and_then(read).unwrap_or_default()
}

fn read(mark: &str) -> Option<Vec<VcpuPin>> {
    let mut reader = Reader::from_str(mark);
    let (Event::Start(tag) | Event::Empty(tag)) = reader.read_event().ok()? else { return None };
    let text = tag.try_get_attribute(PINS).ok()??.unescape_value().ok()?.into_owned();
    let pin = |word: &str| {
        let (vcpu, cpus) = word.split_once(':')?;
        Some(VcpuPin { vcpu: vcpu.parse().ok()?, cpus: cpu_set(cpus)? })
    };
    text.split_whitespace().map(pin).collect()
}

/// What a domain's owner keeps vCPUs to: a pin that is another one than the layout's by now is its owner's.
pub fn owners(xml: &str, domain: &Domain) -> Vec<VcpuPin> {
    let marked = marked(xml);
    domain.vcpu_pins.iter().filter(|pin| !marked.contains(pin)).cloned().collect()
}

/// The element as it stands in a domain's metadata, or, without a prefix, as libvirt wants it to put it there. A vCPU that
/// is about to get other CPUs may be there twice.
pub fn mark(pins: &[VcpuPin], prefix: bool) -> String {
    let words: Vec<String> = pins.iter().map(|pin| format!("{}:{}", pin.vcpu, pin.cpus)).collect();
    let words = words.join(" ");
    if prefix {
        format!("<{ELEMENT} xmlns:{PREFIX}='{NAMESPACE}' {PINS}='{words}'/>")
    } else {
        format!("<layout {PINS}='{words}'/>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(pins: &[(u32, &str)]) -> Vec<VcpuPin> {
        let pin = |(vcpu, cpus): &(u32, &str)| VcpuPin { vcpu: *vcpu, cpus: cpus.parse().unwrap() };
        pins.iter().map(pin).collect()
    }

    fn domain(pins: &[&str], mark: &str) -> String {
        let pin =
            |(vcpu, cpus): (usize, &&str)| format!("<vcpupin vcpu='{vcpu}' cpuset='{cpus}'/>");
        let pins: String = pins.iter().enumerate().map(pin).collect();
        format!(
            "<domain type='kvm'><name>a</name><memory>1024</memory><metadata>{mark}</metadata>\
             <cputune>{pins}</cputune></domain>"
        )
    }

    #[test]
    fn pins_that_are_marked_are_the_layouts_until_they_are_others() {
        let owned = |pins: &[&str], mark: &str| -> Vec<(u32, String)> {
            let xml = domain(pins, mark);
            let owners = owners(&xml, &Domain::parse(&xml).unwrap());
            owners.iter().map(|pin| (pin.vcpu, pin.cpus.to_string())).collect()
        };
        let given = mark(&sets(&[(0, "1-2"), (2, "4")]), true);
        assert_eq!(owned(&["1-2", "3", "4"], &given), [(1, "3".into())]);
        // as libvirt writes lists
        assert_eq!(owned(&["1,2", "3", "5"], &given), [(1, "3".into()), (2, "5".into())]);
        let between = mark(&sets(&[(0, "1-2"), (0, "3")]), true);
        assert_eq!((owned(&["1-2"], &between), owned(&["3"], &between)), (vec![], vec![]));
        assert_eq!(owned(&["1-2"], ""), [(0, "1-2".into())]);
        assert_eq!(owned(&["1-2"], &mark(&[], true)), [(0, "1-2".into())]);
        for bad in ["<mint:layout/>", "<mint:layout pins='0'/>", "<mint:layout pins='a:1'/>"] {
            assert_eq!(owned(&["1-2"], bad), [(0, "1-2".into())], "{bad}");
        }
    }

    #[test]
    fn libvirt_gets_the_element_without_its_prefix() {
        assert_eq!(mark(&sets(&[(0, "1-2"), (2, "4")]), false), "<layout pins='0:1-2 2:4'/>");
    }
}
