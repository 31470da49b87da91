"""Generation: blocks of keys and values, who computes what in a step, and which token is taken."""
