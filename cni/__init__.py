"""The CNI plugin's host side: the static launcher, the specification's types, and installation."""
