"""What pods' traffic is counted and limited by."""
