"""Where jobs, saved tokens and results live."""
