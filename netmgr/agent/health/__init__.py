"""What is wrong with a machine: examined before a start, and looked for while an agent runs."""
