//! The shared secret: made, written, read.

use std::fmt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest;
use ring::rand::{SecureRandom, SystemRandom};

use super::error::CredentialsError;
use super::secret_file;

pub(super) const SECRET_BYTES: usize = 32;

/// The start of a secret's text: the program, and the version of the format.
const PREFIX: &str = "c10ds1_";

/// The bytes of the checksum. With it the text has no padding, and 56 bits distinguish a secret from a typing error.
const CHECK_BYTES: usize = 7;

/// 256 random bits that all processes of a job share. Only [`Secret::random`] makes a secret, because a server shows
/// a key that is derived from its secret to every client that connects, so a password could be guessed at leisure.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; SECRET_BYTES]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Creates a new secret. Does not block once the system has started.
    ///
    /// # Errors
    /// [`CredentialsError::NoRandomness`] if the system has no random numbers.
    pub fn random() -> Result<Self, CredentialsError> {
        let mut bytes = [0; SECRET_BYTES];
        SystemRandom::new()
            .fill(&mut bytes)
            .map_err(|_| CredentialsError::NoRandomness)?;
        Ok(Self(bytes))
    }

    /// Returns the secret as text: `c10ds1_` and 52 letters, digits, `-` and `_`. Keep it out of logs and command
    /// lines.
    ///
    /// ```
    /// use c10d_socket::Secret;
    ///
    /// let secret = Secret::random()?;
    /// let text = secret.to_text();
    /// assert_eq!(text.len(), 59);
    /// assert_eq!(Secret::from_text(&text)?, secret);
    /// # Ok::<(), c10d_socket::CredentialsError>(())
    /// ```
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut bytes = self.0.to_vec();
        bytes.extend_from_slice(&check(&self.0));
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }

    /// Reads the text of a secret, with spaces and line ends around it. Any other text is refused, so that a password
    /// cannot be used instead.
    ///
    /// # Errors
    /// [`CredentialsError::Invalid`] for any other text.
    pub fn from_text(text: &str) -> Result<Self, CredentialsError> {
        Self::parse(text).map_err(|detail| CredentialsError::Invalid {
            origin: "the secret".to_owned(),
            detail: detail.to_owned(),
        })
    }

    /// Reads the secrets of a file, one a line, at least one and at most eight. Lines that are empty or start with
    /// `#` do not count. Processes use the first secret to connect, and accept all of them. Blocks for up to 10 s if
    /// the file is a pipe.
    ///
    /// # Errors
    /// [`CredentialsError::File`] if the file cannot be read, [`CredentialsError::Exposed`] if other users can read
    /// it, [`CredentialsError::Invalid`] if it belongs to another user than root or this one, has another mode than
    /// 0600 or 0400, or for a line that is not a secret.
    pub fn read_file(path: &Path) -> Result<Vec<Self>, CredentialsError> {
        let text = secret_file::read(path)?;
        let invalid = |detail: String| CredentialsError::Invalid {
            origin: path.display().to_string(),
            detail,
        };
        let lines = text.lines().map(str::trim).enumerate();
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let secrets = lines.map(|(index, line)| {
            Self::parse(line).map_err(|detail| invalid(format!("line {}: {detail}", index + 1)))
        });
        let secrets = secrets.collect::<Result<Vec<_>, _>>()?;
        match secrets.len() {
            0 => Err(invalid("contains no secret".to_owned())),
            1..=SECRETS_MAX => Ok(secrets),
            count => Err(invalid(format!(
                "contains {count} secrets, more than {SECRETS_MAX}"
            ))),
        }
    }

    fn parse(text: &str) -> Result<Self, &'static str> {
        let Some(rest) = text.trim().strip_prefix(PREFIX) else {
            return Err(
                "not a secret, which starts with c10ds1_; `c10d secret new` prints a new secret",
            );
        };
        let bytes = URL_SAFE_NO_PAD.decode(rest).unwrap_or_default();
        let Some((secret, sum)) = bytes.split_first_chunk::<SECRET_BYTES>() else {
            return Err("a damaged secret: it has the wrong length, or wrong characters");
        };
        if sum != check(secret) {
            return Err("a damaged secret: its last characters do not match the rest");
        }
        Ok(Self(*secret))
    }

    pub(super) const fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }
}

/// How many secrets a process accepts: one in use, its replacement, and some forgotten secrets.
pub(super) const SECRETS_MAX: usize = 8;

fn check(secret: &[u8; SECRET_BYTES]) -> [u8; CHECK_BYTES] {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(PREFIX.as_bytes());
    context.update(secret);
    let sum = context.finish();
    std::array::from_fn(|index| sum.as_ref()[index])
}
