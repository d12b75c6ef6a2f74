"""Those who wait for a leader's place ask seldom, and never in step, while there is nobody to
answer.
"""

from __future__ import annotations

import socket
import threading
import time
from itertools import pairwise

from kubernetes.client import ApiClient, Configuration

from netmgr.kube.api import Api
from netmgr.kube.election import Candidate, Term
from netmgr.kube.health import Health

LONGEST = (1, 2, 4, 4)
"""Seconds: twice the last each time, at most the lease's."""


def test_a_follower_waits_ever_longer_and_by_chance_while_the_server_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        configuration = Configuration(host=f"http://127.0.0.1:{listener.getsockname()[1]}")
        configuration.retries = False
        term = Term("netmgr", "lease", "somebody", lease=LONGEST[-1])
        candidate = Candidate(
            Api(ApiClient(configuration)), term, lambda _: None, threading.Event(), Health()
        )
        thread = threading.Thread(target=candidate.run)
        thread.start()
        try:
            asked = []
            for _ in range(len(LONGEST) + 1):
                listener.accept()[0].close()
                asked.append(time.monotonic())
        finally:
            candidate.withdraw()
            thread.join(10)
    parts = [
        (after - before) / longest
        for (before, after), longest in zip(pairwise(asked), LONGEST, strict=True)
    ]
    assert all(0.45 < part < 1.1 for part in parts), parts
    assert len({round(part, 2) for part in parts}) > 1, "by chance"
    assert not thread.is_alive()
