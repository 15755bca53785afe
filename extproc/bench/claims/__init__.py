"""What the seed reports claim, suite by suite."""
