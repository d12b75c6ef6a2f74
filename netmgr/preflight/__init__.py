"""Probes a fresh node's network, before it runs pods: `netmgr preflight`.

`targets` says what is probed and `results` what came of it (pure); `holding`, `echo`, `tcp`, `dns`
and `throughput` probe, and `run` puts it together.
"""
