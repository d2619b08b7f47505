"""The blocks of a page, which tests type as they stand."""

import re
from pathlib import Path


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the language and the text of each block of a page."""
    return re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def blocks_in(page: Path, language: str) -> list[str]:
    """Return the blocks of a page that are in this language."""
    return [text for name, text in blocks(page) if name == language]
