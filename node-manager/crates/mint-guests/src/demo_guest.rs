// SPDX-License-Identifier: Apache-2.0
//! What `mint-guest` does: the demo guest, defined and started on this node.

use std::fs::File;

use crate::description::Description;
use crate::failure::Failure;
use crate::guest::{GuestRequest, Network};
use crate::tools::{Tools, must, virsh};
use crate::xml;
use mint_types::PagingPolicy;

/// How far to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Until {
    /// Only make the domain XML.
    Printed,
    /// Define it.
    Defined,
    /// Start it, too.
    #[default]
    Started,
}

/// What the demo guest is asked to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DemoGuest {
    /// Its name.
    pub name: String,
    /// How many vCPUs.
    pub vcpus: String,
    /// A size like `128M`.
    pub memory: String,
    /// Hosts of its memory and their shares.
    pub split: Option<String>,
    /// Chunks that its pages go and come by.
    pub chunk: String,
    /// How its pager chooses what goes.
    pub policy: PagingPolicy,
    /// Hosts that have each page of a split memory that this node has not: 1 or 2.
    pub copies: u32,
    /// CPUs for its vCPUs.
    pub pin: Option<String>,
    /// Kernel to boot.
    pub kernel: String,
    /// Initrd to boot.
    pub initrd: String,
    /// More words for its kernel command line.
    pub append: String,
    /// Size of its disk, as virsh reads it; none: no disk.
    pub disk: Option<String>,
    /// Whether it is on the node's bridge.
    pub network: bool,
    /// For how many seconds it tests its disk.
    pub disk_test: Option<String>,
    /// How many blocks a second it writes, for ever.
    pub disk_load: Option<String>,
    /// How many KiB of memory it writes and compares, for ever.
    pub memory_load: Option<String>,
    /// What it pings; `node` is this node.
    pub net_test: Option<String>,
    /// The guest whose echo service it talks with, for ever.
    pub net_echo: Option<String>,
    /// How far to go.
    pub until: Until,
}

impl DemoGuest {
    /// Carries it out; gives the domain XML.
    ///
    /// # Errors
    /// When a guest of that name runs, the node cannot have it, or libvirt refuses.
    pub fn carry_out(&self, node: &Description, tools: &mut dyn Tools) -> Result<String, Failure> {
        let name = self.name.as_str();
        for file in [&self.kernel, &self.initrd] {
            File::open(file).map_err(|error| {
                let text = format!("cannot read {file}, which guest {name} is to boot: {error}");
                Failure::Failed(text)
            })?;
        }
        let known = self.known(tools)?;
        let request = self.request(node);
        let domain = xml::domain(&request.on(node)?);
        if self.until == Until::Printed {
            return Ok(domain);
        }
        self.make_disk(tools)?;
        if known {
            must(tools, &virsh(&["undefine", name]), "", || {
                format!("cannot define guest {name} anew")
            })?;
        }
        must(tools, &virsh(&["define", "--validate", "/dev/stdin"]), &domain, || {
            format!("libvirt did not take guest {name}")
        })?;
        if self.until == Until::Started {
            must(tools, &virsh(&["start", name]), "", || {
                format!("guest {name} did not start; see /var/log/libvirt/qemu/{name}.log")
            })?;
        }
        Ok(domain)
    }

    /// Whether a guest of that name is defined; one that runs is an error.
    fn known(&self, tools: &mut dyn Tools) -> Result<bool, Failure> {
        let name = self.name.as_str();
        match tools.run(&virsh(&["domstate", name]), "") {
            Ok(ended) if ended.ok => match ended.out.trim() {
                "shut off" => Ok(true),
                state => Err(Failure::Failed(format!(
                    "guest {name} is {state} on this node; end it first: virsh destroy {name}"
                ))),
            },
            Ok(_) => Ok(false),
            Err(error) => Err(Failure::Failed(format!("cannot run virsh: {error}"))),
        }
    }

    fn request(&self, node: &Description) -> GuestRequest {
        // quiet: each byte on the emulated serial port costs the guest two exits.
        let mut cmdline = "console=ttyS0 quiet".to_owned();
        let mut word = |text: String| {
            cmdline.push(' ');
            cmdline.push_str(&text);
        };
        if !self.append.is_empty() {
            word(self.append.clone());
        }
        if self.network {
            word("mint.ip=dhcp".to_owned());
            match self.net_test.as_deref() {
                Some("node") => word(format!("mint.nettest={}", node.guest_network.addr())),
                Some(address) => word(format!("mint.nettest={address}")),
                None => {}
            }
            if let Some(address) = &self.net_echo {
                word(format!("mint.echo={address}"));
            }
        }
        if let Some(seconds) = &self.disk_test {
            word(format!("mint.disktest={seconds}"));
        }
        if let Some(rate) = &self.disk_load {
            word(format!("mint.diskload={rate}"));
        }
        if let Some(kib) = &self.memory_load {
            word(format!("mint.memoryload={kib}"));
        }
        let disk = node.pool_path.join(format!("{}.raw", self.name));
        GuestRequest {
            vcpus: self.vcpus.clone(),
            memory: self.memory.clone(),
            split: self.split.clone(),
            chunk: self.chunk.clone(),
            policy: self.policy,
            copies: self.copies,
            pin: self.pin.clone(),
            kernel: Some(self.kernel.clone()),
            initrd: Some(self.initrd.clone()),
            cmdline: Some(cmdline),
            disk: self.disk.is_some().then(|| disk.display().to_string()),
            network: if self.network { Network::Bridge } else { Network::None },
            ..GuestRequest::new(&self.name)
        }
    }

    fn make_disk(&self, tools: &mut dyn Tools) -> Result<(), Failure> {
        let Some(size) = &self.disk else { return Ok(()) };
        let volume = format!("{}.raw", self.name);
        let known = tools.run(&virsh(&["vol-info", "--pool", xml::POOL, &volume]), "");
        if !known.is_ok_and(|ended| ended.ok) {
            let words = ["vol-create-as", xml::POOL, &volume, size, "--format", "raw"];
            must(tools, &virsh(&words), "", || {
                format!("could not make the disk {volume} of {size} in the pool '{}'", xml::POOL)
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::tests::web;
    use crate::tools::tests::Played;

    fn demo() -> DemoGuest {
        DemoGuest {
            name: "demo".to_owned(),
            vcpus: "1".to_owned(),
            memory: "128M".to_owned(),
            split: None,
            chunk: "64K".to_owned(),
            policy: PagingPolicy::Aging,
            copies: 1,
            pin: None,
            kernel: "/dev/null".to_owned(),
            initrd: "/dev/null".to_owned(),
            append: String::new(),
            disk: Some("64M".to_owned()),
            network: true,
            disk_test: None,
            disk_load: None,
            memory_load: None,
            net_test: None,
            net_echo: None,
            until: Until::Started,
        }
    }

    /// No guest of that name yet.
    fn empty() -> Played {
        Played::default().answer("domstate", false, "no such domain")
    }

    #[test]
    fn new_guest_gets_disk_and_card_and_starts() {
        let mut tools = empty().answer("vol-info", false, "none");
        let guest = DemoGuest {
            append: "debug".to_owned(),
            net_test: Some("node".to_owned()),
            net_echo: Some("10.78.200.7".to_owned()),
            disk_test: Some("5".to_owned()),
            memory_load: Some("128".to_owned()),
            ..demo()
        };
        let domain = guest.carry_out(&web(), &mut tools).unwrap();
        assert!(
            domain.contains(
                "<cmdline>console=ttyS0 quiet debug mint.ip=dhcp mint.nettest=10.78.0.11 \
                 mint.echo=10.78.200.7 mint.disktest=5 mint.memoryload=128</cmdline>"
            ),
            "{domain}"
        );
        assert!(domain.contains("<source network=\"mint\"/>"), "{domain}");
        let ran: Vec<&str> =
            tools.lines.iter().map(|line| line.strip_prefix("virsh -q ").unwrap()).collect();
        let wanted = [
            "domstate demo",
            "vol-info --pool mint demo.raw",
            "vol-create-as mint demo.raw 64M --format raw",
            "define --validate /dev/stdin",
            "start demo",
        ];
        assert_eq!(ran, wanted);
        assert_eq!(tools.inputs[3], domain);
    }

    #[test]
    fn guest_that_is_off_is_defined_anew_and_one_that_runs_is_left_alone() {
        let mut tools = Played::default().answer("domstate", true, "shut off\n");
        demo().carry_out(&web(), &mut tools).unwrap();
        assert!(tools.lines.iter().any(|line| line.ends_with("undefine demo")));

        let mut tools = Played::default().answer("domstate", true, "running\n");
        let Err(Failure::Failed(text)) = demo().carry_out(&web(), &mut tools) else { panic!() };
        assert!(text.contains("virsh destroy demo"), "{text}");
        assert_eq!(tools.lines.len(), 1);
    }

    #[test]
    fn refused_guest_makes_no_disk() {
        let mut tools = empty();
        let guest = DemoGuest { memory: "8G".to_owned(), ..demo() };
        assert!(matches!(guest.carry_out(&web(), &mut tools), Err(Failure::Refused(_))));
        assert!(!tools.lines.iter().any(|line| line.contains("vol-") || line.contains("define")));
    }

    #[test]
    fn printed_or_defined_only() {
        let mut tools = empty();
        let guest = DemoGuest { until: Until::Printed, disk: None, network: false, ..demo() };
        let domain = guest.carry_out(&web(), &mut tools).unwrap();
        assert!(!domain.contains("<disk") && !domain.contains("<interface"), "{domain}");
        assert_eq!(tools.lines.len(), 1, "{:?}", tools.lines);

        let mut tools = empty();
        DemoGuest { until: Until::Defined, ..demo() }.carry_out(&web(), &mut tools).unwrap();
        assert!(tools.lines.last().unwrap().contains("define --validate"));
    }
}
