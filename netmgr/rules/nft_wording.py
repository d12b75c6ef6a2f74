"""Rules that somebody altered without altering their comment.

A comment's digest says what we wrote, not what stands there: `nft replace rule` may keep the
one and change the other. So what nft shows of a rule right after we wrote it is remembered,
and compared from then on. It is not kept on disk, where it would have to outlive a change of
nft's wording; a rule that was there before us is taken for what its comment says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from netmgr.rules.nft_text import Listing


class Wording:
    """What nft shows of each rule, by the rule's comment. Its listings are all of one table."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def learn(self, listing: Iterable[Listing], chains: Collection[str]) -> None:
        """Take these chains' rules, which were written a moment ago, for what their comments say."""
        written = {rule["comment"]: rule["expr"] for rule in _commented(listing) if rule["chain"] in chains}
        self._known = {**self._known, **written}

    def unmasked(self, listing: Iterable[Listing]) -> list[Listing]:
        """The listing, in which a rule that was altered no longer has the comment it is recognised by."""
        listed = list(listing)
        self._known = {**{rule["comment"]: rule["expr"] for rule in _commented(listed)}, **self._known}
        return [self._unmasked(item) for item in listed]

    def _unmasked(self, item: Listing) -> Listing:
        rule = item.get("rule", {})
        comment = rule.get("comment", "")
        if not comment or rule["expr"] == self._known[comment]:
            return item
        # The ids stay readable; only the digest of the text goes.
        return {"rule": rule | {"comment": f"{comment.rpartition(' ')[0]} altered"}}


def _commented(listing: Iterable[Listing]) -> Iterator[Listing]:
    return (item["rule"] for item in listing if "comment" in item.get("rule", {}))
