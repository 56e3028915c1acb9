// SPDX-License-Identifier: Apache-2.0
//! Two machines that are linked, over TLS.

use std::time::Instant;

use mint_api::{ClientError, ErrorCode, LinkView, MachineIntroduction, MachineView, NodeDetail};
use mint_types::RefusalCode;
use serde_json::{Value, json};

use super::machine::{Daemon, Machine, id};
use super::peers::two;
use super::{STUCK, body, test};

async fn introduction(of: &Daemon) -> MachineIntroduction {
    of.client.get("/v1/machine/introduction").await.unwrap()
}

async fn link(
    here: &Daemon,
    name: &str,
    introduction: &MachineIntroduction,
) -> Result<LinkView, ClientError> {
    let request = json!({ "name": name, "address": "192.0.2.2", "introduction": introduction });
    here.client.post("/v1/machine/links", &request).await
}

async fn links(of: &Daemon) -> Vec<LinkView> {
    of.client.get::<MachineView>("/v1/machine").await.unwrap().links
}

async fn until_links(of: &Daemon, good: impl Fn(&[LinkView]) -> bool) -> Vec<LinkView> {
    let deadline = Instant::now() + STUCK;
    loop {
        let links = links(of).await;
        if good(&links) {
            return links;
        }
        assert!(Instant::now() < deadline, "{links:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[test]
fn linked_machines_nodes_reach_each_other_for_guests_and_for_nothing_else() {
    test(async || {
        let (a, b) = (Machine::new(), Machine::another());
        let (zero, one) = two(&a).await;
        let far = b.daemon(0);
        let said = link(&zero, "b", &introduction(&far).await).await.unwrap();
        assert!(!said.is_up && !said.reason.is_empty(), "b knows nothing of it: {said:?}");
        let said = link(&far, "a", &introduction(&zero).await).await.unwrap();
        assert!(said.is_up, "{said:?}");
        // also a node that has no wire, and whose certificate nobody carried over by hand
        let up = |links: &[LinkView]| links.len() == 1 && links[0].is_up;
        until_links(&zero, up).await;
        let links = until_links(&one, up).await;
        assert_eq!((links[0].name.as_str(), links[0].via), ("b", id(0)));
        assert_eq!(links[0].nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [id(0)]);
        let deadline = Instant::now() + STUCK;
        let there = loop {
            match one.client.get::<NodeDetail>("/v1/nodes/b%2Fnode0").await {
                Ok(detail) => break detail.node,
                // b has not asked who else there is yet
                Err(error) => assert!(Instant::now() < deadline, "{error:?}"),
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        };
        assert_eq!((there.name.as_str(), there.is_self), ("b/node0", false));
        assert_eq!(there.address, b.address(0).ip().to_string());
        let machine = far.app.peers.tls.as_ref().unwrap().here().machine;
        assert_eq!(there.machine, Some(machine));
        // what a machine calls itself is understood, too
        let own = zero.app.peers.tls.as_ref().unwrap().here().machine;
        let own: NodeDetail = zero.client.get(&format!("/v1/nodes/{own}%2F1")).await.unwrap();
        assert_eq!((own.node.id, own.node.machine), (id(1), None));
        let absent = zero.client.get::<NodeDetail>("/v1/nodes/b%2Fnode7").await.map_err(body);
        assert!(absent.unwrap_err().is_absent());
        let unknown = zero.client.get::<NodeDetail>("/v1/nodes/c%2Fnode0").await.map_err(body);
        assert_eq!(unknown.unwrap_err().refusals[0].code, RefusalCode::MachineAbsent);
        // guests, and nothing else
        let link = zero.app.links.find("b").unwrap();
        let client = zero.app.peers.linked(&link, id(0)).unwrap();
        for path in ["/v1/nodes", "/v1/local/introductions", "/v1/local/links", "/v1/machine"] {
            let refused = body(client.get::<Value>(path).await.unwrap_err());
            assert_eq!(refused.code, ErrorCode::NotAllowed, "{path}");
        }
        let none = body(client.get::<Value>("/v1/local/vms").await.unwrap_err());
        assert_eq!(none.code, ErrorCode::GuestdDown, "it was passed on");
        // and to keep pages: who asks is told from others
        super::guests::guestd(&far.root.join("run/mint/guestd.sock"));
        let told: Value = client.post("/v1/local/leases", &json!({})).await.unwrap();
        let own = zero.app.peers.tls.as_ref().unwrap().here().machine;
        assert_eq!(told["asked"], format!("POST /v1/local/linked/{own}/leases {{}}"));
        // who is linked no more is not believed any more
        far.client.post::<Value>("/v1/machine/links/a/remove", &json!({})).await.unwrap();
        let down = |links: &[LinkView]| links.len() == 1 && !links[0].is_up;
        until_links(&zero, down).await;
        assert!(until_links(&far, |links| links.is_empty()).await.is_empty());
        // the order goes to the node that has the wire
        one.client.post::<Value>("/v1/machine/links/b/remove", &json!({})).await.unwrap();
        until_links(&zero, |links| links.is_empty()).await;
        until_links(&one, |links| links.is_empty()).await;
        let gone = zero.client.post::<Value>("/v1/machine/links/b/remove", &json!({})).await;
        assert_eq!(body(gone.unwrap_err()).refusals[0].code, RefusalCode::MachineAbsent);
    });
}

#[test]
fn machines_that_cannot_be_linked_are_refused_with_every_reason() {
    test(async || {
        let (a, b) = (Machine::new(), Machine::another());
        let (zero, far) = (a.daemon(0), b.daemon(0));
        let own = introduction(&zero).await;
        let refused = body(link(&zero, "me", &own).await.unwrap_err());
        let codes: Vec<_> = refused.refusals.iter().map(|refusal| refusal.code).collect();
        assert_eq!(codes, [RefusalCode::MachineSelf, RefusalCode::MachineSubnet]);
        let theirs = introduction(&far).await;
        link(&zero, "b", &theirs).await.unwrap();
        link(&zero, "b", &theirs).await.unwrap();
        assert_eq!(links(&zero).await.len(), 1, "the same one again");
        let mut third = theirs.clone();
        third.node.machine = mint_types::MachineId::from_random([9; 16]).unwrap();
        let refused = body(link(&zero, "b", &third).await.unwrap_err());
        let codes: Vec<_> = refused.refusals.iter().map(|refusal| refusal.code).collect();
        assert_eq!(codes, [RefusalCode::NameTaken, RefusalCode::MachineSubnet]);
        let mut bad = theirs.clone();
        bad.authority.push_str(&theirs.authority);
        let refused = body(link(&zero, "c", &bad).await.unwrap_err());
        assert_eq!((refused.code, refused.exit_status()), (ErrorCode::BadRequest, 2));
    });
}

/// A linked machine that says of its nodes what is this machine's, or another's, to say.
#[test]
fn linked_machine_introduces_none_of_ours() {
    test(async || {
        let (a, b) = (Machine::new(), Machine::another());
        let (zero, far) = (a.daemon(0), b.daemon(0));
        let pki = zero.app.peers.tls.as_ref().unwrap();
        let theirs = introduction(&far).await.node;
        let mut ours = theirs.clone();
        ours.machine = pki.here().machine;
        ours.node = id(1);
        let mut twice = theirs.clone();
        twice.node = id(3);
        assert!(pki.believe_linked(vec![theirs.clone(), ours, twice]).unwrap());
        assert!(pki.client_of(theirs.id()).is_some());
        assert!(pki.client(id(1)).is_none(), "it is no node of ours");
        let third = mint_types::PeerId { node: id(3), ..theirs.id() };
        assert!(pki.client_of(third).is_none(), "it has the key of another");
        assert!(!pki.believe_linked(vec![theirs.clone()]).unwrap(), "nothing is news");
        assert!(pki.believe_linked(Vec::new()).unwrap());
        assert!(pki.client_of(theirs.id()).is_none());
    });
}
