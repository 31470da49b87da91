"""The family tree: every published model as data, with what its generation took away and why. No torch.

One YAML file a generation in `generations/`: a model with holes, and a table of sizes that fill them.
"""

from intaglio.lineage.presets import Generation, Preset, family_tree, generations, preset, presets

__all__ = ["Generation", "Preset", "family_tree", "generations", "preset", "presets"]
