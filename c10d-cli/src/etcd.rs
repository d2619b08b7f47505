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
    /// The user of etcd. It needs to read and write below the prefix.
    #[arg(long, value_name = "NAME", requires = "etcd_password_file")]
    etcd_user: Option<String>,

    /// The file of the user's password.
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    etcd_password_file: Option<PathBuf>,

    /// The PEM file of this process' certificate for etcd. With users, it must have no common name: etcd's gateway refuses
    /// one that has.
    #[arg(long, value_name = "FILE", requires_all = ["etcd_key", "etcd_ca"])]
    etcd_cert: Option<PathBuf>,

    /// The PEM file of its private key.
    #[arg(long, value_name = "FILE", requires_all = ["etcd_cert", "etcd_ca"])]
    etcd_key: Option<PathBuf>,

    /// The PEM file of the authorities that etcd's certificate must be of: without it, no TLS. Enough for an etcd that asks
    /// for no certificate.
    #[arg(long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
}

/// Which store of which etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct EtcdArgs {
    /// The store is in etcd, whose members these are, separated by commas. Of all servers with the same prefix, one serves;
    /// the others follow it, and one of them takes over when it ends. [default port: 2379]
    #[arg(
        long,
        value_name = "HOST:PORT,..",
        value_delimiter = ',',
        requires = "etcd_prefix"
    )]
    etcd: Vec<Endpoint>,

    /// The prefix of the store's keys in etcd: one for each store.
    #[arg(long, value_name = "PREFIX", requires = "etcd")]
    etcd_prefix: Option<String>,

    #[command(flatten)]
    access: EtcdAccessArgs,
}

/// How others learn that a process that can serve a store in etcd lives.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct EtcdCandidateArgs {
    /// With a store in etcd: how long a server that says nothing is waited for before another one takes over, in whole
    /// seconds. More for machines that are so busy that a healthy server is deposed. etcd grants at least 1.5 times its
    /// election timeout. [default: 2s]
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = lease_time)]
    etcd_lease: Option<Duration>,

    /// The port at which the servers that stand by see that this process has ended, for a firewall between them. [default:
    /// a free one]
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
    /// Another journal, with what etcd asks for.
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

    /// With what etcd asks for.
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
