//! Whose the directory of a store is, where it is while it is served, and whether it can be written.

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::process::{Ended, PROGRAM, Running, Server, command, prepared, run};

/// The user that serves, and another user.
const USER: u32 = 23_456;
const STRANGER: u32 = 23_457;
const GROUP: u32 = 23_458;

fn left_out(why: &str) {
    let _ = writeln!(std::io::stderr(), "LEFT OUT: {why}");
}

/// The command as this user in this group, with a umask that takes nothing away.
fn command_as(user: u32, group: u32, arguments: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={user}"));
    command.arg(format!("--regid={group}"));
    command.args(["--clear-groups", "sh", "-c", "umask 0; exec \"$0\" \"$@\""]);
    command.arg(PROGRAM).args(arguments);
    prepared(command)
}

fn serve_as(user: u32, group: u32, directory: &Path) -> Command {
    let directory = format!("--dir={}", directory.display());
    command_as(user, group, &["store", "serve", "--port=0", &directory])
}

/// Folders that each user can reach, if this one may act for others.
struct Users(tempfile::TempDir);

impl Users {
    fn new() -> Option<Self> {
        let trial = command_as(USER, GROUP, &["--help"]).output();
        if !trial.is_ok_and(|trial| trial.status.success()) {
            left_out("no rights to run the command as another user");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        Some(Self(folder))
    }

    fn folder(&self, name: &str, owner: u32, group: u32, mode: u32) -> PathBuf {
        let path = self.0.path().join(name);
        fs::create_dir(&path).unwrap();
        give(&path, owner, group, mode);
        path
    }
}

fn give(path: &Path, owner: u32, group: u32, mode: u32) {
    chown(path, Some(owner), Some(group)).unwrap();
    // The owner first: a change of it takes bits of the mode.
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn file(path: PathBuf, owner: u32, mode: u32) {
    File::create(&path).unwrap();
    give(&path, owner, GROUP, mode);
}

#[track_caller]
fn assert_refused(command: Command, why: &str) {
    let ended = Running::start(command).end();
    assert_eq!(ended.code, Some(5), "{ended:?}");
    assert!(ended.stderr.contains(why), "{ended:?}");
}

#[track_caller]
fn assert_served(user: u32, group: u32, directory: &Path) {
    let server = Server::start_command(serve_as(user, group, directory));
    server.store(&["set", "k", "v"]).assert_prints("");
    server.store(&["get", "k"]).assert_prints("v");
}

#[test]
fn a_directory_that_another_user_prepared_is_refused() {
    let Some(users) = Users::new() else { return };
    for (number, name) in ["journal.db", "journal.db-wal", "journal.db-journal"]
        .into_iter()
        .chain(["newest", "owner"])
        .enumerate()
    {
        // Of another user, as in /tmp.
        let folder = users.folder(&format!("stranger{number}"), USER, GROUP, 0o1777);
        file(folder.join(name), STRANGER, 0o666);
        let why = format!("{name} belongs to user {STRANGER}, neither to root nor to user {USER}");
        assert_refused(serve_as(USER, GROUP, &folder), &why);
        let names = fs::read_dir(&folder).unwrap();
        assert_eq!(names.count(), 1, "nothing was added");

        // Of this user, for everyone.
        let folder = users.folder(&format!("open{number}"), USER, GROUP, 0o700);
        file(folder.join(name), USER, 0o666);
        let why = format!("{name} may be written by other users");
        assert_refused(serve_as(USER, GROUP, &folder), &why);

        // A link to another file of this user.
        let folder = users.folder(&format!("link{number}"), USER, GROUP, 0o700);
        let target = users.0.path().join(format!("target{number}"));
        fs::write(&target, "precious").unwrap();
        give(&target, USER, GROUP, 0o600);
        symlink(&target, folder.join(name)).unwrap();
        let why = format!("{name} is a link");
        assert_refused(serve_as(USER, GROUP, &folder), &why);
        let directory = folder.to_str().unwrap();
        assert_refused(command(["store", "verify", directory]), &why);
        assert_eq!(fs::read(&target).unwrap(), b"precious");
    }
    // Its owner may replace every file.
    let folder = users.folder("prepared", STRANGER, GROUP, 0o2775);
    let why =
        format!("the directory belongs to user {STRANGER}, neither to root nor to user {USER}");
    assert_refused(serve_as(USER, GROUP, &folder), &why);
    let why = format!("the directory belongs to user {STRANGER}, neither to root nor to user 0");
    let directory = folder.to_str().unwrap();
    assert_refused(
        command(["store", "serve", "--port=0", "--dir", directory]),
        &why,
    );
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);

    let folder = users.folder("for everyone", 0, 0, 0o777);
    let why = "other users may write the directory";
    assert_refused(serve_as(USER, GROUP, &folder), why);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    // As in a pod with an emptyDir.
    assert_served(USER, GROUP, &folder.join("store"));
}

#[test]
fn a_directory_of_root_or_of_a_group_is_served() {
    let Some(users) = Users::new() else { return };
    // A volume with fsGroup in Kubernetes.
    let volume = users.folder("volume", 0, GROUP, 0o2775);
    assert_served(USER, GROUP, &volume);
    for name in ["journal.db", "journal.db-wal", "newest", "owner"] {
        let path = volume.join(name);
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.mode() & 0o777, 0o600, "{name}");
        assert_eq!(metadata.uid(), USER, "{name}");
        // The next mount of the volume gives its files to the group.
        give(&path, USER, GROUP, 0o660);
    }
    assert_served(USER, GROUP, &volume);
    for name in ["journal.db", "journal.db-wal", "newest", "owner"] {
        give(&volume.join(name), 0, GROUP, 0o660);
    }
    assert_served(USER, GROUP, &volume);

    let sticky = users.folder("sticky", 0, 0, 0o1777);
    assert_served(USER, GROUP, &sticky);
    // Root may read what it does not serve.
    let directory = sticky.to_str().unwrap();
    assert_eq!(run(["store", "verify", directory]).code, Some(0));
    let serve = command(["store", "serve", "--port=0", "--dir", directory]);
    let why = format!("belongs to user {USER}, neither to root nor to user 0");
    assert_refused(serve, &why);
}

fn serve(directory: &Path) -> Server {
    let directory = format!("--dir={}", directory.display());
    Server::start_with(["store", "serve", "--port=0", &directory])
}

/// Deleted, moved, or only a file of it, while the store is used or at rest.
#[test]
fn a_server_stops_soon_after_its_directory_is_gone() {
    let outside = tempfile::tempdir().unwrap();
    let directory = outside.path().join("store");
    let moved = outside.path().join("moved");
    type Removal<'a> = &'a dyn Fn();
    let removals: [(&str, bool, Removal<'_>); 3] = [
        ("journal.db", true, &|| {
            fs::remove_dir_all(&directory).unwrap();
        }),
        ("journal.db", false, &|| {
            fs::rename(&directory, &moved).unwrap();
        }),
        ("journal.db-wal", false, &|| {
            fs::remove_file(directory.join("journal.db-wal")).unwrap();
        }),
    ];
    for (name, is_used, removal) in removals {
        let server = serve(&directory);
        server.store(&["set", "k", "v"]).assert_prints("");
        removal();
        let began = Instant::now();
        if is_used {
            let added = server.store(&["add", "n", "1"]);
            assert_ne!(added.code, Some(0), "it is acknowledged: {added:?}");
        }
        let ended = server.end();
        let took = began.elapsed();
        assert_eq!(ended.code, Some(5), "{ended:?}");
        let why = format!("{name} was deleted, moved or replaced while it was served");
        assert!(ended.stderr.contains(&why), "{ended:?}");
        // At most 0.5 s until the server stops, 1 s until the command checks that, and the load of the machine.
        assert!(took < Duration::from_secs(10), "{took:?}");
        for folder in [&directory, &moved] {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// The directory is on a file system that is mounted read-only, for example a backup.
#[test]
fn a_read_only_directory_is_verified_and_exported() {
    let outside = tempfile::tempdir().unwrap();
    let directory = outside.path().join("store");
    let in_read_only = |words: &[&str]| -> Option<Ended> {
        let script = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" || exit 99; shift; exec \"$@\"";
        let mut shell = Command::new("unshare");
        shell.args(["--mount", "sh", "-c", script, "sh"]);
        shell.arg(&directory).arg(PROGRAM).args(words);
        let ended = Running::start(prepared(shell)).end();
        let is_possible = ended.code != Some(99) && !ended.stderr.starts_with("unshare:");
        if !is_possible {
            left_out(&format!("cannot mount a file system: {}", ended.stderr));
        }
        is_possible.then_some(ended)
    };
    let path = directory.to_str().unwrap();
    // After a kill, with all in the log, and after a stop.
    for signal in [rustix::process::Signal::KILL, rustix::process::Signal::TERM] {
        let server = serve(&directory);
        server.store(&["set", "k", "v"]).assert_prints("");
        server.running.signal(signal);
        server.end();
        let Some(verified) = in_read_only(&["store", "verify", path]) else {
            return;
        };
        assert_eq!(verified.code, Some(0), "{verified:?}");
        assert!(verified.stdout_text().ends_with("intact\n"), "{verified:?}");
        let exported = in_read_only(&["store", "export", path]).unwrap();
        assert_eq!(exported.stdout_text(), "{\"key\":\"/k\",\"value\":\"v\"}\n");
        let served = in_read_only(&["store", "serve", "--port=0", "--dir", path]).unwrap();
        assert_eq!(served.code, Some(5), "{served:?}");
        let why = "(SQLite): Read-only file system";
        assert!(served.stderr.contains(why), "{served:?}");
    }
    // A directory that a server has open is refused.
    let _server = serve(&directory);
    let verified = in_read_only(&["store", "verify", path]).unwrap();
    verified.assert_fails(5, "is in use by process");
}
