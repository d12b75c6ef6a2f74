"""Whether a plan, its lock and the machines agree, stay within limits and keep clusters apart."""
