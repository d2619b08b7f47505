//! The options for a store that is kept in etcd.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use c10d_journal::{EtcdAddressError, EtcdDirectory, EtcdOptions};
use c10d_socket::{CertificateFiles, Credentials};
use c10d_store::StoreAddress;
use clap::Args;
use elastic_rendezvous::Endpoint;

use crate::failure::Failure;
use crate::quantity::parse_duration;

/// etcd's port for clients.
const ETCD_PORT: u16 = 2379;

/// How to prove to etcd that this process may use it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct EtcdAccessArgs {
    /// Log in to etcd as this user, who needs to read and write below the prefix.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "NAME",
        requires = "etcd_password_file"
    )]
    etcd_user: Option<String>,

    /// Read the password of --etcd-user from this file.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "FILE",
        requires = "etcd_user"
    )]
    etcd_password_file: Option<PathBuf>,

    /// Identify this process to etcd with this certificate, a PEM file.
    ///
    /// If etcd has users, the certificate must have no common name, because etcd's gateway refuses a certificate that has
    /// one.
    #[arg(hide_short_help = true, long, value_name = "FILE", requires_all = ["etcd_key", "etcd_ca"])]
    etcd_cert: Option<PathBuf>,

    /// Read the private key of --etcd-cert from this PEM file.
    #[arg(hide_short_help = true, long, value_name = "FILE", requires_all = ["etcd_cert", "etcd_ca"])]
    etcd_key: Option<PathBuf>,

    /// Use TLS for etcd, and accept only certificates of the authorities in this PEM file. [default: no TLS]
    ///
    /// This is enough for an etcd that asks for no certificate of its clients.
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
}

/// The options that select a store in etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct EtcdArgs {
    /// Use a store in etcd, whose members have these addresses, separated by commas. [default port: 2379]
    ///
    /// Of all servers with the same prefix, one serves the store and the others are standbys. One of them takes over when
    /// the serving one exits.
    #[arg(
        long,
        value_name = "HOST:PORT,..",
        value_delimiter = ',',
        requires = "etcd_prefix"
    )]
    etcd: Vec<Endpoint>,

    /// Use this prefix for the store's keys in etcd. Each store needs its own prefix.
    #[arg(long, value_name = "PREFIX", requires = "etcd")]
    etcd_prefix: Option<String>,

    #[command(flatten)]
    access: EtcdAccessArgs,
}

/// How others learn that a process that can serve a store in etcd lives.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct EtcdCandidateArgs {
    /// With a store in etcd, let another server take over when the serving one has been silent for this long, in whole
    /// seconds. [default: 2s]
    ///
    /// Increase it if the machines are so busy that a healthy server loses the store. etcd grants at least 1.5 times its
    /// election timeout.
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = lease_time)]
    etcd_lease: Option<Duration>,

    /// With a store in etcd, let standby servers detect at this port that this process has exited. Set it for a firewall
    /// between them. [default: a free port]
    #[arg(hide_short_help = true, long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    etcd_life_port: Option<u16>,
}

impl EtcdCandidateArgs {
    /// The journal of a process that can serve.
    pub(crate) fn of(&self, mut options: EtcdOptions) -> EtcdOptions {
        if let Some(ttl) = self.etcd_lease {
            options = options.with_lease_ttl(ttl);
        }
        if let Some(port) = self.etcd_life_port {
            options = options.with_life_port(port);
        }
        options
    }
}

/// The longest lease: as long does a server that was cut off keep others from serving.
const LEASE_MAX: Duration = Duration::from_secs(600);

fn lease_time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    match time.subsec_nanos() {
        0 if !time.is_zero() && time <= LEASE_MAX => Ok(time),
        _ => Err("not 1 to 600 whole seconds".to_owned()),
    }
}

impl EtcdArgs {
    /// The options of another journal, with the credentials that etcd requires.
    pub(crate) fn access(&self, options: EtcdOptions) -> Result<EtcdOptions, Failure> {
        self.access.of(options)
    }

    /// The journal that the options name.
    pub(crate) fn options(&self) -> Result<Option<EtcdOptions>, Failure> {
        let Some(prefix) = &self.etcd_prefix else {
            return Ok(None);
        };
        let members: Vec<_> = self
            .etcd
            .iter()
            .map(|member| member.with_default_port(ETCD_PORT).to_string())
            .collect();
        let address = format!("etcd://{}/{prefix}", members.join(","));
        let parsed = address.parse();
        let options =
            parsed.map_err(|error: EtcdAddressError| Failure::Usage(error.to_string()))?;
        self.access.of(options).map(Some)
    }
}

impl EtcdAccessArgs {
    /// The store with this journal, wherever it is served.
    pub(crate) fn store(&self, options: &EtcdOptions) -> Result<StoreAddress, Failure> {
        let directory = EtcdDirectory::new(self.of(options.clone())?);
        Ok(StoreAddress::LookedUp(Arc::new(directory)))
    }

    /// The options, with the credentials that etcd requires.
    pub(crate) fn of(&self, mut options: EtcdOptions) -> Result<EtcdOptions, Failure> {
        if let (Some(user), Some(file)) = (&self.etcd_user, &self.etcd_password_file) {
            let password = fs::read_to_string(file);
            let password = password.map_err(Failure::system(format!(
                "cannot read the password file {}",
                file.display()
            )))?;
            options = options.with_user(user, password.trim_end_matches(['\r', '\n']));
        }
        if let Some(authorities) = &self.etcd_ca {
            let credentials = match (&self.etcd_cert, &self.etcd_key) {
                (Some(certificate), Some(key)) => Credentials::from_files(&CertificateFiles {
                    certificate: certificate.clone(),
                    key: key.clone(),
                    authorities: authorities.clone(),
                })?,
                _ => Credentials::from_authorities(authorities)?,
            };
            options = options.with_credentials(credentials);
        }
        Ok(options)
    }
}
