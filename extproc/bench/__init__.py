"""Load generation, records, summaries and reports."""
