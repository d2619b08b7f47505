//! The options for a store that strangers cannot use, and `c10d secret`.

use std::env;
use std::path::PathBuf;

use c10d_socket::{CertificateFiles, Credentials, CredentialsError, Secret};
use clap::{Args, Subcommand};

use crate::failure::Failure;
use crate::output::print_line;

/// The file of the secret, if no option names one.
const FILE_VARIABLE: &str = "C10D_SECRET_FILE";

/// How to prove to the store that this process may use it, and the other way round.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct SecretArgs {
    /// Read the secret that all processes of the job share from this file. [default: $C10D_SECRET_FILE]
    ///
    /// Create the file with `(umask 077; c10d secret new > FILE)`.
    #[arg(hide_short_help = true, long, value_name = "FILE", conflicts_with_all = ["tls_cert", "tls_key", "tls_ca"])]
    secret_file: Option<PathBuf>,

    /// Identify this process with this certificate, a PEM file, instead of a secret.
    #[arg(hide_short_help = true, long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    tls_cert: Option<PathBuf>,

    /// Read the private key of --tls-cert from this PEM file.
    #[arg(hide_short_help = true, long, value_name = "FILE", requires_all = ["tls_cert", "tls_ca"])]
    tls_key: Option<PathBuf>,

    /// Accept only certificates of the authorities in this PEM file from other processes.
    #[arg(hide_short_help = true, long, value_name = "FILE", requires_all = ["tls_cert", "tls_key"])]
    tls_ca: Option<PathBuf>,
}

impl SecretArgs {
    /// The credentials that the options or the environment name; `None` for a store without protection.
    pub(crate) fn credentials(&self) -> Result<Option<Credentials>, Failure> {
        self.credentials_or(|| env::var_os(FILE_VARIABLE).map(PathBuf::from))
    }

    fn credentials_or(
        &self,
        file: impl FnOnce() -> Option<PathBuf>,
    ) -> Result<Option<Credentials>, Failure> {
        if let (Some(certificate), Some(key), Some(authorities)) =
            (&self.tls_cert, &self.tls_key, &self.tls_ca)
        {
            let files = CertificateFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                authorities: authorities.clone(),
            };
            return Ok(Some(Credentials::from_files(&files)?));
        }
        let option = match &self.secret_file {
            Some(_) => "--secret-file",
            None => FILE_VARIABLE,
        };
        let file = self.secret_file.clone().or_else(file);
        match file.filter(|path| !path.as_os_str().is_empty()) {
            Some(path) => {
                let secrets = Secret::read_file(&path).map_err(|error| match error {
                    CredentialsError::File { path, source, .. } => {
                        Failure::Usage(format!("cannot read {option} {}: {source}", path.display()))
                    }
                    error => error.into(),
                })?;
                Ok(Some(Credentials::from_secrets(secrets)?))
            }
            None => Ok(None),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum SecretCommand {
    /// Print a new secret. Keep it in a file that only its user can read: `(umask 077; c10d secret new > FILE)`.
    New,
    /// Print the password of the HTTP pages of servers with this secret, for a browser or a monitor.
    #[command(mut_arg("secret_file", |arg| arg.hide_short_help(false)))]
    Token {
        #[command(flatten)]
        secret: SecretArgs,
    },
}

pub(crate) fn run(command: &SecretCommand) -> Result<(), Failure> {
    match command {
        SecretCommand::New => print_line(Secret::random()?.to_text()),
        SecretCommand::Token { secret } => {
            let credentials = secret.credentials()?;
            match credentials.and_then(|credentials| credentials.http_token()) {
                Some(token) => print_line(token),
                None => Err(Failure::Usage(format!(
                    "no secret given: use --secret-file FILE, or set {FILE_VARIABLE}"
                ))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        secret: SecretArgs,
    }

    fn parse(arguments: &[&str]) -> Result<SecretArgs, clap::Error> {
        let arguments = [&["c10d"], arguments].concat();
        Command::try_parse_from(arguments).map(|command| command.secret)
    }

    #[test]
    fn the_option_takes_precedence_over_the_environment() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| {
            let path = folder.path().join(name);
            let secret = Secret::random().expect("random numbers");
            fs::write(&path, secret.to_text()).expect("written");
            fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("permissions");
            (path, Credentials::from(secret).http_token())
        };
        let ((one, of_one), (other, of_other)) = (file("one"), file("other"));
        let token = |arguments: &[&str], variable: Option<&PathBuf>| {
            let arguments = parse(arguments).expect("arguments");
            let found = arguments.credentials_or(|| variable.cloned());
            found.expect("a secret").and_then(|it| it.http_token())
        };
        let option = format!("--secret-file={}", one.display());
        assert_eq!(token(&[&option], Some(&other)), of_one);
        assert_eq!(token(&[], Some(&other)), of_other);
        assert_eq!(token(&[], None), None);
        assert_eq!(token(&[], Some(&PathBuf::new())), None);
    }

    #[test]
    fn certificates_need_all_three_files_and_no_secret() {
        for arguments in [
            &["--tls-cert=a"][..],
            &["--tls-cert=a", "--tls-key=b"],
            &["--tls-ca=c"],
            &[
                "--tls-cert=a",
                "--tls-key=b",
                "--tls-ca=c",
                "--secret-file=d",
            ],
        ] {
            assert!(parse(arguments).is_err(), "{arguments:?}");
        }
        let all = parse(&["--tls-cert=a", "--tls-key=b", "--tls-ca=c"]).expect("all three");
        let error = all.credentials_or(|| None).expect_err("no such file");
        assert_eq!(error.exit_code(), 2);
    }
}
