"""Measuring: load over real sockets, suites in virtual time, summaries and reports."""
