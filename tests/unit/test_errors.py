"""Errors keep what they know on their way through other processes."""

from __future__ import annotations

import pickle

from extproc.errors import ConfigError, Problem


def test_a_configuration_error_survives_pickling() -> None:
    error = ConfigError([Problem("bands[1].ttl_s", "must be above 0", 7)], source="extproc.yaml")
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, ConfigError)
    assert (str(again), again.problems, again.source) == (str(error), error.problems, error.source)
