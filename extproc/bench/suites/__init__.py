"""The suites of both seed reports; `catalogue` lists them."""
