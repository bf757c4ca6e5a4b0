"""The hash that names a configuration, by which sweeps and comparisons find runs again, stays as it is."""

import json

from frozen_text import assert_frozen

from softprune.train.config import RunConfig, content_hash
from softprune.train.config.run import recipes

CHANGES = {
    "another seed": ["seed=3"],
    "another optimizer": ["optimizer.name=adamw", "optimizer.momentum=0", "optimizer.lr=0.01"],
    "another method": ["method=gmp", "goal=0.9"],
    "a method with settings": ["method=rigl", "method.every=50", "goal.sparsity=null", "goal.budget=erk-90"],
    "a number of parameters": ["goal={params: 5000}"],
    "multiply-adds": ["goal={flops: 100000}"],
    "a later ramp": ["goal.ramp=linear", "goal.begin=0.2", "goal.end=0.8"],
    "filters": ["units=filter", "goal=0.5"],
    "blocks": ["units.kind=block", "units.block=[4, 8]"],
    "what is left alone": ["skip=['head*']"],
    "a rule": ["rules=[{match: '0.*', skip: true}]"],
    "an average": ["ema=0.99"],
    "part of the data": ["data.subset=128", "epochs=2"],
    "what does not count": ["name=other", "log.every_steps=5", "checkpoint.keep=7"],
}


def hashes():
    found = {recipe.name: content_hash(RunConfig.load(recipe.name)) for recipe in recipes()}
    for name, changes in CHANGES.items():
        found[f"digits/str-goal with {name}"] = content_hash(RunConfig.load("digits/str-goal", changes))
    return found


def test_the_hash_of_every_recipe_and_of_many_changes_is_the_frozen_one():
    found = hashes()
    assert len(found) > 30
    assert len({found["digits/str-goal"], found["digits/str-goal with another seed"]}) == 2
    assert found["digits/str-goal with what does not count"] == found["digits/str-goal"]
    assert_frozen("config_hashes.json", json.dumps(found, indent=2))
