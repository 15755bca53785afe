"""The picker of named profiles: the first profile that matches a request says how its endpoint is picked."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from extproc.core.checks import FieldChecks
from extproc.core.picker.affinity import PoolLoad
from extproc.core.picker.prefix_index import PrefixIndex, PrefixIndexConfig
from extproc.core.picker.profile import Profile, ProfileConfig
from extproc.core.picker.protocol import Fits, Pick, Scores
from extproc.core.pool import Candidates, EndpointState, Labels
from extproc.core.types import Request


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfilesPickerConfig:
    """`profiles` are tried in order; a request that none matches is picked for by the last one.
    `prefix_index` is shared by all of them."""

    type: Literal["profiles"] = "profiles"
    profiles: tuple[ProfileConfig, ...] = field(default_factory=lambda: (ProfileConfig(),))
    prefix_index: PrefixIndexConfig = field(default_factory=PrefixIndexConfig)

    def __post_init__(self) -> None:
        names = [profile.name for profile in self.profiles]
        doubled = sorted({name for name in names if names.count(name) > 1})
        checks = FieldChecks(self).require(bool(names), "profiles: at least one is needed")
        checks.require(not doubled, f"profiles: {', '.join(doubled)} is listed more than once").finish()


class ProfilesPicker:
    """Keeps every profile's scores up to date, and what they share: the prefix index and the pool's load."""

    def __init__(self, config: ProfilesPickerConfig, rng: random.Random) -> None:
        self._index = PrefixIndex(config.prefix_index)
        self._load = PoolLoad()
        self._profiles = [Profile(profile, self._index, self._load, rng) for profile in config.profiles]
        self._labels = [tuple(sorted(profile.labels.items())) for profile in config.profiles]
        self._learns_prefixes = any("prefix-cache" in profile.affinities for profile in self._profiles)

    def endpoint_changed(self, endpoint: EndpointState) -> None:
        self._load.put(endpoint)
        for profile in self._profiles:
            profile.changed(endpoint)

    def endpoint_closed(self, endpoint: EndpointState) -> None:
        self._load.discard(endpoint)
        if not endpoint.is_listed:
            self._index.discard(endpoint)
        for profile in self._profiles:
            profile.closed(endpoint)

    def request_dispatched(self, request: Request, endpoint: EndpointState, now: float) -> None:
        if request.prefix_hashes and self._learns_prefixes:
            self._index.add(endpoint, request.prefix_hashes)
        for profile in self._profiles:
            profile.dispatched(request, endpoint)

    def required_labels(self, request: Request) -> Labels:
        return self._labels[self._number(request)]

    def profile_name(self, request: Request) -> str | None:
        """Which profile picks for this request."""
        return self._profiles[self._number(request)].config.name

    def pick(self, request: Request, candidates: Candidates, fits: Fits, now: float) -> Pick | None:
        return self._profiles[self._number(request)].pick(request, candidates, fits)

    def explain(self, request: Request, candidates: Candidates) -> Mapping[EndpointState, Scores]:
        return self._profiles[self._number(request)].explain(request, candidates)

    def _number(self, request: Request) -> int:
        if len(self._profiles) == 1:
            return 0
        for number, profile in enumerate(self._profiles):
            if profile.config.match.matches(request):
                return number
        return len(self._profiles) - 1
