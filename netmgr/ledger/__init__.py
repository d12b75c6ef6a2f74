"""Counter samples into totals that nothing loses."""
