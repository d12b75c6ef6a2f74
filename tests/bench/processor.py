"""Processor time of other processes."""

from __future__ import annotations

import time

_CPUCLOCK_SCHED = 2


def processor_seconds(process: int) -> float:
    """User and system time so far, to the nanosecond."""
    # As clock_getcpuclockid(3) makes the number; the ticks of proc_pid_stat(5) are too long for an
    # idle agent.
    return time.clock_gettime((~process << 3) | _CPUCLOCK_SCHED)
