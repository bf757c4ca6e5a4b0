"""The identity of a run: a hash of what decides its result."""

from __future__ import annotations

import hashlib
import json

from softprune.train.config.method import method_defaults
from softprune.train.config.run import RunConfig

# What is said about a run, and when it writes what, does not change what it computes.
_ABOUT = {"name", "summary", "expected", "log", "checkpoint"}


def content_hash(config: RunConfig) -> str:
    """Twelve hexadecimal digits that two configurations share exactly if they compute the same.

    Defaults are left out, so that a key added later does not change the hash of an older configuration.

    Example:
        >>> short, long = RunConfig.load("digits/str"), RunConfig.load("digits/str", ["accumulate=1", "name=other"])
        >>> content_hash(short) == content_hash(long)
        True
    """
    content = config.model_dump(mode="json", exclude=_ABOUT, exclude_defaults=True)
    if config.method is not None:
        defaults = method_defaults(config.method.name)
        kept = {key: value for key, value in config.method.settings.items() if value != defaults[key]}
        content["method"] = {"name": config.method.name, **kept}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
