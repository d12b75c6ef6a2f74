"""Cluster networking and traffic accounting: native pod addresses, counted to the byte."""

__version__ = "0.1.0"
