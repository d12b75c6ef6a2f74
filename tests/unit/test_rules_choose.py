"""The choice of a backend is made once; and the lock that others hold is waited for only so
long."""

from __future__ import annotations

import pytest

from netmgr.documents.node import Backend
from netmgr.errors import StateError
from netmgr.rules.choose import FILE_NAME, open_backend


@pytest.mark.root
def test_auto_decides_for_nftables_where_it_works_and_writes_it_down(tmp_path):
    backend = open_backend(Backend.AUTO, tmp_path / "state")
    backend.close()
    assert backend.name == "nftables"
    assert [path.name for path in (tmp_path / "state").iterdir()] == [FILE_NAME]
    assert (tmp_path / "state" / FILE_NAME).read_text(encoding="ascii") == "nftables\n"


@pytest.mark.root
def test_an_explicit_choice_is_followed_and_remembers_nothing(tmp_path):
    backend = open_backend(Backend.NFTABLES, tmp_path)
    backend.close()
    assert backend.name == "nftables"
    assert list(tmp_path.iterdir()) == []


def test_a_decision_that_cannot_be_read_is_not_made_again(tmp_path):
    (tmp_path / FILE_NAME).write_text("ebtables\n", encoding="ascii")
    with pytest.raises(StateError, match="'ebtables' is no backend"):
        open_backend(Backend.AUTO, tmp_path)
