"""The methods that the contract is run for: every registered one, and some with settings that matter."""

from softprune.methods import ST3, STR, from_config, method_names
from softprune.methods.base import method_class

# Settings for trainings of some thirty steps on tiny weights. The divergence of VD weighs as much as the variational
# bound of the convex problem says, which is 128 weights over 256 samples.
SHORT = {"dsr": {"threshold": 0.05}, "acdc": {"phases": 3}, "imp": {"rounds": 3}, "vd": {"kl": 0.5}}

OURS = [name for name in method_names() if method_class(name).__module__.startswith("softprune.")]
METHODS = {name: from_config({"method": name, **SHORT.get(name, {})}) for name in OURS}
VARIANTS = {"str, sparse from the start": STR(s_init=-4.0), "st3 sigma": ST3(sigma=True)}
