"""The history climbed: what each rung claims over the one before, measured in small runs and judged by intervals."""
