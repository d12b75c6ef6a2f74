"""Documents people write: YAML with lines, one diagnostic type, the node document and its parts."""

HAS_PYDANTIC = True
"""Whether documents are models of pydantic in this process. An agent sets it to False before it
imports any: pydantic and its models take 12 MB, and it reads its document once
(`agent/core/checking.py`)."""
