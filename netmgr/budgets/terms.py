"""The terms on which rates are lent: what the server and every node have to go by alike."""

from __future__ import annotations

PERIOD = 5.0
"""Seconds between two reports of a node, give or take a tenth."""

HOLD = 15.0
"""Seconds from a report for which the rate that answers it is in force."""

LEASE = 120.0
"""Seconds from a report after which the server no longer counts what it lent."""

GRACE = LEASE + PERIOD
"""Seconds after the lease before a node takes its safe rate, where that is more than it had.

By the end of the lease the server reckons with the safe rate, and by then every lease has ended
that it gave before: it may have been given to a node that has not heard from the server since.
"""

DELETED = 600.0
"""Seconds from the last report for which a machine is reckoned with whose Node object is gone.

It may run on, at its safe rate; its token is good for as long.
"""

OVERLAP = 60.0
"""Seconds for which a former leader may go on to answer beside the next one, at the most."""

OUTSTANDING = 1.3
"""Of a budget's rate: the most that is in force on all nodes together, whatever happens."""

AIM = 0.985
"""Of a budget's rate: what its pods are to have together; the least of each node comes on top."""

HEADROOM = 1.2
"""Of what pods have that are not held back: what is lent for them."""

GROWTH = 4
"""Of a node's mean rate: the most by which a report raises it."""

NEWCOMERS = 50
"""What a report may add for a pod that waits is its part of what is not lent: shared with all that
wait, and so many more.
"""

SPARE = 0.3
"""Of what is not lent: what is spread over all nodes, so that a download begins at once."""

LEAST = 64_000
"""Bits a second: the least that is in force anywhere. HTB counts what a packet was too large for in
time, and forgets none of it when a rate is raised: the longest packet holds this rate up for 8 s.
"""
