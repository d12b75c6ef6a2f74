"""What only one cloud has: a folder each, with its limits and what is rendered for it."""
