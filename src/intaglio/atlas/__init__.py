"""The history climbed: what each rung claims over the one before, measured in small runs and judged by intervals.

And drawn: `figures` holds pictures of every claim of the story, `book` their order, `page` the report.
"""
