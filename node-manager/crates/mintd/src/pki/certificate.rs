// SPDX-License-Identifier: Apache-2.0
//! Certificates, and TLS that believes them: each node's own one, and no authority's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mint_api::Introduction;
use mint_types::PeerId;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::error::{NotBelieved, PkiError, failed};

pub(super) const DAY: Duration = Duration::from_secs(24 * 3600);
/// A certificate counts so long from when it was made.
pub(super) const VALID: Duration = Duration::from_secs(90 * 24 * 3600);
/// And from so long before: no two clocks are the same.
pub(crate) const SKEW: Duration = DAY;

/// A node that is believed.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) introduction: Introduction,
    pub(super) certificate: CertificateDer<'static>,
    /// Its public key: what a caller is known by.
    pub(super) key: Vec<u8>,
}

/// Our certificate, and what TLS is set up with.
pub(super) struct Own {
    pub(super) made: SystemTime,
    /// As PEM.
    pub(super) certificate: String,
    pub(super) server: Arc<ServerConfig>,
    pub(super) clients: BTreeMap<PeerId, Arc<ClientConfig>>,
}

impl Own {
    pub(super) fn make<'all>(
        here: PeerId,
        key: &KeyPair,
        known: impl Iterator<Item = &'all Known>,
        now: SystemTime,
    ) -> Result<Self, PkiError> {
        let made = certificate(here, key, now)?;
        let own = made.der().clone();
        let tls = |of: PeerId| {
            move |source: rustls::Error| PkiError::Tls { of: of.to_string(), source: source.into() }
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let private = || {
            let der = PrivatePkcs8KeyDer::from(key.serialize_der());
            (vec![own.clone()], PrivateKeyDer::from(der))
        };
        // our own is among them, as an empty store is refused
        let mut callers = RootCertStore::empty();
        callers.add(own.clone()).map_err(tls(here))?;
        let mut clients = BTreeMap::new();
        for known in known {
            let id = known.introduction.id();
            callers.add(known.certificate.clone()).map_err(tls(id))?;
            // of a server, its own certificate is believed and no other's
            let mut only = RootCertStore::empty();
            only.add(known.certificate.clone()).map_err(tls(id))?;
            let (chain, key) = private();
            let client = ClientConfig::builder_with_provider(provider.clone())
                .with_safe_default_protocol_versions()
                .and_then(|builder| {
                    builder.with_root_certificates(only).with_client_auth_cert(chain, key)
                })
                .map_err(tls(id))?;
            clients.insert(id, Arc::new(client));
        }
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(callers), provider.clone())
                .build()
                .map_err(|error| PkiError::Tls { of: here.to_string(), source: error.into() })?;
        let (chain, key) = private();
        let server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| {
                builder.with_client_cert_verifier(verifier).with_single_cert(chain, key)
            })
            .map_err(tls(here))?;
        Ok(Self { made: now, certificate: made.pem(), server: Arc::new(server), clients })
    }
}

impl Known {
    pub(super) fn read(introduction: Introduction) -> Result<Self, NotBelieved> {
        let bad = |error: rustls::pki_types::pem::Error| NotBelieved::Certificate(error.into());
        let text = introduction.certificate.as_bytes();
        let certificate = CertificateDer::from_pem_slice(text).map_err(bad)?;
        let key =
            public_key(&certificate).map_err(|error| NotBelieved::Certificate(error.into()))?;
        Ok(Self { introduction, certificate, key })
    }
}

pub(super) fn public_key(certificate: &CertificateDer<'_>) -> Result<Vec<u8>, rustls::Error> {
    Ok(ParsedCertificate::try_from(certificate)?.subject_public_key_info().as_ref().to_vec())
}

/// A node's certificate for itself.
pub(super) fn certificate(
    id: PeerId,
    key: &KeyPair,
    now: SystemTime,
) -> Result<rcgen::Certificate, PkiError> {
    let mut params = CertificateParams::new(vec![id.to_string()]).map_err(failed("name a node"))?;
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, id.to_string());
    params.distinguished_name = name;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    // certificates know no time before 1970: where no clock was set
    let first = SystemTime::UNIX_EPOCH;
    params.not_before = now.checked_sub(SKEW).filter(|&from| from > first).unwrap_or(first).into();
    params.not_after = (now + VALID).into();
    params.self_signed(key).map_err(failed("sign a certificate"))
}
