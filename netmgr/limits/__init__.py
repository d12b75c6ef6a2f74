"""Limits of pods' internet traffic, held by the kernel's HTB classes."""
