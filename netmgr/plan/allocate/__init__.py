"""Address arithmetic: what each subnet takes, and where it goes."""
