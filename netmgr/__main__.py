"""`python -m netmgr` is the `netmgr` command."""

from netmgr.cli.main import main

main()
