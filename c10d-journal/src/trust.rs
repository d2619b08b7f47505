//! Whether another user can change a journal.
//!
//! A user who can write a file of the database writes every value of the store. A directory that another user has
//! prepared can have such files, or links to other files of this user.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;

use rustix::process::geteuid;

use crate::directory::Directory;

/// Users who are neither the owner nor in the group may write.
const OTHERS_WRITE: u32 = 0o002;

/// The mode bit that lets only the owner of a name change it.
const STICKY: u32 = 0o1000;

/// Who opens a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// The process serves it, and writes confidential values.
    Serve,
    /// The process only reads the journal, which root does for any user.
    Read,
}

/// Returns why a directory and its files must not be opened. `None` if they may be, or do not exist.
pub(crate) fn distrust(directory: &Directory, access: Access) -> io::Result<Option<String>> {
    let Some(metadata) = found(fs::metadata(directory.path()))? else {
        return Ok(None);
    };
    let user = geteuid().as_raw();
    if access == Access::Serve {
        if others_may_write_names(&metadata) {
            return Ok(Some(
                "other users may write the directory: take that from them (chmod o-w), or use a directory inside it".to_owned(),
            ));
        }
        if let Some(whose) = stranger(&metadata, user) {
            return Ok(Some(format!("the directory {whose}")));
        }
    }
    for path in directory.files() {
        let Some(metadata) = found(fs::symlink_metadata(&path))? else {
            continue;
        };
        if let Some(why) = distrusted_file(&metadata, access, user) {
            let name = path.file_name().unwrap_or_default().display().to_string();
            return Ok(Some(format!("{name} {why}")));
        }
    }
    Ok(None)
}

fn others_may_write_names(directory: &Metadata) -> bool {
    directory.mode() & OTHERS_WRITE != 0 && directory.mode() & STICKY == 0
}

/// Reports the owner, if another user owns it.
fn stranger(metadata: &Metadata, user: u32) -> Option<String> {
    let owner = metadata.uid();
    (owner != 0 && owner != user).then(|| {
        format!(
            "belongs to user {owner}, neither to root nor to user {user}, who serves it: use another directory, or chown it"
        )
    })
}

fn distrusted_file(file: &Metadata, access: Access, user: u32) -> Option<String> {
    if !file.is_file() {
        Some("is a link, or another kind of file: use a directory without it".to_owned())
    } else if access == Access::Read {
        None
    } else if let Some(whose) = stranger(file, user) {
        Some(whose)
    } else if file.mode() & OTHERS_WRITE != 0 {
        Some("may be written by other users: use another directory, or chmod o-w it".to_owned())
    } else {
        None
    }
}

fn found(metadata: io::Result<Metadata>) -> io::Result<Option<Metadata>> {
    match metadata {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
