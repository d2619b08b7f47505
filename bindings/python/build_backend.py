"""The build backend of pip: maturin, with the command c10d in the wheel.

``pip install ./bindings/python`` in a clone of the repository needs a Rust toolchain, and nothing else. The profile of
Cargo is C10D_BUILD_PROFILE, by default release. A source distribution has the Python module's sources only, and gives a
wheel without the command.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
DATA = HERE / "c10d_rs.data"

SHARED = {
    "bash": "bash-completion/completions/c10d",
    "zsh": "zsh/site-functions/_c10d",
    "fish": "fish/vendor_completions.d/c10d.fish",
}


def lay_out(command: Path) -> None:
    """Fill the data folder of the wheel with the command, its manual pages and completions."""
    shutil.rmtree(DATA, ignore_errors=True)
    scripts, share = DATA / "scripts", DATA / "data" / "share"
    scripts.mkdir(parents=True)
    installed = scripts / "c10d"
    shutil.copy(command, installed)
    if shutil.which("strip"):
        subprocess.run(["strip", installed], check=True)
    for shell, name in SHARED.items():
        path = share / name
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            subprocess.run([installed, "completions", shell], stdout=file, check=True)
    subprocess.run([installed, "man", "--out-dir", share / "man" / "man1"], check=True)


def build_command(profile: str) -> Path | None:
    """Build the command, and return its path; None without its sources."""
    if not (REPOSITORY / "c10d-cli" / "Cargo.toml").exists():
        return None
    cargo = ["cargo", "build", "--locked", "--package", "c10d-cli", "--bin", "c10d", "--profile", profile]
    cargo.append("--message-format=json-render-diagnostics")
    built = subprocess.run(cargo, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True)
    messages = [json.loads(line) for line in built.stdout.splitlines()]
    programs = [message["executable"] for message in messages if message.get("executable")]
    return Path(programs[-1])


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
    command = build_command(profile)
    if command is not None:
        lay_out(command)
    os.environ.setdefault("MATURIN_PEP517_ARGS", f"--profile {profile}")
    return _maturin().build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Any = None) -> Any:
    """Pack the sources of the Python module."""
    return _maturin().build_sdist(sdist_directory, config_settings)


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
