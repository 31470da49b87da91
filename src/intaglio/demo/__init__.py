"""The whole life of one model, stage by stage, on real input: what `intaglio demo` runs."""
