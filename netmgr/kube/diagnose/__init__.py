"""What is wrong in a cluster, and a trial of its network."""
