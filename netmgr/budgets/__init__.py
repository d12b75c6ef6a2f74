"""Internet budgets of a whole cluster: what a server grants nodes, and what nodes report to it."""
