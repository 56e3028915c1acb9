// SPDX-License-Identifier: Apache-2.0
//! The machine's authority for libvirt and QEMU, which want one: a key that node 0 makes and
//! bundles carry on, as they do the machine's ssh key. It says of a certificate that it is of
//! a node of this machine; nothing that mintd asks of its peers stands on it.

use std::fs;

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use mint_types::{MachineId, NodeId, PeerId};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};

use super::certificate::{SKEW, VALID};
use super::error::{PkiError, failed, file_error};
use crate::identity::write_private;

/// Below a bundle and a state folder; keys of nodes are elsewhere.
const KEY: &str = "tls/authority.key";
const CERTIFICATE: &str = "tls/authority.pem";
/// What it is believed for: as long as a machine lasts.
const LASTS: Duration = Duration::from_secs(20 * 365 * 24 * 3600);

/// The machine's authority.
pub(crate) struct Authority {
    machine: MachineId,
    key: KeyPair,
    /// As PEM.
    certificate: String,
}

/// A certificate that it gave, and its key; both as PEM.
pub(crate) struct Issued {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    /// From the bundle; on node 0 without one from the state folder, made if needed. Nothing
    /// where the node's starter had none.
    pub fn open(
        here: PeerId,
        bundle: &Path,
        state: &Path,
        now: SystemTime,
    ) -> Result<Option<Self>, PkiError> {
        for place in [bundle, state] {
            // power may have gone while they were written
            if let Some(found) = Self::read(here.machine, place) {
                return Ok(Some(found));
            }
        }
        if here.node != NodeId::ZERO {
            return Ok(None);
        }
        let key = KeyPair::generate().map_err(failed("make a key"))?;
        let certificate = params(here.machine, now)?
            .self_signed(&key)
            .map_err(failed("sign a certificate"))?
            .pem();
        let made = Self { machine: here.machine, key, certificate };
        for (name, data) in made.files() {
            let path = state.join(name);
            fs::create_dir_all(path.with_file_name("")).map_err(file_error(&path))?;
            write_private(&path, &data).map_err(file_error(&path))?;
        }
        Ok(Some(made))
    }

    fn read(machine: MachineId, folder: &Path) -> Option<Self> {
        let key = KeyPair::from_pem(&fs::read_to_string(folder.join(KEY)).ok()?).ok()?;
        let certificate = fs::read_to_string(folder.join(CERTIFICATE)).ok()?;
        Some(Self { machine, key, certificate })
    }

    /// What a bundle carries on.
    pub fn files(&self) -> [(&'static str, Vec<u8>); 2] {
        [
            (KEY, self.key.serialize_pem().into_bytes()),
            (CERTIFICATE, self.certificate.clone().into_bytes()),
        ]
    }

    /// Its own certificate, as PEM: what others believe it by.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A certificate for a node of this machine, for both ends of a connection, and a key.
    ///
    /// # Errors
    /// When a name is none that certificates can have.
    pub fn issue(
        &self,
        node: NodeId,
        names: &[String],
        address: IpAddr,
        now: SystemTime,
    ) -> Result<Issued, PkiError> {
        let id = PeerId { machine: self.machine, node };
        let mut all = vec![id.to_string()];
        all.extend_from_slice(names);
        let mut params = CertificateParams::new(all).map_err(failed("name a node"))?;
        params.subject_alt_names.push(SanType::IpAddress(address));
        let mut name = DistinguishedName::new();
        name.push(DnType::CommonName, id.to_string());
        params.distinguished_name = name;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        params.not_before = from(now).into();
        params.not_after = (now + VALID).into();
        let key = KeyPair::generate().map_err(failed("make a key"))?;
        let own = self::params(self.machine, now)?;
        let certificate = params
            .signed_by(&key, &Issuer::from_params(&own, &self.key))
            .map_err(failed("sign a certificate"))?;
        Ok(Issued { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// What its certificate says; of an issuer only the name counts.
fn params(machine: MachineId, now: SystemTime) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::new(Vec::new()).map_err(failed("name the machine"))?;
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, format!("Mint machine {machine}"));
    params.distinguished_name = name;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.not_before = from(now).into();
    params.not_after = (now + LASTS).into();
    Ok(params)
}

/// No two clocks are the same, and certificates know no time before 1970.
fn from(now: SystemTime) -> SystemTime {
    let first = SystemTime::UNIX_EPOCH;
    now.checked_sub(SKEW).filter(|&from| from > first).unwrap_or(first)
}

/// Whether a text is one certificate as PEM, and nothing else that a file of them would take.
pub(crate) fn is_one_certificate(text: &str) -> bool {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    let mut found = CertificateDer::pem_slice_iter(text.as_bytes());
    let first =
        found.next().is_some_and(|one| one.is_ok_and(|der| super::public_key(&der).is_ok()));
    first && found.next().is_none() && text.trim_start().starts_with("-----BEGIN CERTIFICATE-----")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::RootCertStore;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

    fn id(node: u32) -> PeerId {
        let machine = MachineId::from_random([7; 16]).unwrap();
        PeerId { machine, node: NodeId::new(node).unwrap() }
    }

    fn is_believed(authority: &str, issued: &Issued, name: &str) -> bool {
        use rustls::client::WebPkiServerVerifier;
        use rustls::client::danger::ServerCertVerifier;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build().unwrap();
        let leaf = CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        verifier.verify_server_cert(&leaf, &[], &name, &[], UnixTime::now()).is_ok()
    }

    #[test]
    fn every_node_of_a_machine_has_its_authority_and_others_believe_what_it_gives() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let place = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.join("tls")).unwrap();
            path
        };
        let (none, state) = (place("none"), place("state"));
        let first = Authority::open(id(0), &none, &state, now).unwrap().unwrap();
        let again = Authority::open(id(0), &none, &state, now).unwrap().unwrap();
        assert_eq!(first.certificate(), again.certificate(), "it is made once");
        assert!(Authority::open(id(1), &none, &place("one"), now).unwrap().is_none());
        let bundle = place("bundle");
        first
            .files()
            .into_iter()
            .for_each(|(name, data)| fs::write(bundle.join(name), data).unwrap());
        let other = Authority::open(id(1), &bundle, &place("one"), now).unwrap().unwrap();
        let names = ["node1".to_owned(), "web".to_owned()];
        let issued = other.issue(id(1).node, &names, "10.77.0.11".parse().unwrap(), now).unwrap();
        for name in ["node1", "web", "10.77.0.11"] {
            assert!(is_believed(first.certificate(), &issued, name), "{name}");
        }
        assert!(!is_believed(first.certificate(), &issued, "node2"));
        let stranger = Authority::open(id(0), &none, &place("stranger"), now).unwrap().unwrap();
        assert!(!is_believed(stranger.certificate(), &issued, "node1"));
    }

    #[test]
    fn only_one_certificate_is_taken_for_one() {
        let folder = tempfile::tempdir().unwrap();
        let made = Authority::open(id(0), folder.path(), folder.path(), SystemTime::now());
        let made = made.unwrap().unwrap();
        let good = made.certificate().to_owned();
        assert!(is_one_certificate(&good));
        let key = String::from_utf8(made.files()[0].1.clone()).unwrap();
        for bad in [format!("{good}{good}"), format!("x\n{good}"), key, String::new()] {
            assert!(!is_one_certificate(&bad), "{bad}");
        }
    }
}
