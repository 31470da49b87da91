"""How good it is, and how sure we are: metrics, intervals, and yardsticks that need no model."""
