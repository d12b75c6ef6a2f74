"""Which attachment holds which address: `pool` decides, `store` remembers."""
