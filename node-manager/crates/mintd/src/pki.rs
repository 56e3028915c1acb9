// SPDX-License-Identifier: Apache-2.0
//! Keys of the machine. Node 0 makes a certificate authority once; every node
//! gets it in its bundle and can sign for the nodes that it starts: all nodes
//! are equal, and root on one is root on all (docs/threat-model.md).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mint_node::config::Network;
use mint_node::{Bundle, BundleError, BundleFile};
use mint_types::{NodeId, NodeName};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tracing::warn;

use crate::facts::NodeFacts;
use crate::identity::write_private;
use crate::ssh::SshKeys;

/// Certificates count from here to there: nodes may have no wall clock yet, and
/// the keys live no longer than the machine's installation.
const VALID_YEARS: (i32, i32) = (1975, 2120);

/// Keys cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PkiError {
    /// A file.
    #[error("cannot use {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A key or certificate cannot be made or read.
    #[error("cannot {action}")]
    Certificate {
        /// What was tried.
        action: &'static str,
        #[source]
        source: rcgen::Error,
    },
    /// TLS does not take them.
    #[error("TLS does not take the keys in {}", path.display())]
    Tls {
        /// Folder.
        path: PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A node other than 0 without a bundle.
    #[error(
        "no keys in {} (this node was not started by a mintd): it serves its own users only",
        path.display()
    )]
    NoBundle {
        /// Where they should be.
        path: PathBuf,
    },
}

/// The machine's keys, and our node's.
pub(crate) struct Pki {
    ca_pem: String,
    ca_key_pem: String,
    folder: PathBuf,
    ssh: Option<SshKeys>,
    network: Network,
}

impl Pki {
    /// Keys from the bundle; on node 0 without one those in `state`, which are
    /// made if needed.
    pub fn open(
        node: NodeId,
        bundle: &Path,
        state: &Path,
        ssh: Option<SshKeys>,
        network: &Network,
    ) -> Result<Self, PkiError> {
        let in_bundle = bundle.join("pki");
        let folder = if in_bundle.join("ca.key").exists() {
            in_bundle
        } else if node == NodeId::ZERO {
            let folder = state.join("pki");
            make_ca(&folder)?;
            folder
        } else {
            return Err(PkiError::NoBundle { path: in_bundle });
        };
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).map_err(|source| PkiError::File { path, source })
        };
        let (ca_pem, ca_key_pem) = (read("ca.pem")?, read("ca.key")?);
        let pki = Self { ca_pem, ca_key_pem, folder, ssh, network: network.clone() };
        if !is_pair(&pki.folder, "node") {
            let (pem, key) = pki.node_certificate(node)?;
            pki.write("node.pem", &pem)?;
            pki.write("node.key", &key)?;
        }
        Ok(pki)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), PkiError> {
        let path = self.folder.join(name);
        write_private(&path, text.as_bytes()).map_err(|source| PkiError::File { path, source })
    }

    /// A new key with a certificate for that node, both as PEM.
    fn node_certificate(&self, node: NodeId) -> Result<(String, String), PkiError> {
        let failed = |action| move |source| PkiError::Certificate { action, source };
        let ca_key = KeyPair::from_pem(&self.ca_key_pem).map_err(failed("read the CA's key"))?;
        let issuer = Issuer::new(ca_params().map_err(failed("name the CA"))?, ca_key);
        let key = KeyPair::generate().map_err(failed("make a key"))?;
        let names = vec![self.network.address(node).to_string(), format!("node{node}")];
        let mut params = CertificateParams::new(names).map_err(failed("name a node"))?;
        params.distinguished_name = name(&format!("Mint node {node}"));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        validity(&mut params);
        let certificate = params.signed_by(&key, &issuer).map_err(failed("sign a certificate"))?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    /// TLS of both directions: every side shows a certificate of this machine.
    pub fn tls(&self) -> Result<(Arc<ServerConfig>, Arc<ClientConfig>), PkiError> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| PkiError::Tls {
            path: self.folder.clone(),
            source,
        };
        let read = |name: &str| {
            let path = self.folder.join(name);
            fs::read(&path).map_err(|source| PkiError::File { path, source })
        };
        let (node_pem, node_key) = (read("node.pem")?, read("node.key")?);
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&node_pem)
            .collect::<Result<_, _>>()
            .map_err(|error| failed(error.into()))?;
        let key = || PrivateKeyDer::from_pem_slice(&node_key).map_err(|error| failed(error.into()));
        let ca = CertificateDer::from_pem_slice(self.ca_pem.as_bytes())
            .map_err(|error| failed(error.into()))?;
        let mut roots = RootCertStore::empty();
        roots.add(ca).map_err(|error| failed(error.into()))?;
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| failed(error.into()))?;
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(error.into()))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key()?)
            .map_err(|error| failed(error.into()))?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(error.into()))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key()?)
            .map_err(|error| failed(error.into()))?;
        Ok((Arc::new(server), Arc::new(client)))
    }
}

/// Whether a folder has that key and its certificate, both whole: after a loss of power
/// either may be empty.
fn is_pair(folder: &Path, name: &str) -> bool {
    let read = |ending: &str| fs::read(folder.join(format!("{name}.{ending}"))).ok();
    let (Some(pem), Some(key)) = (read("pem"), read("key")) else { return false };
    let (Ok(certificate), Ok(key)) =
        (CertificateDer::from_pem_slice(&pem), PrivateKeyDer::from_pem_slice(&key))
    else {
        return false;
    };
    let provider = rustls::crypto::ring::default_provider();
    CertifiedKey::from_der(vec![certificate], key, &provider).is_ok()
}

fn make_ca(folder: &Path) -> Result<(), PkiError> {
    let file = |path: &Path| {
        let path = path.to_owned();
        move |source| PkiError::File { path, source }
    };
    if is_pair(folder, "ca") {
        return Ok(());
    }
    if folder.join("ca.pem").exists() {
        // the certificate is written last: nobody wrote half of it
        warn!(
            "the machine's keys in {} are damaged, and new ones are made: nodes that run do not \
             trust this one until they are started again",
            folder.display()
        );
    }
    fs::create_dir_all(folder).map_err(file(folder))?;
    let failed = |action| move |source| PkiError::Certificate { action, source };
    let key = KeyPair::generate().map_err(failed("make the CA's key"))?;
    let params = ca_params().map_err(failed("name the CA"))?;
    let certificate = params.self_signed(&key).map_err(failed("sign the CA's certificate"))?;
    // a node certificate of an older CA would be worth nothing
    for old in ["node.pem", "node.key"] {
        _ = fs::remove_file(folder.join(old));
    }
    // the certificate last: what is there tells that both are
    let path = folder.join("ca.key");
    write_private(&path, key.serialize_pem().as_bytes()).map_err(file(&path))?;
    let path = folder.join("ca.pem");
    write_private(&path, certificate.pem().as_bytes()).map_err(file(&path))
}

/// The CA's name and purpose. Issuing needs the same name as the certificate
/// has, so both come from here.
fn ca_params() -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name = name("Mint machine");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    validity(&mut params);
    Ok(params)
}

fn name(text: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, text);
    name
}

fn validity(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(VALID_YEARS.0, 1, 1);
    params.not_after = date_time_ymd(VALID_YEARS.1, 1, 1);
}

impl Bundle for Pki {
    fn files(&self, node: NodeId, name: &NodeName) -> Result<Vec<BundleFile>, BundleError> {
        let (pem, key) = self.node_certificate(node).map_err(|error| BundleError {
            what: "a certificate",
            node,
            source: error.into(),
        })?;
        let mut files = vec![
            NodeFacts::new(&self.network, node, name).file(),
            ("pki/ca.pem".to_owned(), self.ca_pem.clone().into_bytes()),
            ("pki/ca.key".to_owned(), self.ca_key_pem.clone().into_bytes()),
            ("pki/node.pem".to_owned(), pem.into_bytes()),
            ("pki/node.key".to_owned(), key.into_bytes()),
        ];
        if let Some(ssh) = &self.ssh {
            files.extend(ssh.bundle_files(node).map_err(|source| BundleError {
                what: "ssh keys",
                node,
                source: source.into(),
            })?);
        }
        Ok(files.into_iter().map(|(name, data)| BundleFile { name, data }).collect())
    }
}

/// Bundles of a daemon without keys: its nodes are on their own.
pub(crate) struct NoKeys(pub Network);

impl Bundle for NoKeys {
    fn files(&self, node: NodeId, name: &NodeName) -> Result<Vec<BundleFile>, BundleError> {
        let (file, data) = NodeFacts::new(&self.0, node, name).file();
        Ok(vec![BundleFile { name: file, data }])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both sides of a handshake over a pipe in memory.
    async fn handshake(server: Arc<ServerConfig>, client: Arc<ClientConfig>, to: NodeId) -> bool {
        let (near, far) = tokio::io::duplex(1 << 16);
        let acceptor = tokio_rustls::TlsAcceptor::from(server);
        let connector = tokio_rustls::TlsConnector::from(client);
        let name = rustls::pki_types::ServerName::IpAddress(
            std::net::IpAddr::from(Network::default().address(to)).into(),
        );
        let (accepted, connected) =
            tokio::join!(acceptor.accept(near), connector.connect(name, far));
        accepted.is_ok() && connected.is_ok()
    }

    #[test]
    fn nodes_of_one_machine_trust_each_other_and_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = folder.path().join("nowhere");
        let one = NodeId::new(1).unwrap();
        let zero =
            Pki::open(NodeId::ZERO, &nowhere, folder.path(), None, &Network::default()).unwrap();
        // node 1 gets a bundle, as its init would unpack it
        let bundle = folder.path().join("bundle");
        fs::create_dir_all(bundle.join("pki")).unwrap();
        for file in zero.files(one, &"web".parse().unwrap()).unwrap() {
            fs::write(bundle.join(file.name), file.data).unwrap();
        }
        let web = Pki::open(one, &bundle, &nowhere, None, &Network::default()).unwrap();
        let stranger_folder = tempfile::tempdir().unwrap();
        let stranger =
            Pki::open(NodeId::ZERO, &nowhere, stranger_folder.path(), None, &Network::default())
                .unwrap();

        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (zero_server, zero_client) = zero.tls().unwrap();
            let (web_server, web_client) = web.tls().unwrap();
            let (_, stranger_client) = stranger.tls().unwrap();
            assert!(handshake(web_server.clone(), zero_client.clone(), one).await);
            assert!(handshake(zero_server.clone(), web_client.clone(), NodeId::ZERO).await);
            assert!(!handshake(web_server.clone(), stranger_client, one).await);
            // node 1 cannot pass for node 0
            assert!(!handshake(web_server, zero_client, NodeId::ZERO).await);
        });
    }

    #[test]
    fn keys_are_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = folder.path().join("nowhere");
        let open =
            || Pki::open(NodeId::ZERO, &nowhere, folder.path(), None, &Network::default()).unwrap();
        assert_eq!(open().ca_pem, open().ca_pem);
    }

    #[test]
    fn keys_that_a_loss_of_power_emptied_are_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = folder.path().join("nowhere");
        let open =
            || Pki::open(NodeId::ZERO, &nowhere, folder.path(), None, &Network::default()).unwrap();
        let first = open();
        for (damaged, is_ca) in
            [("ca.key", true), ("ca.pem", true), ("node.key", false), ("node.pem", false)]
        {
            let before = open();
            fs::write(folder.path().join("pki").join(damaged), "").unwrap();
            let after = open();
            assert_eq!(after.ca_pem != before.ca_pem, is_ca, "{damaged}");
            after.tls().unwrap();
            after.files(NodeId::new(1).unwrap(), &"web".parse().unwrap()).unwrap();
        }
        // each is whole, and they do not belong together
        fs::write(folder.path().join("pki/ca.pem"), &first.ca_pem).unwrap();
        assert_ne!(open().ca_pem, first.ca_pem);
    }

    #[test]
    fn node_without_bundle_has_no_keys() {
        let folder = tempfile::tempdir().unwrap();
        let one = NodeId::new(1).unwrap();
        let result = Pki::open(one, folder.path(), folder.path(), None, &Network::default());
        assert!(matches!(result, Err(PkiError::NoBundle { .. })));
    }
}
