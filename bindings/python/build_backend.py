"""The build backend of pip: maturin, with the command c10d in the wheel.

``pip install ./bindings/python`` in a clone of the repository needs a Rust toolchain, and nothing else; a source
distribution and pip's ``git+https`` likewise. The profile of Cargo is C10D_BUILD_PROFILE, by default release.
"""

import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# A source distribution has this file and the crates in one folder.
UNPACKED = (HERE / "Cargo.toml").exists() and (HERE / "c10d-cli").exists()
REPOSITORY = HERE if UNPACKED else HERE.parent.parent
DATA = HERE / "c10d_rs.data"

SHARED = {
    "bash": "bash-completion/completions/c10d",
    "zsh": "zsh/site-functions/_c10d",
    "fish": "fish/vendor_completions.d/c10d.fish",
}


def lay_out(command: Path) -> None:
    """Fill the data folder of the wheel with the command, its manual pages and completions."""
    shutil.rmtree(DATA, ignore_errors=True)
    scripts = DATA / "scripts"
    scripts.mkdir(parents=True)
    installed = scripts / "c10d"
    shutil.copy(command, installed)
    if shutil.which("strip"):
        subprocess.run(["strip", installed], check=True)
    lay_out_shared(installed, DATA / "data" / "share")


def lay_out_shared(command: Path, share: Path) -> None:
    """Write the manual pages and completions of the command, which packages install below share."""
    for shell, name in SHARED.items():
        path = share / name
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            subprocess.run([command, "completions", shell], stdout=file, check=True)
    subprocess.run([command, "man", "--out-dir", share / "man" / "man1"], check=True)


def build_command(profile: str) -> Path:
    """Build the command, and return its path."""
    cargo = ["cargo", "build", "--package", "c10d-cli", "--bin", "c10d", "--profile", profile]
    cargo.append("--message-format=json-render-diagnostics")
    # The lock file of a source distribution has packages that are not in it, and Cargo would not remove them.
    cargo += [] if UNPACKED else ["--locked"]
    built = subprocess.run(cargo, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True)
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    programs = [message["executable"] for message in messages if message.get("executable")]
    return Path(programs[-1])


def crates_of_command() -> dict[str, list[str]]:
    """Return the folders of the crates that the command is built from, each with its files."""
    cargo = ["cargo", "metadata", "--no-deps", "--format-version", "1"]
    metadata = json.loads(subprocess.run(cargo, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True).stdout)
    packages = {package["name"]: package for package in metadata["packages"]}
    names = ["c10d-cli"]
    for name in names:
        dependencies = [each["name"] for each in packages[name]["dependencies"] if each["kind"] != "dev"]
        names += [each for each in dependencies if each in packages and each not in names]
    crates = {}
    for name in names:
        folder = Path(packages[name]["manifest_path"]).parent
        cargo = ["cargo", "package", "--list", "--allow-dirty", "--package", name]
        listed = subprocess.run(cargo, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True, text=True).stdout
        # The list has files too that Cargo makes.
        files = [file for file in listed.splitlines() if (folder / file).is_file()]
        crates[folder.relative_to(REPOSITORY).as_posix()] = files
    return crates


def add_command(archive: Path) -> None:
    """Add the command's crates to a source distribution: maturin packs the module's crates."""
    with tarfile.open(archive) as packed:
        members = {member.name: member for member in packed}
        contents = {name: file.read() for name, member in members.items() if (file := packed.extractfile(member))}
    root = next(iter(members)).split("/")[0]
    manifest = members[f"{root}/Cargo.toml"]
    crates = crates_of_command()
    for crate, files in crates.items():
        for file in files:
            name = f"{root}/{crate}/{file}"
            if name not in members:
                members[name] = tarfile.TarInfo(name)
                members[name].mtime, members[name].mode = manifest.mtime, manifest.mode
                contents[name] = (REPOSITORY / crate / file).read_bytes()

    def with_crates(found: re.Match[str]) -> str:
        return f"members = {json.dumps(sorted({*json.loads(found[1]), *crates}))}"

    text = contents[manifest.name].decode()
    contents[manifest.name] = re.sub(r"^members = (\[[^]]*\])", with_crates, text, count=1, flags=re.M).encode()
    # The same bytes from the same sources: gzip would keep the time at which it writes.
    with gzip.GzipFile(archive, "wb", mtime=manifest.mtime) as file, tarfile.open(fileobj=file, mode="w") as packed:
        for name, member in members.items():
            member.size = len(contents.get(name, b""))
            packed.addfile(member, io.BytesIO(contents.get(name, b"")))


def _maturin() -> Any:
    """Import maturin, which is installed only where a hook runs. It packs the data folder, even an empty one."""
    import maturin

    DATA.mkdir(exist_ok=True)
    return maturin


def get_requires_for_build_wheel(config_settings: Any = None) -> Any:
    """Return what maturin needs, as the hooks below do its work."""
    return _maturin().get_requires_for_build_wheel(config_settings)


def get_requires_for_build_sdist(config_settings: Any = None) -> Any:
    """See get_requires_for_build_wheel."""
    return _maturin().get_requires_for_build_sdist(config_settings)


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Any = None) -> Any:
    """Write the metadata, without building anything."""
    return _maturin().prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> Any:
    """Build the command, then the wheel."""
    profile = os.environ.get("C10D_BUILD_PROFILE", "release")
    lay_out(build_command(profile))
    os.environ.setdefault("MATURIN_PEP517_ARGS", f"--profile {profile}")
    return _maturin().build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Any = None) -> Any:
    """Pack the sources of the Python module and of the command."""
    name = _maturin().build_sdist(sdist_directory, config_settings)
    add_command(Path(sdist_directory) / name)
    return name


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
