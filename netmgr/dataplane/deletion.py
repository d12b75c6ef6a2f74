"""Deletes a pair of links within a millisecond, for all the kernel's 20 ms."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from errno import ENODEV

from netmgr.errors import Ignoring, KernelError
from netmgr.kernel import links
from netmgr.kernel.netlink import Netlink

# The kernel waits for ever for a link that some part of it does not let go of
# (netdev_wait_allrefs), and so does the thread that deletes it. Hence the bounds.
MOST_AT_ONCE = 16
PATIENCE_SECONDS = 5.0
CLOSE_SECONDS = 5.0
# Both ends are out of their namespaces after some 0.6 ms.
_PAUSE_SECONDS = 0.0002


class Deletion:
    """Deletes links of the namespace that it is called in. Thread-safe.

    Args:
        host: a socket in that namespace; stays the caller's.
    """

    def __init__(self, host: Netlink) -> None:
        self._host = host
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="delete-link")

    def delete(self, index: int) -> bool:
        """Delete the link of this index, and its peer; False if it is not there.

        When this returns, neither end is in its namespace any more and no packet is on its way.

        Raises:
            KernelError: the kernel refused, or earlier deletions take all threads; the link is
                deleted later then.
        """
        # Asked first: a thread that has not ended does not say that it found nothing.
        if not self._is_there(index):
            return False
        deadline = time.monotonic() + PATIENCE_SECONDS
        begun = threading.Event()
        # Under its routing lock the kernel takes both ends out of their namespaces and waits until
        # no packet is on its way through them (unregister_netdevice_many). Behind the lock, but
        # within the same system call, it waits for a grace period (netdev_run_todo): the 20 ms. So
        # another thread makes that call, by a socket that nobody else has to wait for.
        deleting = self._threads.submit(_delete, Netlink(), index, begun)
        begun.wait(PATIENCE_SECONDS)
        # A request that needs the same lock, and no longer finds the link, comes behind all that.
        while not deleting.done() and self._is_there(index):
            if time.monotonic() > deadline:
                raise KernelError(f"delete link {index}", details="the kernel takes too long")
            # The thread has not got the lock yet.
            time.sleep(_PAUSE_SECONDS)
        # Who deletes it at the same moment has deleted it as well.
        if deleting.done():
            with Ignoring(ENODEV):
                deleting.result()
        return True

    def _is_there(self, index: int) -> bool:
        # A request to change nothing: whatever the kernel may list without the routing lock one
        # day, changes need it.
        unchanged = links.touch(index)
        failure = self._host.attempt([unchanged]).get(unchanged)
        if failure is not None and failure.errno != ENODEV:
            raise failure
        return failure is None

    def close(self) -> None:
        """Wait for the kernel's grace periods, `CLOSE_SECONDS` at most."""
        # The agent's locks are given back after this: a deletion that hangs must not keep them from
        # a successor. The interpreter joins its thread at its end (concurrent.futures).
        waiting = threading.Thread(target=self._threads.shutdown, daemon=True)
        waiting.start()
        waiting.join(CLOSE_SECONDS)


def _delete(channel: Netlink, index: int, begun: threading.Event) -> None:
    with channel:
        begun.set()
        channel.transact([links.delete_link(index)])
