"""Support archives: parts that are collected one by one, as text, with names redacted if asked."""

from __future__ import annotations

import hashlib
import io
import re
import secrets
import tarfile
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from netmgr.errors import NetmgrError, of_system

MOST_BYTES = 16 << 20
"""Of one part; a longer one keeps its end, where logs have what matters."""

_MISSING = "cannot be collected: "

_NAMED = re.compile(r'(\b(?:pod|namespace)=|"(?:pod|namespace)": )("[^"]*"|[^\s",]+)')
"""What log lines and documents say of pods, those that are gone included."""

_KEPT = frozenset({"", "-", "default", "kube-system", "netmgr", "netmgr-claims"})
"""Names that reveal nothing."""

_PSEUDONYM = re.compile("name-[0-9a-f]{10}")
_WORD = r"[\w.-]"

Part = Callable[[], str]


def collect(parts: Mapping[str, Part]) -> dict[str, str]:
    """The text of every part, or why there is none."""
    texts = {}
    for name, part in parts.items():
        try:
            text = part()
        except (NetmgrError, OSError, ValueError) as error:
            # What is broken on this machine must not cost the archive: the part's place says why.
            why = of_system(error) if isinstance(error, OSError) else error
            texts[name] = f"{_MISSING}{why}\n"
            continue
        if (excess := len(text) - MOST_BYTES) > 0:
            text = f"the first {excess} characters are left out\n{text[excess:]}"
        texts[name] = text
    return texts


def redacted(parts: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """The parts with each of these names, and what log lines say of pods, as a pseudonym."""
    # One key for all parts, so that a name can be followed through them. It is forgotten: a plain
    # hash would give a name away to whoever tries names.
    key = secrets.token_bytes()
    # In any order: none of them ends within a word, so `web` is not found in `web-0`.
    listed = set(names) - _KEPT
    known = re.compile(f"(?<!{_WORD})({'|'.join(map(re.escape, listed))})(?!{_WORD})")

    def pseudonym(name: str) -> str:
        # The second pass meets what the first one has replaced.
        if name in _KEPT or _PSEUDONYM.fullmatch(name):
            return name
        return "name-" + hashlib.blake2b(name.encode(), key=key, digest_size=5).hexdigest()

    def of_pod(match: re.Match[str]) -> str:
        quote = '"' if match[2].startswith('"') else ""
        return match[1] + quote + "/".join(map(pseudonym, match[2].strip('"').split("/"))) + quote

    def hide(text: str) -> str:
        if listed:
            text = known.sub(lambda match: pseudonym(match[1]), text)
        return _NAMED.sub(of_pod, text)

    return {name: hide(text) for name, text in parts.items()}


class Archive(NamedTuple):
    """A compressed tar archive, the names of its parts, and why some of them are missing."""

    content: bytes
    parts: tuple[str, ...]
    missing: dict[str, str]


def packed(folder: str, parts: Mapping[str, str]) -> Archive:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as archive:
        for name, text in parts.items():
            # A file's name that is not UTF-8 comes as lone surrogates, which cannot be encoded.
            content = text.encode(errors="replace")
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(content))
    missing = {
        name: text.removeprefix(_MISSING).strip()
        for name, text in parts.items()
        if text.startswith(_MISSING)
    }
    return Archive(written.getvalue(), tuple(parts), missing)
