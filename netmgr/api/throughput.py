"""The exporter's stream by which another node measures throughput: where it is, and its bounds.

It is for nodes that start (`netmgr preflight`). An exporter serves it with `--throughput-test`
alone, one at a time: whoever finds it busy asks another peer, or later.
"""

from __future__ import annotations

PATH = "/throughput"

STREAM_SECONDS = 2.0
STREAM_BYTES = 256 << 20
"""A stream ends with whichever comes first."""

TAKING_SECONDS = 1.0
"""A client that takes longer for one piece is hung up on, so that it keeps nobody waiting."""

RETRY_SECONDS = 2
"""When a client that found the stream busy is to ask again."""
