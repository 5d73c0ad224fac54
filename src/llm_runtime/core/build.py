"""How this copy and its interpreter were built: what a figure about speed has to say of itself."""

from __future__ import annotations

import sys
import sysconfig

COMPILED = not __file__.endswith(".py")
"""Whether the modules on the hot path were compiled (`make compiled`). This is one of them."""

_FLAG = "--enable-optimizations"
_OF_DISTRIBUTIONS = ("/usr",)


def interpreter_optimised() -> bool | None:
    """Whether this interpreter was built with profile-guided optimisation; None: it does not say."""
    return optimised(sysconfig.get_config_var("CONFIG_ARGS"), sys.base_prefix)


def optimised(configured_with: str | None, prefix: str) -> bool | None:
    """The same of any CPython. Distributions build theirs so; Debian without the flag, by make's target."""
    if configured_with is None:
        return None
    return _FLAG in configured_with or prefix in _OF_DISTRIBUTIONS
