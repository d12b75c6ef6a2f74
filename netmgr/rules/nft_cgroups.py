"""Deletes elements of nftables sets of cgroups, which libnftables can name only while the cgroup exists.

nft(8) writes a cgroup by its path and looks the number up; of one that is gone it shows the
number and does not take it back. So these go to the kernel as messages, the key being the
cgroup's 64-bit number.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable

from netmgr.dataplane import nft_messages
from netmgr.dataplane.nft_socket import NftSocket
from netmgr.errors import KernelError


def delete(table: str, set_name: str, cgroups: Iterable[int]) -> None:
    """Delete the elements of these cgroup numbers; one that is not there is no error.

    Raises:
        KernelError: the kernel refused.
    """
    with NftSocket() as channel:
        for number in cgroups:
            try:
                channel.commit(nft_messages.delete_elements(table, set_name, [struct.pack("=Q", number)]))
            except KernelError as error:
                if error.errno != errno.ENOENT:
                    raise


def number_of(path: str | os.PathLike[str]) -> int:
    """The number that the kernel has for the cgroup of this directory: its inode's (kernfs).

    Raises:
        FileNotFoundError: there is no such cgroup any more.
    """
    return os.stat(path).st_ino  # noqa: PTH116  a plain call: there may be thousands
