"""What a run minimises: one file an objective. The loop knows only the protocol in `objective.py`."""
